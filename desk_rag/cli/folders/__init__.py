"""Commands about folders: what is in them and when they are worked on."""
