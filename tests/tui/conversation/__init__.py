"""Conversations in the UI."""
