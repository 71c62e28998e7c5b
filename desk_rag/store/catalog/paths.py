"""Paths as stored in the catalog, and SQL conditions that limit a query to folders."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

_SIDE_FOLDER = re.compile(
    r"(?:(?:sym|hard)?-?links?|cop(?:y|ies)|duplicates?|backups?|bak|old|archived?|archives|tmp|temp|trash|downloads?)",
    re.IGNORECASE,
)
"""Folders in which copies lie rather than what they are copies of."""
_COPY = re.compile(r"\bcopy\b|\bcopy of\b|\(\d+\)$|\bbackup\b|[-_. ](?:bak|old|orig)$", re.IGNORECASE)


def to_blob(path: Path) -> bytes:
    """Return the bytes of a path; a file name need not be UTF-8, and SQLite cannot store surrogates as text."""
    return os.fsencode(path)


def from_blob(blob: bytes) -> Path:
    """Return the path of the bytes that `to_blob` returns."""
    return Path(os.fsdecode(blob))


def plainest(files: Sequence[tuple[Path, int]], text: str) -> Path:
    """Return which of several files of equal content people mean: path and time of change of each are given.

    Not a link, nor a copy by its name or folder; then the oldest, then one whose name has words of the text, then the
    one nearest to the root.
    """
    words = set(re.findall(r"[^\W\d_]{3,}", text.lower()))

    def oddness(file: tuple[Path, int]) -> tuple[bool, bool, int, bool, int, Path]:
        path, mtime_ns = file
        is_copy = any(_SIDE_FOLDER.fullmatch(part) for part in path.parts[:-1]) or bool(_COPY.search(path.stem))
        named = words & set(re.findall(r"[^\W\d_]{3,}", path.stem.lower()))
        return path.is_symlink(), is_copy, mtime_ns, not named, len(path.parts), path

    return min(files, key=oddness)[0]


def hold_everything(connection: sqlite3.Connection, folders: Sequence[Path]) -> bool:
    """Return whether no known path lies outside the folders, so that a query need not be limited to them."""
    scope = Scope(folders)
    any_between = "SELECT EXISTS (SELECT 1 FROM documents WHERE path >= ? AND path < ?)"
    inside = zip(scope.values[::3], scope.values[1::3], scope.values[2::3], strict=True)
    end = b""
    for begin, next_end in sorted(part for at, below, last in inside for part in ((at, at + b"\0"), (below, last))):
        if begin > end and connection.execute(any_between, (end, begin)).fetchone()[0]:
            return False
        end = max(end, next_end)
    return not connection.execute("SELECT EXISTS (SELECT 1 FROM documents WHERE path >= ?)", (end,)).fetchone()[0]


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
        return _either(f"{column} = ? OR ({column} >= ? AND {column} < ?)", len(self.values) // 3)

    def and_path(self, column: str) -> str:
        """Return ' AND condition' on a path column, or ''."""
        return "" if self.everything else f" AND {self.path_condition(column)}"

    def chunk_rows(self) -> str:
        """Return a subquery of the chunk rows in scope."""
        return (
            "(SELECT places.chunk FROM places JOIN documents ON documents.id = places.document"
            f" WHERE {self.path_condition('documents.path')})"
        )

    def holds_chunk(self, column: str) -> str:
        """Return an SQL condition that looks up single chunk rows, for a few rows and a large scope."""
        return (
            "EXISTS (SELECT 1 FROM places JOIN documents ON documents.id = places.document"
            f" WHERE places.chunk = {column} AND {self.path_condition('documents.path')})"
        )

    def document_rows(self) -> str:
        """Return a subquery of the document rows in scope."""
        return f"(SELECT documents.id FROM documents WHERE {self.path_condition('documents.path')})"

    def and_chunk(self, column: str) -> str:
        """Return ' AND condition' on a column of chunk rows, or ''."""
        return "" if self.everything else f" AND {column} IN {self.chunk_rows()}"


def _either(condition: str, times: int) -> str:
    """Join a condition with itself by OR, in halves: SQLite refuses expressions that are nested 1,000 deep."""
    half = times // 2
    return f"({condition})" if times < 2 else f"({_either(condition, half)} OR {_either(condition, times - half)})"
