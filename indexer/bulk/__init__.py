"""Prefill a large corpus on the workers of a Ray cluster: one per GPU, or one per processor core."""
