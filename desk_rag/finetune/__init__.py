"""Teach a model to read chunks that were prefilled apart: `desk-rag finetune`."""
