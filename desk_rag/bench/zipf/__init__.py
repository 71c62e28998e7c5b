"""One copy of a chunk for every position beside one per position, under a memory budget."""
