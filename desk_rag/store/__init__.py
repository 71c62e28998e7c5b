"""What is on the SSD: catalog, chunk KV files, vectors; see FORMAT.md. Others hold only a `Store`."""
