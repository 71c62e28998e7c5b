"""Vectors of chunks, kept in step with the catalog and searched by cosine. Knows rows and indexes; embeds nothing.

The rows are the truth. In memory the newest vectors are the *tail*, searched exactly; above a threshold the others are
the *head*, a graph index that takes over the tail piece by piece, so that no search ever waits for a whole build. A
missing, damaged or outdated index file, or no hnswlib at all, only means a longer tail.
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
    Found,
    HnswIndex,
    Vectors,
    approximate_search_available,
    saved_labels,
)

APPROXIMATE_FROM = 5_000
"""Vectors from which the graph is worth its memory; below, exact search takes about a millisecond."""
_ABSORB_PER_SEARCH = 200
_ABSORB_PER_PUT = 2_000
_SAVE_AFTER = 5_000
_READ_AT_ONCE = 10_000
_UNIT_WITHIN = 1e-3
_MOST_NUMBERS = 1 << 16
_STRAY = "SELECT 1 FROM vectors WHERE embedder NOT IN (SELECT id FROM embedders) LIMIT 1"
_DAMAGED = "Vectors are damaged; what they stand for is found by its words alone."


@dataclass(slots=True)
class _Loaded:
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
        self._loaded: dict[str, _Loaded] = {}
        self._lock = threading.RLock()

    def put(self, embedder: str, chunk_ids: Sequence[ChunkId], vectors: NDArray[np.float32]) -> None:
        """Store vectors float32 [N, dim], made unit length; those of chunks that are gone are dropped."""
        assert vectors.ndim == 2 and len(vectors) == len(chunk_ids)
        if not len(vectors):
            return
        assert np.isfinite(vectors).all(), "a vector holds something that is not a number"
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = np.ascontiguousarray(vectors / np.maximum(norms, 1e-12), dtype="<f4")
        with self._database.write() as connection:
            row = _embedder(connection, embedder, unit.shape[1])
            for chunk_id, vector in zip(chunk_ids, unit, strict=True):
                chunk = connection.execute("SELECT id FROM chunks WHERE chunk_id = ?", (chunk_id,)).fetchone()
                if chunk is not None:
                    blob = vector.tobytes()
                    connection.execute(
                        "INSERT INTO vectors (embedder, chunk, vector, sum) VALUES (?, ?, ?, ?)"
                        " ON CONFLICT (embedder, chunk) DO NOTHING",
                        (row, chunk[0], blob, vector_sum(chunk[0], blob)),
                    )
            count_change(connection)
        if embedder not in self._loaded and self.count(embedder, ()) <= self._threshold:
            return  # nobody has searched yet, and there is no graph to keep up
        with self._lock:
            found = self._current(embedder)
            if found is not None:
                self._absorb(found, _ABSORB_PER_PUT)
                if found.head is not None and found.unsaved >= _SAVE_AFTER:
                    self._save(embedder, found)

    def search(self, embedder: str, vector: NDArray[np.float32], limit: int, under: Sequence[Path]) -> list[Hit]:
        """Return the chunks nearest to `vector` (float32 [dim]), best first; exact where `under` narrows."""
        question = np.asarray(vector, dtype=np.float32).reshape(-1)
        norm = float(np.linalg.norm(question))
        if limit < 1 or not np.isfinite(norm) or norm == 0.0:
            return []
        question = question / np.float32(norm)
        with self._lock:
            found = self._current(embedder)
            if found is None:
                return []
            self._absorb(found, _ABSORB_PER_SEARCH)
            if under and found.head is None:
                best = found.tail.search_within(question, limit, self._labels_under(found.row, under))
            elif under:
                best = self._search_rows(found.row, question, limit, under)
            else:
                best = found.tail.search(question, limit) + self._search_head(found, question, limit)
        nearest = dict(sorted(best, key=lambda item: (-item[1], item[0])))
        return self._hits(list(nearest.items())[:limit])

    def pending(self, embedder: str, limit: int) -> list[PendingChunk]:
        """Return chunks without a vector of this embedder, most recent first."""
        with self._database.read() as connection:
            statement = (
                "SELECT c.chunk_id, c.text, (SELECT d.path FROM places p JOIN documents d ON d.id = p.document"
                " WHERE p.chunk = c.id ORDER BY d.path LIMIT 1) FROM (SELECT id FROM chunks WHERE NOT EXISTS ("
                "  SELECT 1 FROM vectors WHERE chunk = chunks.id"
                "  AND embedder = (SELECT id FROM embedders WHERE name = ?)) ORDER BY recent DESC, id LIMIT ?) o"
                " JOIN chunks c ON c.id = o.id ORDER BY c.recent DESC, c.id"
            )
            return pending_chunks(connection, statement, (embedder,), limit, self._database.faults)

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
        """After chunks were removed: overwrite their vectors in memory and remove saved indexes that hold them."""
        with self._lock:
            for found in self._loaded.values():
                self._refresh(found)
        removed = False
        for name, saved in self._saved():
            labels = saved_labels(saved)
            if labels is None or not labels <= self._living_labels(name):
                for file in (saved, saved.with_suffix(".json")):
                    removed |= self._layout.home.remove(file, proven) is not None  # its embedder's row names both
        if removed:
            self._layout.home.sync(self._layout.vectors)

    def save(self) -> None:
        """Save every graph index that changed."""
        with self._lock:
            for name, found in self._loaded.items():
                if found.head is not None and (found.unsaved or not self._file(name).exists()):
                    self._save(name, found)

    def _current(self, embedder: str) -> _Loaded | None:
        found = self._loaded.get(embedder)
        if found is None:
            with self._database.read() as connection:
                row = connection.execute("SELECT id, dim FROM embedders WHERE name = ?", (embedder,)).fetchone()
                stray = row is None and connection.execute(_STRAY).fetchone() is not None
            if stray or (row is not None and not (isinstance(row[1], int) and 0 < row[1] <= _MOST_NUMBERS)):
                self._database.faults.add(_DAMAGED)
                return None
            if row is None:
                return None
            head = HnswIndex.load(self._file(embedder), row[1])
            found = self._loaded[embedder] = _Loaded(row[0], ExactIndex(row[1]), head, removals=-1)
        self._refresh(found)
        return found

    def _refresh(self, found: _Loaded) -> None:
        """Take in rows that are new since the last look, drop what was removed."""
        with self._database.snapshot() as connection:
            removals = connection.execute("SELECT removals FROM embedders WHERE id = ?", (found.row,)).fetchone()[0]
            if removals != found.removals:
                self._drop_removed(connection, found)
                found.removals = removals
            expected = None
            if not found.last_seq:  # by their index, which a damaged row does not change
                counting = "SELECT count(*) FROM vectors INDEXED BY sqlite_autoindex_vectors_1 WHERE embedder = ?"
                expected = connection.execute(counting, (found.row,)).fetchone()[0]
            count = 0
            while True:
                rows = connection.execute(
                    "SELECT seq, chunk, vector, sum FROM vectors WHERE embedder = ? AND seq > ? ORDER BY seq LIMIT ?",
                    (found.row, found.last_seq, _READ_AT_ONCE),
                ).fetchall()
                if not rows:
                    break
                count += len(rows)
                found.last_seq = rows[-1][0]
                rows = [row for row in rows if found.head is None or row[0] not in found.head]
                fresh = self._sound(rows, self._dim(connection, found.row))
                if fresh:
                    found.tail.add([seq for seq, _ in fresh], _matrix([blob for _, blob in fresh]))
        if expected is not None and count != expected:
            self._database.faults.add(_DAMAGED)

    def _sound(self, rows: Sequence[tuple[int, object, object, object]], dim: int) -> list[tuple[int, bytes]]:
        """Those of (seq, chunk row, vector, sum) that are as they were written; damaged ones are noted."""
        sound = [(seq, cast("bytes", v)) for seq, chunk, v, s in rows if vector_is_sound(chunk, v, s, dim)]
        if len(sound) < len(rows):
            self._database.faults.add(_DAMAGED)
        return sound

    def _drop_removed(self, connection: sqlite3.Connection, found: _Loaded) -> None:
        living = {seq for (seq,) in connection.execute("SELECT seq FROM vectors WHERE embedder = ?", (found.row,))}
        tail_labels, _ = found.tail.take(len(found.tail))
        found.tail.remove([label for label in tail_labels if label not in living])
        if found.head is not None:
            gone = [label for label in found.head.labels if label not in living]
            found.head.remove(gone)
            found.unsaved += len(gone)
            if found.head.mostly_dead:
                found.head, found.last_seq = None, 0
                found.tail = ExactIndex(self._dim(connection, found.row))

    def _absorb(self, found: _Loaded, limit: int) -> None:
        """Move vectors from the tail to the head, once there are enough of them for a head."""
        if found.head is None:
            if len(found.tail) <= self._threshold or not approximate_search_available():
                return
            found.head = HnswIndex(self._dim_of(found))
        labels, vectors = found.tail.take(limit)
        if labels:
            found.head.add(labels, vectors)
            found.tail.remove(labels)
            found.unsaved += len(labels)

    def _search_head(self, found: _Loaded, question: Vectors, limit: int) -> Found:
        if found.head is None:
            return []
        try:
            return found.head.search(question, limit)
        except RuntimeError:
            # The graph reaches fewer than `limit` vectors. The rows still answer; a new graph follows.
            best = self._search_rows(found.row, question, limit, ())
            found.head, found.last_seq, found.tail = None, 0, ExactIndex(len(question))
            return best

    def _search_rows(self, row: int, question: Vectors, limit: int, under: Sequence[Path]) -> Found:
        """Search the rows in scope exactly, reading them from the catalog a part at a time."""
        scope = Scope(under)
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT seq, chunk, vector, sum FROM vectors WHERE embedder = ?{scope.and_chunk('chunk')}",
                (row, *scope.values),
            )
            best: Found = []
            while read := rows.fetchmany(_READ_AT_ONCE):
                some = self._sound(read, len(question))
                part = ExactIndex(len(question))
                part.add([seq for seq, _ in some], _matrix([blob for _, blob in some]))
                best += part.search(question, limit)
        return sorted(best, key=lambda item: (-item[1], item[0]))[:limit]

    def _hits(self, best: Found) -> list[Hit]:
        marks = ",".join("?" * len(best))
        with self._database.read() as connection:
            names = dict(
                connection.execute(
                    "SELECT v.seq, c.chunk_id FROM vectors v LEFT JOIN chunks c ON c.id = v.chunk"
                    f" WHERE v.seq IN ({marks})",
                    [label for label, _ in best],
                )
            )
        # A label without a row was removed meanwhile; a row without a chunk cannot be.
        if not all(isinstance(name, str) for name in names.values()):
            self._database.faults.add("Vectors stand for passages that do not exist.")
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

    def _save(self, embedder: str, found: _Loaded) -> None:
        if self._writer and found.head is not None:
            with suppress(ValueError, OSError, RuntimeError, StoreError):  # not saved: the next start builds it again
                found.head.save(self._file(embedder), self._layout.home)
            found.unsaved = 0

    def _file(self, embedder: str) -> Path:
        return self._layout.vectors / f"{hashlib.blake2b(embedder.encode(), digest_size=8).hexdigest()}.hnsw"

    def _dim_of(self, found: _Loaded) -> int:
        with self._database.read() as connection:
            return self._dim(connection, found.row)

    def _dim(self, connection: sqlite3.Connection, row: int) -> int:
        return int(connection.execute("SELECT dim FROM embedders WHERE id = ?", (row,)).fetchone()[0])


def vector_is_sound(chunk: object, vector: object, checksum: object, dim: int) -> bool:
    """True for a vector as it was written; one from before there were checksums is asked for its length alone."""
    if not isinstance(chunk, int) or not isinstance(vector, bytes) or len(vector) != 4 * dim:
        return False
    if checksum is not None:
        return checksum == vector_sum(chunk, vector)
    return bool(abs(float(np.linalg.norm(np.frombuffer(vector, dtype="<f4"))) - 1.0) < _UNIT_WITHIN)


def _matrix(blobs: Sequence[bytes]) -> Vectors:
    return np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), -1).astype(np.float32, copy=False)


def _embedder(connection: sqlite3.Connection, name: str, dim: int) -> int:
    connection.execute("INSERT OR IGNORE INTO embedders (name, dim) VALUES (?, ?)", (name, dim))
    row, known = connection.execute("SELECT id, dim FROM embedders WHERE name = ?", (name,)).fetchone()
    assert known == dim, f"embedder {name!r} made vectors of {known} numbers before and of {dim} now"
    return int(row)
