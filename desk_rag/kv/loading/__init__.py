"""Chunk KV from files into the cache, layer by layer, while earlier layers already run."""
