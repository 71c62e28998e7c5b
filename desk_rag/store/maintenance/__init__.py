"""Verify, purge, and make room on a full drive."""
