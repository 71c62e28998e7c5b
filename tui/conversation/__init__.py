"""Conversations in the UI: what is saved of them, names for '@', and how they are exported."""
