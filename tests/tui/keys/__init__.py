"""Keys: the list of them, keys of one's own, and what they do."""
