"""Chunk KV prefilled behind filler passages, for models that were not fine-tuned."""
