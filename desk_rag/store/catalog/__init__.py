"""The SQLite side: documents, chunks, words, and the rows that processes share."""
