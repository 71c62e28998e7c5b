"""Compare the store's eviction policy with others on synthetic traces."""
