"""Keys of the UI: every action that has one, the user's own choices, and jumping by letters."""
