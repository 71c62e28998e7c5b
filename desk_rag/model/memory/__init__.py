"""Memory that a model takes while it is served, and memory that is free for it."""
