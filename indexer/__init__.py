"""When to index: watching, waiting for an idle machine, working in the background."""
