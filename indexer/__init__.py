"""When to index: watching, waiting for an idle machine, working in the background. What to do: desk_rag.indexing."""
