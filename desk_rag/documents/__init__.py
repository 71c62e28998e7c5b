"""From files to chunks: which files there are, what text they hold, how it is cut."""
