"""Measurement of follow-up questions beside the same questions written out."""
