"""Which chunks answer a question: words and vectors, fused."""
