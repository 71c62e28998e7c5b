"""What chunk caching is compared with: other loaders and codings."""
