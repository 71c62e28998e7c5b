"""Store the vectors of chunks in the catalog and search them by cosine.

The rows are authoritative. In memory the newest vectors are the *tail*, searched exactly. Above a threshold the others
are the *head*, a graph index that absorbs the tail in steps, so that no search waits for a whole build. If the index
file is missing, damaged or outdated, or hnswlib is not installed, the tail is longer.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from desk_rag.documents.chunking import ChunkId
from desk_rag.errors import StoreError
from desk_rag.owned_folder import proven
from desk_rag.store.catalog.catalog import count_change
from desk_rag.store.catalog.checksums import vector_sum
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import Scope
from desk_rag.store.catalog.rows import pending_chunks
from desk_rag.store.layout import Layout
from desk_rag.store.types import Hit, PendingChunk
from desk_rag.store.vectors.index import (
    ExactIndex,
    HnswIndex,
    Matches,
    Vectors,
    approximate_search_available,
    saved_labels,
)
from desk_rag.store.vectors.tokens import Signs, TokenVectors, chunks_missing_in, put_signs

APPROXIMATE_FROM = 5_000
"""Number of vectors from which the graph pays for its memory."""
_ABSORB_PER_SEARCH = 200
_FEW_IN_SCOPE = 5_000
"""Chunks in scope up to which reading their vectors takes no longer than the graph."""
_WIDER = (4, 16)
"""Multiples of the wanted number that are looked for among all vectors, to find enough in scope."""
_ABSORB_PER_PUT = 2_000
_SAVE_AFTER = 5_000
_SAVE_SHARE = 10
"""A graph is written again once a tenth of it is new: of a million vectors it is a file of 1.7 GB."""
_ROWS_PER_READ = 10_000
_NUMBERS_PER_READ = 500
_NORM_TOLERANCE = 1e-3
_MAX_DIM = 1 << 16
_STRAY = "SELECT 1 FROM vectors WHERE embedder NOT IN (SELECT id FROM embedders) LIMIT 1"
_DAMAGED = "Vectors are damaged; the passages they belong to are found by their words alone."


@dataclass(slots=True)
class _EmbedderIndex:
    """One embedder's vectors in memory."""

    row: int
    tail: ExactIndex
    head: HnswIndex | None
    last_seq: int = 0
    removals: int = 0
    unsaved: int = 0


