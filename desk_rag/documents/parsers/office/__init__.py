"""Office documents and PDF."""
