"""Checks that a model's chunk KV is good enough to use, and the texts they run on."""
