"""Tests of what a question demands of its evidence."""
