"""Answers that a model writes in its own words: cut into sentences, checked against the passages, shown."""
