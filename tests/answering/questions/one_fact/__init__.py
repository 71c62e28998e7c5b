"""Tests of answers about one fact."""
