"""First tokens and whole answers of published model shapes, on a GPU."""
