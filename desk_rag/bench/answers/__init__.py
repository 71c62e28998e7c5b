"""Measurement of answers about a folder: retrieval, quotes, short answers and refusals."""
