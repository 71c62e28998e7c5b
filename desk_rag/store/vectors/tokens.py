"""Token vectors of chunks in the catalog: signs of each word piece's vector, for late interaction.

They lie in rows of their own, because a question reads those of a hundred chunks and an index the vectors of all. Those
that are missing or damaged are used for nothing; their chunks keep the rank that they have without them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from desk_rag.documents.chunking import ChunkId
from desk_rag.store.catalog.checksums import vector_sum
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.deletion_rows import stays
from desk_rag.store.catalog.paths import Scope
from desk_rag.store.catalog.rows import pending_chunks
from desk_rag.store.types import PendingChunk

Signs = NDArray[np.uint8]
"""Bits of the signs, [word pieces, bytes per vector]."""
_DAMAGED = "Token vectors are damaged; the passages they belong to are ranked without them."


def put_signs(connection: sqlite3.Connection, embedder: int, chunk: int, signs: Signs) -> None:
    """Write the token vectors of a chunk (rows of embedder and chunk) unless it has some."""
    blob = signs.tobytes()
    connection.execute(
        "INSERT INTO token_vectors (embedder, chunk, bytes, signs, sum) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (chunk, embedder) DO NOTHING",
        (embedder, chunk, len(blob), blob, vector_sum(chunk, blob)),
    )


class TokenVectors:
    """Reads the token vectors of a catalog. Safe to call from several threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, embedder: str, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, Signs]:
        """Return the token vectors of those chunks that have sound ones."""
        marks = ",".join("?" * len(chunk_ids))
        with self._database.read() as connection:
            rows = connection.execute(
                # Cross joins keep this order: SQLite would read all rows of an embedder.
                "SELECT c.chunk_id, t.chunk, t.signs, t.sum, t.bytes, e.dim FROM embedders e CROSS JOIN chunks c"
                " CROSS JOIN token_vectors t ON t.chunk = c.id AND t.embedder = e.id"
                f" WHERE e.name = ? AND c.chunk_id IN ({marks})",
                (embedder, *chunk_ids),
            ).fetchall()
        sound = {}
        for chunk_id, chunk, blob, checksum, size, dim in rows:
            if not signs_are_sound(chunk, blob, checksum, size, dim):
                self._database.faults.add(_DAMAGED)
            elif blob:
                sound[ChunkId(chunk_id)] = np.frombuffer(blob, dtype=np.uint8).reshape(-1, _width(dim))
        return sound

    def pending(self, embedder: str, limit: int, under: Sequence[Path] = ()) -> list[PendingChunk]:
        """Return chunks in scope without token vectors of this embedder, most recent first."""
        scope = Scope(under)
        with self._database.read() as connection:
            statement = chunks_missing_in("token_vectors", scope)
            return pending_chunks(connection, statement, (embedder, *scope.values), limit, self._database.faults)

    def count(self, embedder: str, under: Sequence[Path]) -> tuple[int, int]:
        """Return how many chunks in scope have token vectors of this embedder, and the bytes of these."""
        scope = Scope(under)
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT count(*), coalesce(sum(bytes), 0) FROM token_vectors"
                f" WHERE embedder = (SELECT id FROM embedders WHERE name = ?){scope.and_chunk('chunk')}",
                (embedder, *scope.values),
            ).fetchone()
        return int(row[0]), int(row[1])


def chunks_missing_in(table: str, scope: Scope) -> str:
    """Return the query for (chunk id, text, path) of chunks without a row of an embedder in `table`, with a limit."""
    return (
        "SELECT c.chunk_id, c.text, (SELECT d.path FROM places p JOIN documents d ON d.id = p.document"
        f" WHERE p.chunk = c.id ORDER BY d.path LIMIT 1) FROM (SELECT id FROM chunks WHERE {_lacks(table)}"
        f"{scope.and_chunk('id')} ORDER BY recent DESC, id LIMIT ?) o JOIN chunks c ON c.id = o.id"
        " ORDER BY c.recent DESC, c.id"
    )


def number_missing_in(table: str, scope: Scope) -> str:
    """Return the query for the number of those chunks."""
    return f"SELECT count(*) FROM chunks WHERE {_lacks(table)}{scope.and_chunk('id')}"


def _lacks(table: str) -> str:
    return (
        f"NOT EXISTS (SELECT 1 FROM {table} WHERE chunk = chunks.id"
        f" AND embedder = (SELECT id FROM embedders WHERE name = ?)) AND {stays('chunks.id')}"
    )


def signs_are_sound(chunk: object, signs: object, checksum: object, size: object, dim: object) -> bool:
    """Return whether the token vectors of a row are as written."""
    if not (isinstance(chunk, int) and isinstance(signs, bytes) and isinstance(dim, int) and dim > 0):
        return False
    return len(signs) == size and len(signs) % _width(dim) == 0 and checksum == vector_sum(chunk, signs)


def _width(dim: int) -> int:
    return -(-dim // 8)
