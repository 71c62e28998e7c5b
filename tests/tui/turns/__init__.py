"""Turns: asking again, comparing, waiting for files, and answers by another process."""
