"""How good answers are: modes, batched answering, scores, tables."""
