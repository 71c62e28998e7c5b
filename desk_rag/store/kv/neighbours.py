"""List the KV files of chunks, or of the chunks next to them in their documents.

Prefetching needs no token ids this way, since the catalog alone names the files. An outdated entry costs a read, never
a wrong answer, because a file's key is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from desk_rag.documents.chunking import ChunkId
from desk_rag.store.catalog.catalog import KVName
from desk_rag.store.catalog.database import Database
from desk_rag.store.layout import is_name

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
    """Return the KV files of these chunks, or of their neighbours (the following one first), each once.

    In the order of `chunk_ids`; chunks without KV in the namespace are skipped. Raises StoreError.
    """
    query = _BESIDE if beside else _OF_CHUNKS
    names: dict[str, None] = {}  # an ordered set
    with database.read() as connection:
        own = {
            tokens
            for chunk_id in (chunk_ids if beside else ())
            for (tokens,) in connection.execute(_OF_CHUNKS, (chunk_id, namespace))
        }
        for chunk_id in chunk_ids:
            for (tokens,) in connection.execute(query, (chunk_id, namespace)):
                if tokens not in own and is_name(tokens):
                    names[tokens] = None
    return [(namespace, tokens) for tokens in names]
