"""Checks of an answer about one fact: the day of its entry, a newer holder, another thing."""
