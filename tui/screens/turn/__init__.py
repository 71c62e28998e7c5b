"""Screens that a turn opens: its menu, and the text of a source."""
