"""Measurements of what ships: each ends in one JSON line, and LOG.md keeps what was found. Nothing imports it."""
