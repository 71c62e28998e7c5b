"""Train the embedder that ships, for vectors of passages and for late interaction."""
