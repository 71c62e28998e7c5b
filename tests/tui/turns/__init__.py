"""Tests of the way of a question through the UI."""
