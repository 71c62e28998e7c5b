"""Decide when to index: watch folders, wait for an idle machine, work in the background."""
