"""One process with the models loaded answers the questions of others, over a Unix socket in the data directory."""
