"""Hand chunk KV and vectors to another store, and take them from one.

A store made by an export is a data directory like any other, and says in `state` that it is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.chunking import ChunkId
from desk_rag.store.catalog.catalog import KVName
from desk_rag.store.catalog.checksums import chunk_is_sound
from desk_rag.store.catalog.coordination import SharedRows
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import Scope
from desk_rag.store.kv.files import KVFiles
from desk_rag.store.layout import Layout, is_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EXPORT = "export"
"""Row of `state` that marks a store as an export."""


@dataclass(frozen=True, slots=True)
class StoredKV:
    """A KV file on disk and the chunks that it belongs to."""

    name: KVName
    file: Path
    size: int
    chunk_ids: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True)
class ChunkVectors:
    """Vectors of some chunks by one embedder."""

    embedder: str
    chunk_ids: tuple[ChunkId, ...]
    vectors: NDArray[np.float32]


class Transfer:
    """Rows and files that move between two stores. Only the writer may take chunk KV or mark an export."""

    def __init__(self, layout: Layout, database: Database, kv: KVFiles, shared: SharedRows) -> None:
        self._layout, self._database, self._kv, self._shared = layout, database, kv, shared

    def mark_export(self) -> None:
        """Record that this store was made by an export."""
        with self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO state VALUES (?, 1)", (_EXPORT,))

    def is_export(self) -> bool:
        """Return whether this store was made by an export."""
        with self._database.read() as connection:
            return connection.execute("SELECT 1 FROM state WHERE name = ?", (_EXPORT,)).fetchone() is not None

    def stored(self, under: Sequence[Path] = ()) -> list[StoredKV]:
        """Return the KV files of chunks in scope, of all models, the most valuable first."""
        scope = Scope(under)
        query = (
            "SELECT kv.id, n.name, kv.tokens, kv.bytes, c.chunk_id FROM kv JOIN namespaces n ON n.id = kv.namespace"
            " JOIN kv_chunks k ON k.kv = kv.id JOIN chunks c ON c.chunk_id = k.chunk_id"
            f" WHERE kv.id NOT IN (SELECT kv FROM bin){scope.and_chunk('c.id')} ORDER BY kv.rank DESC, kv.id"
        )
        with self._database.read() as connection:
            rows = connection.execute(query, scope.values).fetchall()
        chunks: dict[int, list[ChunkId]] = {}
        for row, _, _, _, chunk_id in rows:
            chunks.setdefault(row, []).append(ChunkId(chunk_id))
        files: dict[int, StoredKV] = {}
        for row, namespace, tokens, size, _ in rows:
            if row not in files and is_name(namespace) and is_name(tokens):
                path = self._layout.kv_file(namespace, tokens)
                files[row] = StoredKV((namespace, tokens), path, size, tuple(chunks[row]))
        return list(files.values())

    def chunks_in(self, under: Sequence[Path] = ()) -> set[ChunkId]:
        """Return the ids of the chunks in scope."""
        scope = Scope(under)
        with self._database.read() as connection:
            rows = connection.execute(f"SELECT chunk_id FROM chunks WHERE 1{scope.and_chunk('id')}", scope.values)
            return {ChunkId(chunk_id) for (chunk_id,) in rows}

    def take_uses(self, source: Transfer, chunk_ids: Iterable[ChunkId]) -> None:
        """Add the retrievals of chunks that another store has counted; they decide what is kept when room is short."""
        with source._database.read() as connection:
            query = "SELECT uses FROM chunks WHERE chunk_id = ?"
            rows = {chunk_id: connection.execute(query, (chunk_id,)).fetchone() for chunk_id in chunk_ids}
        self._shared.note_use({chunk_id: row[0] for chunk_id, row in rows.items() if row is not None and row[0]})

    def vectors_of(self, chunk_ids: Iterable[ChunkId]) -> list[ChunkVectors]:
        """Return the sound vectors of these chunks, by embedder."""
        import numpy as np

        from desk_rag.store.vectors.search import vector_is_sound

        query = (
            "SELECT e.name, e.dim, v.chunk, v.vector, v.sum, c.text FROM chunks c JOIN vectors v ON v.chunk = c.id"
            " JOIN embedders e ON e.id = v.embedder WHERE c.chunk_id = ?"
        )
        by_embedder: dict[str, list[tuple[ChunkId, NDArray[np.float32]]]] = {}
        with self._database.read() as connection:
            for chunk_id in chunk_ids:
                for name, dim, row, blob, checksum, text in connection.execute(query, (chunk_id,)):
                    if chunk_is_sound(chunk_id, text) and vector_is_sound(row, blob, checksum, dim):
                        by_embedder.setdefault(name, []).append((chunk_id, np.frombuffer(blob, dtype="<f4")))
        return [
            ChunkVectors(name, tuple(chunk_id for chunk_id, _ in pairs), np.stack([vector for _, vector in pairs]))
            for name, pairs in by_embedder.items()
        ]

    def take(self, source: StoredKV, chunk_ids: Sequence[ChunkId], *, always: bool = False) -> int | None:
        """Copy a KV file of another store for these chunks; return the bytes written, 0 if it was here already.

        None if there is no room for it beside what is worth more; with `always` only the drive's room counts. Raises
        CorruptKV, UnknownFormat or OSError for a file that must not be used; StoreFull as `Store.put_kv` does.
        """
        before = self._kv.written_bytes
        is_on_disk = self._kv.copy(source.name, source.file, chunk_ids, always=always)
        written = self._kv.written_bytes - before
        self._shared.add_written(written)
        return written if is_on_disk else None

    def model_records(self) -> list[Path]:
        """Return the files in which the quality and the probe of each model are kept."""
        return sorted((self._layout.root / "models").glob("*.safetensors"))

    def take_model_record(self, file: Path) -> None:
        """Copy the record of a model from another store unless there is one. Raises OSError."""
        own = self._layout.root / "models" / file.name
        if not own.exists():
            self._layout.home.make_directory(own.parent)
            self._layout.home.write(own, file.read_bytes())
