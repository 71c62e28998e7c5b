"""Measure desk-rag with very many files, passages and vectors."""
