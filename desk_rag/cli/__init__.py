"""The command line: `main` parses, `work` and `store` do, `output` prints."""
