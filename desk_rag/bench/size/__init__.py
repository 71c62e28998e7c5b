"""How desk-rag behaves with very many files, passages and vectors."""
