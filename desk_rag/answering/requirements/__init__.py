"""The names, numbers and dates that a question demands of its evidence, and whether a passage has them."""
