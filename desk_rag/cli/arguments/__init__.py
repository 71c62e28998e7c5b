"""Arguments that several commands share, and their order."""
