"""Selective recompute: which chunk tokens are computed again, and the pass that does it."""
