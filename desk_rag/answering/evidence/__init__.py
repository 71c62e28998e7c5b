"""Which sentence an answer quotes, and whether it supports the answer."""
