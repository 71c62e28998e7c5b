"""Measure the whole product on a folder: retrieval, quotes, short answers and refusals together."""
