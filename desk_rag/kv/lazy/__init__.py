"""LazyAttention: attention over int8 chunk KV in place, rotated and widened when it is read."""
