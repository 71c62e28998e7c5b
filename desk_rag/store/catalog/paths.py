"""Paths as stored in the catalog, and SQL conditions that limit a query to folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def to_blob(path: Path) -> bytes:
    """Return the bytes of a path; a file name need not be UTF-8, and SQLite cannot store surrogates as text."""
    return os.fsencode(path)


def from_blob(blob: bytes) -> Path:
    """Return the path of the bytes that `to_blob` returns."""
    return Path(os.fsdecode(blob))


class Scope:
    """The documents at or below the given folders; all documents if none are given."""

    def __init__(self, under: Sequence[Path]) -> None:
        self.values: tuple[bytes, ...] = ()
        """Parameters for one condition of this scope."""
        for folder in under:
            exact = to_blob(folder)
            below = exact.rstrip(b"/") + b"/"
            self.values += (exact, below, below[:-1] + b"0")  # '0' is the byte after '/'
        self.everything = not self.values

    def path_condition(self, column: str) -> str:
        """Return an SQL condition on a path column ('1' for everything)."""
        if self.everything:
            return "1"
        folder = f"{column} = ? OR ({column} >= ? AND {column} < ?)"
        return "(" + " OR ".join([folder] * (len(self.values) // 3)) + ")"

    def and_path(self, column: str) -> str:
        """Return ' AND condition' on a path column, or ''."""
        return "" if self.everything else f" AND {self.path_condition(column)}"

    def chunk_rows(self) -> str:
        """Return a subquery of the chunk rows in scope."""
        return (
            "(SELECT places.chunk FROM places JOIN documents ON documents.id = places.document"
            f" WHERE {self.path_condition('documents.path')})"
        )

    def document_rows(self) -> str:
        """Return a subquery of the document rows in scope."""
        return f"(SELECT documents.id FROM documents WHERE {self.path_condition('documents.path')})"

    def and_chunk(self, column: str) -> str:
        """Return ' AND condition' on a column of chunk rows, or ''."""
        return "" if self.everything else f" AND {column} IN {self.chunk_rows()}"
