"""From a changed file to text, vectors and chunk KV in the store. `indexer` decides when."""
