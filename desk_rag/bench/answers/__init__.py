"""How well the product answers questions about a folder: retrieval, quotes, short answers and refusals together."""
