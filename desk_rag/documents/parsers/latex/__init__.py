"""LaTeX: documents, and the macros that they define."""
