"""Chunk KV files: their bytes, their index, the budget and what is evicted."""
