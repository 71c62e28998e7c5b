"""Vectors of chunks: kept in step with the catalog, searched exactly or by HNSW."""
