"""Training rows of the reader: corpus, written pairs, scenes, token ids."""
