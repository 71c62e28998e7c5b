"""Rules by which files are left out."""