class VectorSearch:
    """The vector rows of a catalog and the indexes over them. Safe to call from several threads."""

    def __init__(self, database: Database, layout: Layout, *, writer: bool, threshold: int = APPROXIMATE_FROM) -> None:
        self._database = database
        self._layout = layout
        self._writer = writer
        self._threshold = threshold
        self._loaded: dict[str, _EmbedderIndex] = {}
        self._lock = threading.RLock()
        self.tokens = TokenVectors(database)

    def put(
        self,
        embedder: str,
        chunk_ids: Sequence[ChunkId],
        vectors: NDArray[np.float32],
        signs: Sequence[Signs] | None = None,
    ) -> None:
        """Store vectors float32 [N, dim], made unit length, and token vectors; leave out chunks that are gone."""
        assert signs is None or len(signs) == len(chunk_ids)
        assert vectors.ndim == 2 and len(vectors) == len(chunk_ids)
        if not len(vectors):
            return
        assert np.isfinite(vectors).all(), "a vector is not finite"
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = np.ascontiguousarray(vectors / np.maximum(norms, 1e-12), dtype="<f4")
        with self._database.write() as connection:
            row = _embedder(connection, embedder, unit.shape[1])
            for number, (chunk_id, vector) in enumerate(zip(chunk_ids, unit, strict=True)):
                chunk = connection.execute("SELECT id FROM chunks WHERE chunk_id = ?", (chunk_id,)).fetchone()
                if chunk is not None:
                    blob = vector.tobytes()
                    connection.execute(
                        "INSERT INTO vectors (embedder, chunk, vector, sum) VALUES (?, ?, ?, ?)"
                        " ON CONFLICT (embedder, chunk) DO NOTHING",
                        (row, chunk[0], blob, vector_sum(chunk[0], blob)),
                    )
                    if signs is not None:
                        put_signs(connection, row, chunk[0], signs[number])
            count_change(connection)
        if embedder not in self._loaded and self.count(embedder, ()) <= self._threshold:
            return  # nothing has been searched yet, and there is no graph to extend
        with self._lock:
            index = self._current(embedder)
            if index is not None:
                self._absorb(index, _ABSORB_PER_PUT)
                if index.head is not None and index.unsaved >= max(_SAVE_AFTER, len(index.head) // _SAVE_SHARE):
                    self._save(embedder, index)

    def search(self, embedder: str, vector: NDArray[np.float32], limit: int, under: Sequence[Path]) -> list[Hit]:
        """Return the chunks nearest to `vector` (float32 [dim]), best first."""
        question = np.asarray(vector, dtype=np.float32).reshape(-1)
        norm = float(np.linalg.norm(question))
        if limit < 1 or not np.isfinite(norm) or norm == 0.0:
            return []
        question = question / np.float32(norm)
        with self._lock:
            index = self._current(embedder)
            if index is None:
                return []
            self._absorb(index, _ABSORB_PER_SEARCH)
            if under and index.head is None:
                best = index.tail.search_within(question, limit, self._labels_under(index.row, under))
            elif under:
                best = self._search_scope(index, question, limit, under)
            else:
                best = index.tail.search(question, limit) + self._search_head(index, question, limit)
        nearest = dict(sorted(best, key=lambda item: (-item[1], item[0])))
        return self._hits(list(nearest.items())[:limit])

    def pending(self, embedder: str, limit: int, under: Sequence[Path] = ()) -> list[PendingChunk]:
        """Return chunks in scope without a vector of this embedder, most recent first."""
        scope = Scope(under)
        with self._database.read() as connection:
            statement = chunks_missing_in("vectors", scope)
            return pending_chunks(connection, statement, (embedder, *scope.values), limit, self._database.faults)

    def count(self, embedder: str, under: Sequence[Path]) -> int:
        """Return how many chunks in scope have a vector of this embedder."""
        scope = Scope(under)
        with self._database.read() as connection:
            count: int = connection.execute(
                "SELECT count(*) FROM vectors v JOIN embedders e ON e.id = v.embedder"
                f" WHERE e.name = ?{scope.and_chunk('v.chunk')}",
                (embedder, *scope.values),
            ).fetchone()[0]
        return count

    def fullest_embedder(self) -> str | None:
        """Return the embedder with most vectors, None before the first."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT e.name FROM vectors v JOIN embedders e ON e.id = v.embedder"
                " GROUP BY e.id ORDER BY count(*) DESC, e.id LIMIT 1"
            ).fetchone()
        return None if row is None else str(row[0])

    def forget_removed(self) -> None:
        """Overwrite the vectors of removed chunks in memory, and remove saved indexes that contain them."""
        with self._lock:
            for index in self._loaded.values():
                self._refresh(index)
        removed = False
        for name, saved in self._saved():
            labels = saved_labels(saved)
            if labels is None or not labels <= self._living_labels(name):
                for file in (saved, saved.with_suffix(".json")):
                    removed |= self._layout.home.remove(file, proven) is not None  # the row of the embedder names both
        if removed:
            self._layout.home.sync(self._layout.vectors)

    def save(self) -> None:
        """Save every graph index that changed."""
        with self._lock:
            for name, index in self._loaded.items():
                if index.head is not None and (index.unsaved or not self._file(name).exists()):
                    self._save(name, index)

    def _current(self, embedder: str) -> _EmbedderIndex | None:
        index = self._loaded.get(embedder)
        if index is None:
            with self._database.read() as connection:
                row = connection.execute("SELECT id, dim FROM embedders WHERE name = ?", (embedder,)).fetchone()
                stray = row is None and connection.execute(_STRAY).fetchone() is not None
            if stray or (row is not None and not (isinstance(row[1], int) and 0 < row[1] <= _MAX_DIM)):
                self._database.faults.add(_DAMAGED)
                return None
            if row is None:
                return None
            head = HnswIndex.load(self._file(embedder), row[1])
            index = self._loaded[embedder] = _EmbedderIndex(row[0], ExactIndex(row[1]), head, removals=-1)
        self._refresh(index)
        return index

    def _refresh(self, index: _EmbedderIndex) -> None:
        """Add rows that are new since the last call and drop those that were removed."""
        with self._database.snapshot() as connection:
            removals = connection.execute("SELECT removals FROM embedders WHERE id = ?", (index.row,)).fetchone()[0]
            if removals != index.removals:
                self._drop_removed(connection, index)
                index.removals = removals
            expected = None
            if not index.last_seq and index.head is not None:
                self._add_missing(connection, index, index.head)
                return
            if not index.last_seq:  # counted by the SQL index, which a damaged row does not change
                counting = "SELECT count(*) FROM vectors INDEXED BY sqlite_autoindex_vectors_1 WHERE embedder = ?"
                expected = connection.execute(counting, (index.row,)).fetchone()[0]
            count = 0
            newer = "SELECT seq, chunk, vector, sum FROM vectors NOT INDEXED WHERE embedder = ? AND seq > ?"
            while True:  # by the table itself: SQLite would go through all rows of the embedder in another order
                rows = connection.execute(
                    f"{newer} ORDER BY seq LIMIT ?", (index.row, index.last_seq, _ROWS_PER_READ)
                ).fetchall()
                if not rows:
                    break
                count += len(rows)
                index.last_seq = rows[-1][0]
                fresh = self._sound(rows, self._dim(connection, index.row))
                if fresh:
                    index.tail.add([seq for seq, _ in fresh], _matrix([blob for _, blob in fresh]))
        if expected is not None and count != expected:
            self._database.faults.add(_DAMAGED)

    def _add_missing(self, connection: sqlite3.Connection, index: _EmbedderIndex, head: HnswIndex) -> None:
        """Add the rows that a loaded graph lacks; of the others only the numbers are read, from their index."""
        statement = "SELECT seq FROM vectors INDEXED BY sqlite_autoindex_vectors_1 WHERE embedder = ?"
        seqs = [seq for (seq,) in connection.execute(statement, (index.row,))]
        missing = sorted(seq for seq in seqs if seq not in head)
        dim, count = self._dim(connection, index.row), 0
        for start in range(0, len(missing), _NUMBERS_PER_READ):
            batch = missing[start : start + _NUMBERS_PER_READ]
            rows = connection.execute(
                "SELECT seq, chunk, vector, sum FROM vectors WHERE embedder = ?"
                f" AND seq IN ({','.join('?' * len(batch))})",
                (index.row, *batch),
            ).fetchall()
            count += len(rows)
            if fresh := self._sound(rows, dim):
                index.tail.add([seq for seq, _ in fresh], _matrix([blob for _, blob in fresh]))
        index.last_seq = max(seqs, default=0)
        if count != len(missing):
            self._database.faults.add(_DAMAGED)

    def _sound(self, rows: Sequence[tuple[int, object, object, object]], dim: int) -> list[tuple[int, bytes]]:
        """Return (seq, vector) of the rows (seq, chunk row, vector, sum) that are sound; report damaged ones."""
        sound = [(seq, cast("bytes", v)) for seq, chunk, v, s in rows if vector_is_sound(chunk, v, s, dim)]
        if len(sound) < len(rows):
            self._database.faults.add(_DAMAGED)
        return sound

    def _drop_removed(self, connection: sqlite3.Connection, index: _EmbedderIndex) -> None:
        living = {seq for (seq,) in connection.execute("SELECT seq FROM vectors WHERE embedder = ?", (index.row,))}
        tail_labels, _ = index.tail.take(len(index.tail))
        index.tail.remove([label for label in tail_labels if label not in living])
        if index.head is not None:
            removed = [label for label in index.head.labels if label not in living]
            index.head.remove(removed)
            index.unsaved += len(removed)
            if index.head.mostly_dead:
                index.head, index.last_seq = None, 0
                index.tail = ExactIndex(self._dim(connection, index.row))

    def _absorb(self, index: _EmbedderIndex, limit: int) -> None:
        """Move vectors from the tail to the head once there are enough for a head."""
        if index.head is None:
            if len(index.tail) <= self._threshold or not approximate_search_available():
                return
            index.head = HnswIndex(self._dim_of(index))
        labels, vectors = index.tail.take(limit)
        if labels:
            index.head.add(labels, vectors)
            index.tail.remove(labels)
            index.unsaved += len(labels)

    def _search_head(self, index: _EmbedderIndex, question: Vectors, limit: int) -> Matches:
        if index.head is None:
            return []
        try:
            return index.head.search(question, limit)
        except RuntimeError:
            # The graph reaches fewer than `limit` vectors: search the rows, and build a new graph.
            best = self._search_rows(index.row, question, limit, ())
            index.head, index.last_seq, index.tail = None, 0, ExactIndex(len(question))
            return best

    def _search_scope(self, index: _EmbedderIndex, question: Vectors, limit: int, under: Sequence[Path]) -> Matches:
        """Take the best in scope of more than `limit` among all; if these are too few, search the scope exactly."""
        scope = Scope(under)
        few = f"SELECT count(*) FROM (SELECT 1 FROM {scope.chunk_rows()} LIMIT {_FEW_IN_SCOPE + 1})"
        with self._database.read() as connection:
            is_small = connection.execute(few, scope.values).fetchone()[0] <= _FEW_IN_SCOPE
            for wider in () if is_small else _WIDER:
                best = index.tail.search(question, wider * limit) + self._search_head(index, question, wider * limit)
                nearest = dict(sorted(best, key=lambda item: (-item[1], item[0]))[: wider * limit])
                inside = f"seq IN ({','.join('?' * len(nearest))}) AND {scope.holds_chunk('vectors.chunk')}"
                rows = connection.execute(f"SELECT seq FROM vectors WHERE {inside}", (*nearest, *scope.values))
                if len(labels := {seq for (seq,) in rows}) >= limit:
                    return [(label, score) for label, score in nearest.items() if label in labels][:limit]
        return self._search_rows(index.row, question, limit, under)

    def _search_rows(self, row: int, question: Vectors, limit: int, under: Sequence[Path]) -> Matches:
        """Search the rows in scope exactly, reading them from the catalog in batches."""
        scope = Scope(under)
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT seq, chunk, vector, sum FROM vectors WHERE embedder = ?{scope.and_chunk('chunk')}",
                (row, *scope.values),
            )
            best: Matches = []
            while batch := rows.fetchmany(_ROWS_PER_READ):
                sound = self._sound(batch, len(question))
                exact = ExactIndex(len(question))
                exact.add([seq for seq, _ in sound], _matrix([blob for _, blob in sound]))
                best += exact.search(question, limit)
        return sorted(best, key=lambda item: (-item[1], item[0]))[:limit]

    def _hits(self, best: Matches) -> list[Hit]:
        marks = ",".join("?" * len(best))
        with self._database.read() as connection:
            names = dict(
                connection.execute(
                    "SELECT v.seq, c.chunk_id FROM vectors v LEFT JOIN chunks c ON c.id = v.chunk"
                    f" WHERE v.seq IN ({marks})",
                    [label for label, _ in best],
                )
            )
        # A label without a row has just been removed; a row without a chunk is damage.
        if not all(isinstance(name, str) for name in names.values()):
            self._database.faults.add("Vectors belong to passages that do not exist.")
        return [Hit(ChunkId(names[label]), score) for label, score in best if isinstance(names.get(label), str)]

    def _labels_under(self, embedder_row: int, under: Sequence[Path]) -> list[int]:
        scope = Scope(under)
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT seq FROM vectors WHERE embedder = ?{scope.and_chunk('chunk')}", (embedder_row, *scope.values)
            ).fetchall()
        return [seq for (seq,) in rows]

    def _living_labels(self, embedder: str) -> set[int]:
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT v.seq FROM vectors v JOIN embedders e ON e.id = v.embedder WHERE e.name = ?", (embedder,)
            ).fetchall()
        return {seq for (seq,) in rows}

    def _saved(self) -> list[tuple[str, Path]]:
        with self._database.read() as connection:
            known = connection.execute("SELECT name FROM embedders").fetchall()
        return [(name, self._file(name)) for (name,) in known if self._file(name).exists()]

    def _save(self, embedder: str, index: _EmbedderIndex) -> None:
        if self._writer and index.head is not None:
            with suppress(ValueError, OSError, RuntimeError, StoreError):  # not saved; the next start builds it again
                index.head.save(self._file(embedder), self._layout.home)
            index.unsaved = 0

    def _file(self, embedder: str) -> Path:
        return self._layout.vectors / f"{hashlib.blake2b(embedder.encode(), digest_size=8).hexdigest()}.hnsw"

    def _dim_of(self, index: _EmbedderIndex) -> int:
        with self._database.read() as connection:
            return self._dim(connection, index.row)

    def _dim(self, connection: sqlite3.Connection, row: int) -> int:
        return int(connection.execute("SELECT dim FROM embedders WHERE id = ?", (row,)).fetchone()[0])


def vector_is_sound(chunk: object, vector: object, checksum: object, dim: int) -> bool:
    """Return whether a vector is as written; without a checksum (schema 1) only its length is checked."""
    if not isinstance(chunk, int) or not isinstance(vector, bytes) or len(vector) != 4 * dim:
        return False
    if checksum is not None:
        return checksum == vector_sum(chunk, vector)
    return bool(abs(float(np.linalg.norm(np.frombuffer(vector, dtype="<f4"))) - 1.0) < _NORM_TOLERANCE)


def _matrix(blobs: Sequence[bytes]) -> Vectors:
    return np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), -1).astype(np.float32, copy=False)


def _embedder(connection: sqlite3.Connection, name: str, dim: int) -> int:
    connection.execute("INSERT OR IGNORE INTO embedders (name, dim) VALUES (?, ?)", (name, dim))
    row, known = connection.execute("SELECT id, dim FROM embedders WHERE name = ?", (name,)).fetchone()
    assert known == dim, f"embedder {name!r} made vectors of {known} numbers before and of {dim} now"
    return int(row)
