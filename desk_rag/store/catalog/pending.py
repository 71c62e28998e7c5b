"""Chunks that wait for a vector or a KV, their texts checked: nothing is made from a damaged text."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from desk_rag.documents.chunking import ChunkId
from desk_rag.store.catalog.checksums import chunk_is_sound
from desk_rag.store.catalog.faults import Faults
from desk_rag.store.catalog.paths import from_blob
from desk_rag.store.types import PendingChunk


def pending_chunks(
    connection: sqlite3.Connection, statement: str, values: Sequence[object], limit: int, faults: Faults
) -> list[PendingChunk]:
    """Run a query for (chunk id, text, path) that ends in a limit; return at most `limit` sound chunks.

    Damaged ones are noted and passed over.
    """
    most = limit
    while True:
        rows = connection.execute(statement, (*values, most)).fetchall()
        sound = [row for row in rows if chunk_is_sound(row[0], row[1]) and isinstance(row[2], bytes)]
        if len(sound) >= limit or len(rows) < most:
            break
        most *= 2
    if len(sound) < len(rows):
        faults.add("Texts that wait for a vector or chunk KV are damaged.")
    return [PendingChunk(ChunkId(chunk_id), text, from_blob(path)) for chunk_id, text, path in sound[:limit]]
