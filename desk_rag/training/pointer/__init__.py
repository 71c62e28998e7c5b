"""Trains the pointer: an adapter of the embedder that points at the span that answers."""
