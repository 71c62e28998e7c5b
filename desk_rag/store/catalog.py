"""Documents, their chunks and where these stand. Knows the rows of the text side; knows no file but SQLite's.

Chunks are content-addressed: equal text is one row, one entry in the word index, one vector, one KV, however many
documents hold it. A chunk row lives exactly as long as a document holds it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from desk_rag.chunking import Chunk, ChunkId, Location
from desk_rag.documents import Document
from desk_rag.index_events import FileState
from desk_rag.parsers.formats import place_units
from desk_rag.store import words
from desk_rag.store.database import Database
from desk_rag.store.paths import Scope, from_blob, to_blob
from desk_rag.store.types import DocumentRow, FileStamp, Hit, Passage

NO_STAMP = FileStamp(0, 0, 0, "")
SCRUB_OWED = "scrub_owed"
_KEEPS_CHUNKS = (FileState.INDEXED, FileState.UNCHANGED, FileState.RENAMED)
_DOCUMENT = (
    "d.path, d.title, d.digest, d.size, d.mtime_ns, d.inode, d.parser, d.state, d.reason,"
    " (SELECT count(*) FROM places WHERE document = d.id), d.indexed_at"
)
_PASSAGE = (
    "c.chunk_id, p.ordinal, c.text, c.num_tokens, p.heading, p.page_start, p.page_end, p.line_start, p.line_end,"
    " d.path, d.title, d.size, d.mtime_ns, d.inode, d.parser"
    " FROM places p JOIN chunks c ON c.id = p.chunk JOIN documents d ON d.id = p.document"
)
KVName = tuple[str, str]
"""Namespace and token hash."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What went with the last document that held it; the rows are gone, the files are still to be removed."""

    chunks: int = 0
    documents: int = 0
    vectors: bool = False
    kv: tuple[KVName, ...] = ()


