"""Retrieval of the chunks that answer a question: words and vectors, fused."""
