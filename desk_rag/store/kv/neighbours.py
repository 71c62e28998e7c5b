"""Which KV files belong to chunks, and to those beside them in their documents. Knows rows; opens no file.

Guesses need no token ids this way: what may be asked for next is named by the catalog alone. A guess that is out of
date costs a read, never a wrong answer, because a file is asked for its key again before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from desk_rag.documents.chunking import ChunkId
from desk_rag.store.catalog.catalog import KVName
from desk_rag.store.catalog.database import Database

_OF_CHUNKS = (
    "SELECT kv.tokens FROM kv_chunks k JOIN kv ON kv.id = k.kv JOIN namespaces n ON n.id = kv.namespace"
    " WHERE k.chunk_id = ? AND n.name = ? ORDER BY kv.id"
)
_BESIDE = (
    "SELECT DISTINCT kv.tokens FROM chunks c JOIN places p ON p.chunk = c.id"
    " JOIN places q ON q.document = p.document AND q.ordinal IN (p.ordinal + 1, p.ordinal - 1)"
    " JOIN chunks b ON b.id = q.chunk JOIN kv_chunks k ON k.chunk_id = b.chunk_id"
    " JOIN kv ON kv.id = k.kv JOIN namespaces n ON n.id = kv.namespace"
    " WHERE c.chunk_id = ? AND n.name = ? ORDER BY q.ordinal DESC"
)


def kv_of(database: Database, namespace: str, chunk_ids: Sequence[ChunkId], *, beside: bool) -> list[KVName]:
    """Names of the KV files of these chunks, or of their neighbours (the following one first), each once.

    In the order of `chunk_ids`; chunks without KV in the namespace are passed over. Raises StoreError.
    """
    query = _BESIDE if beside else _OF_CHUNKS
    found: dict[str, None] = {}
    with database.read() as connection:
        own = {
            tokens
            for chunk_id in (chunk_ids if beside else ())
            for (tokens,) in connection.execute(_OF_CHUNKS, (chunk_id, namespace))
        }
        for chunk_id in chunk_ids:
            for (tokens,) in connection.execute(query, (chunk_id, namespace)):
                if tokens not in own:
                    found[tokens] = None
    return [(namespace, tokens) for tokens in found]