class Catalog:
    """The text side of the catalog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, document: Document, chunks: Sequence[Chunk], found: FileStamp) -> Removed:
        """Make `chunks` the content of the document's path, in one transaction, whatever was there before."""
        path = document.source.path
        with self._database.write() as connection:
            row, before = _upsert(
                connection, path, document.title, document.source.digest, found, FileState.INDEXED, document.note
            )
            connection.execute("DELETE FROM places WHERE document = ?", (row,))
            now: set[int] = set()
            for chunk in chunks:
                chunk_row = _put_chunk(connection, chunk, found.mtime_ns)
                now.add(chunk_row)
                where = chunk.location
                connection.execute(
                    "INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (row, chunk.ordinal, chunk_row, _storable(where.heading))
                    + (where.page_start, where.page_end, where.line_start, where.line_end),
                )
            return drop_unheld(connection, before - now)

    def rename(self, old: Path, new: Path, found: FileStamp) -> Removed:
        """Give a document another path and stamp; what stood at the new path is replaced. No-op for an unknown path."""
        with self._database.write() as connection:
            row = _row_of(connection, old)
            if row is None:
                return Removed()
            removed = Removed() if old == new else _remove(connection, [new])
            connection.execute(
                "UPDATE documents SET path = ?, size = ?, mtime_ns = ?, inode = ?, parser = ? WHERE id = ?",
                (to_blob(new), found.size, found.mtime_ns, str(found.inode), found.parser, row),
            )
            _put_name(connection, row, new)
            return removed

    def remove(self, paths: Iterable[Path]) -> Removed:
        """Remove documents, and every chunk that no other document holds, in one transaction."""
        with self._database.write() as connection:
            return _remove(connection, paths)

    def record(self, path: Path, state: FileState, reason: str, found: FileStamp | None) -> Removed:
        """Note what became of a file. A file that failed or was skipped has no content any more."""
        if state is FileState.REMOVED:
            return self.remove([path])
        with self._database.write() as connection:
            if state in _KEEPS_CHUNKS:
                if found is not None:
                    connection.execute(
                        "UPDATE documents SET size = ?, mtime_ns = ?, inode = ?, parser = ? WHERE path = ?",
                        (found.size, found.mtime_ns, str(found.inode), found.parser, to_blob(path)),
                    )
                return Removed()
            row, before = _upsert(connection, path, "", "", found or NO_STAMP, state, reason)
            connection.execute("DELETE FROM places WHERE document = ?", (row,))
            return drop_unheld(connection, before)

    def document(self, path: Path) -> DocumentRow | None:
        """Return what is known of a path."""
        found = self._documents("d.path = ?", (to_blob(path),))
        return found[0] if found else None

    def documents(self, under: Path | None) -> list[DocumentRow]:
        """Return all known paths at or below `under`, failed and skipped ones included, in path order."""
        scope = Scope([] if under is None else [under])
        return self._documents(scope.path_condition("d.path"), scope.values)

    def with_digest(self, digest: str) -> list[DocumentRow]:
        """Return the documents with exactly this content."""
        return self._documents("d.digest = ? AND d.digest <> ''", (digest,))

    def passage(self, chunk_id: ChunkId, under: Sequence[Path]) -> Passage | None:
        """Return the chunk and the first place (by path) where it stands in scope."""
        scope = Scope(under)
        with self._database.read() as connection:
            row = connection.execute(
                f"SELECT {_PASSAGE} WHERE c.chunk_id = ?{scope.and_path('d.path')} ORDER BY d.path, p.ordinal LIMIT 1",
                (chunk_id, *scope.values),
            ).fetchone()
        return None if row is None else _passage(row)

    def passages_of(self, path: Path) -> list[Passage]:
        """Return all chunks of a document in order."""
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT {_PASSAGE} WHERE d.path = ? ORDER BY p.ordinal", (to_blob(path),)
            ).fetchall()
        return [_passage(row) for row in rows]

    def search_words(self, question: str, limit: int, under: Sequence[Path]) -> list[Hit]:
        """Return the best chunks by BM25; empty for a question without words."""
        with self._database.snapshot() as connection:
            return words.search(connection, question, limit, under)

    def count(self, under: Sequence[Path]) -> tuple[int, int, int, int]:
        """Return (indexed, failed, skipped, chunks)."""
        scope = Scope(under)
        with self._database.snapshot() as connection:
            states = dict(
                connection.execute(
                    f"SELECT state, count(*) FROM documents WHERE {scope.path_condition('path')} GROUP BY state",
                    scope.values,
                )
            )
            chunks = connection.execute(
                f"SELECT count(*) FROM chunks WHERE 1{scope.and_chunk('chunks.id')}", scope.values
            ).fetchone()[0]
        indexed, failed, skipped = (
            states.get(state.value, 0) for state in (FileState.INDEXED, FileState.FAILED, FileState.SKIPPED)
        )
        return indexed, failed, skipped, chunks

    def scrub(self) -> None:
        """Rewrite the word indexes so that words of deleted chunks are in no page any more.

        FTS5 keeps deleted words in its older segments until these are merged; SQLite before 3.42 has no other way.
        """
        with self._database.write() as connection:
            if connection.execute("SELECT 1 FROM state WHERE name = ?", (SCRUB_OWED,)).fetchone() is None:
                return
            for index in ("chunk_words", "name_words"):
                connection.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")
            connection.execute("DELETE FROM state WHERE name = ?", (SCRUB_OWED,))
        with self._database.read() as connection:
            connection.execute("PRAGMA incremental_vacuum").fetchall()

    def _documents(self, condition: str, values: tuple[object, ...]) -> list[DocumentRow]:
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT {_DOCUMENT} FROM documents d WHERE {condition} ORDER BY d.path", values
            ).fetchall()
        return [_document(row) for row in rows]


def drop_unheld(connection: sqlite3.Connection, candidates: Iterable[int]) -> Removed:
    """Delete those of the given chunk rows that no document holds, with words, vectors and KV rows."""
    dead = [
        row
        for row in candidates
        if connection.execute("SELECT 1 FROM places WHERE chunk = ? LIMIT 1", (row,)).fetchone() is None
    ]
    kv: list[KVName] = []
    vectors = False
    for row in dead:
        chunk_id = connection.execute("SELECT chunk_id FROM chunks WHERE id = ?", (row,)).fetchone()[0]
        kv += _drop_kv_of(connection, chunk_id)
        vectors |= connection.execute("DELETE FROM vectors WHERE chunk = ?", (row,)).rowcount > 0
        connection.execute("DELETE FROM chunks WHERE id = ?", (row,))
    if dead:
        connection.execute("INSERT OR IGNORE INTO state VALUES (?, 1)", (SCRUB_OWED,))
    return Removed(chunks=len(dead), vectors=vectors, kv=tuple(kv))


def doom(connection: sqlite3.Connection, rows: Iterable[int]) -> list[KVName]:
    """Delete KV rows and note that their files are to be unlinked."""
    names = []
    for row in rows:
        name = connection.execute(
            "SELECT n.name, kv.tokens FROM kv JOIN namespaces n ON n.id = kv.namespace WHERE kv.id = ?", (row,)
        ).fetchone()
        connection.execute("INSERT OR IGNORE INTO doomed VALUES (?, ?)", name)
        connection.execute("DELETE FROM kv WHERE id = ?", (row,))
        names.append((name[0], name[1]))
    return names


