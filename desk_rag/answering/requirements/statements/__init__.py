"""Relation of a sentence to the thing asked about: over, contrary, or about something else."""
