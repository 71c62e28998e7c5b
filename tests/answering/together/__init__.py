"""Tests of several questions that are answered at once."""
