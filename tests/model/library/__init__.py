"""Models of other programs on this machine."""
