"""Triton kernels beside their torch references; a kernel is used once a run has proven it."""
