"""Layers of a loaded model: their keys, their rotation, and the part of a model that is for text."""
