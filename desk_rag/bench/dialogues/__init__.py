"""Measure follow-up questions against the same questions written out."""