def _drop_kv_of(connection: sqlite3.Connection, chunk_id: str) -> list[KVName]:
    linked = connection.execute("SELECT kv FROM kv_chunks WHERE chunk_id = ?", (chunk_id,)).fetchall()
    connection.execute("DELETE FROM kv_chunks WHERE chunk_id = ?", (chunk_id,))
    alone = [
        row
        for (row,) in linked
        if connection.execute("SELECT 1 FROM kv_chunks WHERE kv = ? LIMIT 1", (row,)).fetchone() is None
    ]
    return doom(connection, alone)


def _upsert(
    connection: sqlite3.Connection,
    path: Path,
    title: str,
    digest: str,
    found: FileStamp,
    state: FileState,
    reason: str,
) -> tuple[int, set[int]]:
    """Write the document's row; return it with the chunk rows the document held so far."""
    before: set[int] = set()
    row = _row_of(connection, path)
    if row is not None:
        before = {chunk for (chunk,) in connection.execute("SELECT chunk FROM places WHERE document = ?", (row,))}
    written: int = connection.execute(
        "INSERT INTO documents (path, title, digest, size, mtime_ns, inode, parser, state, reason, indexed_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (path) DO UPDATE SET title = excluded.title,"
        " digest = excluded.digest, size = excluded.size, mtime_ns = excluded.mtime_ns, inode = excluded.inode,"
        " parser = excluded.parser, state = excluded.state, reason = excluded.reason,"
        " indexed_at = excluded.indexed_at RETURNING id",
        (to_blob(path), _storable(title), digest, found.size, found.mtime_ns, str(found.inode), found.parser)
        + (state.value, _storable(reason), time.time()),
    ).fetchone()[0]
    if state is FileState.INDEXED:
        _put_name(connection, written, path)
    else:
        connection.execute("DELETE FROM name_words WHERE rowid = ?", (written,))
    return written, before


def _put_name(connection: sqlite3.Connection, row: int, path: Path) -> None:
    connection.execute("DELETE FROM name_words WHERE rowid = ?", (row,))
    connection.execute("INSERT INTO name_words (rowid, words) VALUES (?, ?)", (row, words.name_words(path)))


def _put_chunk(connection: sqlite3.Connection, chunk: Chunk, mtime_ns: int) -> int:
    text = _storable(chunk.text)
    row: int = connection.execute(
        "INSERT INTO chunks (chunk_id, text, grams, num_tokens, recent) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (chunk_id) DO UPDATE SET recent = max(recent, excluded.recent) RETURNING id",
        (chunk.chunk_id, text, words.grams(text), chunk.num_tokens, mtime_ns),
    ).fetchone()[0]
    return row


def _remove(connection: sqlite3.Connection, paths: Iterable[Path]) -> Removed:
    held: set[int] = set()
    documents = 0
    for path in paths:
        row = _row_of(connection, path)
        if row is None:
            continue
        documents += 1
        held |= {chunk for (chunk,) in connection.execute("SELECT chunk FROM places WHERE document = ?", (row,))}
        connection.execute("DELETE FROM documents WHERE id = ?", (row,))
        connection.execute("DELETE FROM name_words WHERE rowid = ?", (row,))
    removed = drop_unheld(connection, held)
    if documents:
        connection.execute("INSERT OR IGNORE INTO state VALUES (?, 1)", (SCRUB_OWED,))
    return Removed(removed.chunks, documents, removed.vectors, removed.kv)


def _row_of(connection: sqlite3.Connection, path: Path) -> int | None:
    found = connection.execute("SELECT id FROM documents WHERE path = ?", (to_blob(path),)).fetchone()
    return None if found is None else int(found[0])


def _storable(text: str) -> str:
    """Lone surrogates cannot be stored as text; they become '?'."""
    return text.encode("utf-8", "replace").decode()


def _document(row: tuple[bytes, str, str, int, int, str, str, str, str, int, float]) -> DocumentRow:
    path, title, digest, size, mtime_ns, inode, parser, state, reason, num_chunks, indexed_at = row
    stamp = FileStamp(size, mtime_ns, int(inode), parser)
    return DocumentRow(from_blob(path), title, digest, stamp, FileState(state), reason, num_chunks, indexed_at)


def _passage(row: sqlite3.Row) -> Passage:
    chunk_id, ordinal, text, num_tokens, heading, page_start, page_end, line_start, line_end = row[:9]
    path, title, size, mtime_ns, inode, parser = row[9:]
    file = from_blob(path)
    where = Location(heading, page_start, page_end, line_start, line_end, place_units(file.name))
    chunk = Chunk(ChunkId(chunk_id), ordinal, text, num_tokens, where)
    return Passage(chunk, file, title, FileStamp(size, mtime_ns, int(inode), parser))
