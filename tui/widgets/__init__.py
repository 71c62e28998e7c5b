"""Widgets of the screens. Each takes plain values and posts messages; none knows the backend."""
