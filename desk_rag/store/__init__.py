"""Everything on the SSD: catalog, chunk KV files, vectors; see FORMAT.md. Others use only `Store`."""
