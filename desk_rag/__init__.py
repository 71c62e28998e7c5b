"""desk-rag: a local assistant that answers from on-disk chunk caches. Importing this package loads nothing else."""

__version__ = "0.1.0"
