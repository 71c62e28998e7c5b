"""Text with markup, source code and plain text."""
