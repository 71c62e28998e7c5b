"""What chunk caching is compared with: other loaders, codings and eviction policies."""
