"""The checks of `desk-rag doctor`."""
