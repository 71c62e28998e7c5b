"""Rules by which files are left out: of ignore files, of the user, of names and contents that are secrets."""
