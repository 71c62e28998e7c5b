"""Loading, prefilling and both at once, at several context lengths."""
