"""Measure the quality of answers: modes, batched answering, scores, tables."""
