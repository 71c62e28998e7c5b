"""Tests of how questions are recognised, split and answered in several steps."""
