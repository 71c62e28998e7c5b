"""Matrices of larger models in few bits on a CPU, coded while a checkpoint is read."""
