"""Chunk KV as tensors: prefill, quantise, load, stitch, run, recompute. Nothing here opens the store."""
