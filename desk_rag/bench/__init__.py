"""Benchmarks of what ships, one module per command; LOG.md keeps the results. Only the CLI imports it."""
