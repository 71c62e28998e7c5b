"""Turn changed files into text, vectors and chunk KV in the store; `indexer` decides when."""
