"""What is on the SSD: catalog, chunk KV files, vector index; see FORMAT.md. Others hold only a `Store`.

Importing this package loads neither torch nor numpy.
"""
