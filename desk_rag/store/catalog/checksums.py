"""Checksums over the rows that an answer shows: documents, places and vectors.

A chunk needs none, because its id is the hash of its text. Each sum covers the row's own key and the keys of the rows
it refers to, so that a row that ended up in another place of the file is found out, too.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence

import xxhash

DOCUMENT = "id, path, title, digest, size, mtime_ns, inode, parser, state, reason, indexed_at, num_places, ctime_ns"
"""Columns of `documents` that its sum covers, in order; all but the sum."""
PLACE = "heading, page_start, page_end, line_start, line_end, parts"
"""Columns of `places` that say where a chunk stands."""
_SOME = 1_000


def chunk_is_sound(chunk_id: object, text: object) -> bool:
    """True if `chunk_id` is the hash of `text`."""
    if not isinstance(text, str):
        return False
    try:
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() == chunk_id
    except UnicodeEncodeError:
        return False


def document_sum(row: Sequence[object]) -> str:
    """Sum of the columns `DOCUMENT` of one row.

    Rows of before step 6 have no change time, and their sum covers none.
    """
    *columns, ctime_ns = row
    return _sum((*columns, *([ctime_ns] if ctime_ns != 0 else [])))


def place_sum(document: object, ordinal: object, chunk_id: object, place: Sequence[object]) -> str:
    """Sum of one place: row of its document, ordinal, id of its chunk, and the columns `PLACE`.

    Places of before step 5 have no parts, and their sum covers none.
    """
    *columns, parts = place
    return _sum((document, ordinal, chunk_id, *columns, *([parts] if parts != "" else [])))


def vector_sum(chunk: int, vector: bytes) -> str:
    """Sum of one vector and the row of the chunk that it stands for."""
    return xxhash.xxh3_64_hexdigest(vector, seed=chunk)


def seal(connection: sqlite3.Connection, document: int, *, count: bool = False) -> None:
    """Write the sum of one document's row, which must just have been written or checked.

    `count`: its places were written, too.
    """
    if count:
        connection.execute(
            "UPDATE documents SET num_places = (SELECT count(*) FROM places WHERE document = ?) WHERE id = ?",
            (document, document),
        )
    row = connection.execute(f"SELECT {DOCUMENT} FROM documents WHERE id = ?", (document,)).fetchone()
    connection.execute("UPDATE documents SET sum = ? WHERE id = ?", (document_sum(row), document))


def is_sealed(connection: sqlite3.Connection, document: int) -> bool:
    """True if the row of a document is as it was written."""
    row = connection.execute(f"SELECT {DOCUMENT}, sum FROM documents WHERE id = ?", (document,)).fetchone()
    return row is not None and document_sum(row[:-1]) == row[-1]


def seal_everything(connection: sqlite3.Connection) -> None:
    """Compute the sums of documents and places of a catalog that has none; vectors get theirs when they are made."""
    last = (-1, -1)
    while True:
        rows = connection.execute(
            "SELECT p.document, p.ordinal, c.chunk_id, p.heading, p.page_start, p.page_end, p.line_start, p.line_end"
            " FROM places p JOIN chunks c ON c.id = p.chunk WHERE (p.document, p.ordinal) > (?, ?)"
            " ORDER BY p.document, p.ordinal LIMIT ?",
            (*last, _SOME),
        ).fetchall()
        if not rows:
            break
        sums = [(place_sum(row[0], row[1], row[2], (*row[3:], "")), row[0], row[1]) for row in rows]
        connection.executemany("UPDATE places SET sum = ? WHERE document = ? AND ordinal = ?", sums)
        last = rows[-1][0], rows[-1][1]
    for (document,) in connection.execute("SELECT id FROM documents").fetchall():
        seal(connection, document, count=True)


def _sum(values: Sequence[object]) -> str:
    return xxhash.xxh3_64_hexdigest(repr(tuple(values)).encode("utf-8", "backslashreplace"))
