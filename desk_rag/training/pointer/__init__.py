"""How the pointer is trained: an adapter of the embedder that points at the span that answers."""
