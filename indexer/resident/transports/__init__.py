"""The ways to reach a resident process: a Unix socket, or a named pipe where there are none."""
