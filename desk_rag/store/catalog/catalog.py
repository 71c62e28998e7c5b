"""Documents, their chunks and where these stand.

Chunks are content-addressed: equal text is one row, one entry in the word index, one vector, one KV, however many
documents hold it. A chunk row lives exactly as long as a document holds it.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from desk_rag.documents.chunking import Chunk, ChunkId
from desk_rag.documents.document import Document
from desk_rag.documents.status import FileState
from desk_rag.errors import CorruptCatalog
from desk_rag.store.catalog import checksums, words
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import Scope, from_blob, to_blob
from desk_rag.store.catalog.rows import (
    AWAITED,
    AWAITED_SECONDS,
    DAMAGED_ENTRY,
    DAMAGED_PLACE,
    DAMAGED_TEXT,
    DOCUMENT,
    KEEPS_CHUNKS,
    NO_STAMP,
    PASSAGE,
    SCRUB_OWED,
    STAMP,
    WORDS_DISAGREE,
    KVName,
    Removed,
    await_texts,
    columns_of,
    count_change,
    document,
    document_faults,
    drop_damaged_places,
    drop_unheld,
    existing,
    forget_stamp,
    is_entry,
    is_stray,
    location_of,
    mark_deleted,
    owe_scrub,
    plainest_twin,
    put_chunk,
    put_name,
    put_name_of,
    remove,
    row_of,
    stamp_values,
    upsert,
)
from desk_rag.store.catalog.witness import Mark
from desk_rag.store.types import DocumentRow, FileStamp, Hit, Passage

__all__ = [
    "Catalog",
    "NO_STAMP",
    "SCRUB_OWED",
    "AWAITED",
    "KVName",
    "Removed",
    "drop_unheld",
    "mark_deleted",
    "put_name",
    "await_texts",
    "owe_scrub",
    "document_faults",
    "is_entry",
    "drop_damaged_places",
    "count_change",
]
class Catalog:
    """The text side of the catalog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, document: Document, chunks: Sequence[Chunk], stamp: FileStamp) -> Removed:
        """Make `chunks` the content of the document's path, in one transaction, whatever was there before."""
        path = document.source.path
        with self._database.write() as connection:
            row, before = upsert(
                connection, path, document.title, document.source.digest, stamp, FileState.INDEXED, document.note
            )
            connection.execute("DELETE FROM places WHERE document = ?", (row,))
            now: set[int] = set()
            for chunk in chunks:
                chunk_row = put_chunk(connection, chunk, stamp.mtime_ns)
                now.add(chunk_row)
                place = columns_of(chunk.location)
                connection.execute(
                    f"INSERT INTO places (document, ordinal, chunk, {checksums.PLACE}, sum)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (row, chunk.ordinal, chunk_row, *place)
                    + (checksums.place_sum(row, chunk.ordinal, chunk.chunk_id, place),),
                )
            checksums.seal(connection, row, count=True)
            count_change(connection)
            removed = drop_unheld(connection, before - now)
        self._database.faults.forget(path)
        return removed

    def rename(self, old: Path, new: Path, stamp: FileStamp) -> Removed:
        """Give a document another path and stamp; what stood at the new path is replaced. No-op for an unknown path."""
        with self._database.write() as connection:
            row = row_of(connection, old)
            if row is None:
                return Removed()
            if not checksums.is_sealed(connection, row):
                return Removed()  # the next look at the folder reads both anew
            removed = Removed() if old == new else remove(connection, [new])
            connection.execute(
                f"UPDATE documents SET path = ?, {STAMP} WHERE id = ?", (to_blob(new), *stamp_values(stamp), row)
            )
            put_name_of(connection, row, new)
            checksums.seal(connection, row)
            count_change(connection)
            return removed

    def remove(self, paths: Iterable[Path], *, bin_since: float | None = None) -> Removed:
        """Remove documents, and every chunk that no other document holds, in one transaction.

        With `bin_since`, a store time, their chunk KV goes to the bin instead of being deleted.
        """
        paths = list(paths)
        with self._database.write() as connection:
            removed = remove(connection, paths, bin_since)
        for path in paths:
            self._database.faults.forget(path)
        return removed

    def record(self, path: Path, state: FileState, reason: str, stamp: FileStamp | None) -> Removed:
        """Note what became of a file. A file that failed or was skipped has no content any more."""
        if state is FileState.REMOVED:
            return self.remove([path])
        with self._database.write() as connection:
            if state in KEEPS_CHUNKS:
                known = row_of(connection, path)
                if stamp is not None and known is not None and checksums.is_sealed(connection, known):
                    values = (*stamp_values(stamp), known)
                    connection.execute(f"UPDATE documents SET {STAMP} WHERE id = ?", values)
                    checksums.seal(connection, known)
                return Removed()
            row, before = upsert(connection, path, "", "", stamp or NO_STAMP, state, reason)
            connection.execute("DELETE FROM places WHERE document = ?", (row,))
            checksums.seal(connection, row, count=True)
            count_change(connection)
            return drop_unheld(connection, before)

    def document(self, path: Path) -> DocumentRow | None:
        """Return what is known of a path."""
        rows = self._documents("d.path = ?", (to_blob(path),))
        return rows[0] if rows else None

    def documents(self, under: Path | None) -> list[DocumentRow]:
        """Return all known paths at or below `under`, failed and skipped ones included, in path order."""
        scope = Scope([] if under is None else [under])
        return self._documents(scope.path_condition("d.path"), scope.values)

    def documents_outside(self, folders: Sequence[Path]) -> list[DocumentRow]:
        """Return the known paths that are neither one of `folders` nor below one, in path order."""
        scope = Scope(folders)
        return self._documents("1" if scope.everything else f"NOT {scope.path_condition('d.path')}", scope.values)

    def text_characters(self, under: Path | None) -> int:
        """Return the characters of all chunks at or below `under`, each chunk once."""
        scope = Scope([] if under is None else [under])
        query = (
            "SELECT COALESCE(SUM(LENGTH(text)), 0) FROM chunks WHERE id IN (SELECT p.chunk FROM places p "
            f"JOIN documents d ON d.id = p.document WHERE {scope.path_condition('d.path')})"
        )
        with self._database.read() as connection:
            return int(connection.execute(query, scope.values).fetchone()[0])

    def stamps(self, under: Sequence[Path], limit: int) -> dict[bytes, tuple[int, int, int, int, str]]:
        """Return (size, mtime_ns, inode, ctime_ns, state) of at most `limit` known paths `under`, newest row first.

        Checksums are not compared: a damaged row only makes a file look changed.
        """
        scope = Scope(under)
        columns, condition = "path, size, mtime_ns, inode, ctime_ns, state", scope.path_condition("path")
        query = f"SELECT {columns} FROM documents WHERE {condition} ORDER BY id DESC LIMIT ?"
        with self._database.read() as connection:
            rows = connection.execute(query, (*scope.values, limit))
            return {path: (size, mtime, int(inode), *others) for path, size, mtime, inode, *others in rows}

    def with_digest(self, digest: str) -> list[DocumentRow]:
        """Return the documents with exactly this content."""
        return self._documents("d.digest = ? AND d.digest <> ''", (digest,))

    def passage(self, chunk_id: ChunkId, under: Sequence[Path]) -> Passage | None:
        """Return the chunk and the first place (by path) where it stands in scope; of equal files, the plainest."""
        scope = Scope(under)
        query = f"SELECT {PASSAGE} WHERE c.chunk_id = ?{scope.and_path('d.path')} ORDER BY d.path, p.ordinal LIMIT ?"
        with self._database.snapshot() as connection:
            for most in (1, -1):  # other places are looked at only where the first one is damaged
                rows = connection.execute(query, (chunk_id, *scope.values, most)).fetchall()
                sound = next(filter(None, map(self._sound, rows)), None)
                if sound is not None or not rows:
                    break
            if sound is not None:
                row, copies = plainest_twin(connection, sound, scope)
                sound = replace((row and self._sound(row)) or sound, copies=copies)
            if not rows and is_stray(connection, chunk_id):
                self._database.faults.add("A passage that was found by its words or meaning has no place in any file.")
        return sound

    def passages_of(self, path: Path) -> list[Passage]:
        """Return all chunks of a document in order."""
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT {PASSAGE} WHERE d.path = ? ORDER BY p.ordinal", (to_blob(path),)
            ).fetchall()
        return [passage for passage in map(self._sound, rows) if passage is not None]

    def mark(self) -> Mark:
        """Return which catalog this is and how many changes it has seen; an empty identity where that is damaged."""
        with self._database.read() as connection:
            values = dict(connection.execute("SELECT name, value FROM state WHERE name IN ('identity', 'changes')"))
        identity, changes = values.get("identity"), values.get("changes")
        named = isinstance(identity, str) and re.fullmatch("[0-9a-f]{32}", identity) is not None
        return Mark(str(identity) if named else "", changes if isinstance(changes, int) else 0)

    def catch_up(self, changes: int) -> None:
        """Count changes that were lost, so that they are missed once only."""
        with self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO state VALUES ('changes', ?)", (changes,))

    def is_awaiting_texts(self) -> bool:
        """True for some days after texts were lost by damage: their chunk KV is kept until they are read again."""
        with self._database.read() as connection:
            row = connection.execute("SELECT value FROM state WHERE name = ?", (AWAITED,)).fetchone()
        return row is not None and isinstance(row[0], float) and abs(time.time() - row[0]) < AWAITED_SECONDS

    def await_texts(self) -> None:
        """Texts were lost by damage; from now on their chunk KV waits for them."""
        with self._database.write() as connection:
            await_texts(connection)

    def drop_lost_texts(self, *, all_kv: bool = False) -> None:
        """Remove the chunks that a repair has left without a document; with `all_kv` nothing waits for them longer."""
        with self._database.write() as connection:
            if connection.execute("SELECT 1 FROM state WHERE name = ?", (AWAITED,)).fetchone() is None:
                return
            if connection.execute("DELETE FROM chunks WHERE id NOT IN (SELECT chunk FROM places)").rowcount:
                owe_scrub(connection)
            if all_kv:
                connection.execute("DELETE FROM state WHERE name = ?", (AWAITED,))

    def is_damaged(self) -> bool:
        """True if SQLite finds a fault in tables or indexes, or some chunk is not what its id says; reads everything.

        Whoever is about to remove what no row refers to asks this first: the row or its index may be what is damaged.
        """
        try:
            with self._database.read() as connection:
                if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                    return True
                rows = connection.execute("SELECT chunk_id, text FROM chunks")
                return any(not checksums.chunk_is_sound(*row) for row in rows)
        except CorruptCatalog:
            return True

    def last_chunk(self) -> int:
        """Return the highest row of a chunk: about how many there are, without counting them."""
        with self._database.read() as connection:
            return int(connection.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()[0])

    def is_empty(self) -> bool:
        """True if no path is known, not even one that was left out."""
        with self._database.read() as connection:
            return connection.execute("SELECT 1 FROM documents LIMIT 1").fetchone() is None

    def read_again(self, path: Path) -> None:
        """Have a sound row's document read anew at the next look at its folder; meanwhile it goes on being used."""
        with self._database.write() as connection:
            row = row_of(connection, path)
            if row is not None and checksums.is_sealed(connection, row):
                forget_stamp(connection, row)

    def _sound(self, row: sqlite3.Row) -> Passage | None:
        """The passage of a row; None, and a fault noted, where the row is not as it was written."""
        chunk_id, ordinal, text, num_tokens, *place = row[:10]
        document, place_sum, *columns, document_sum = row[10:]
        if checksums.document_sum(columns) != document_sum:
            self._database.faults.add(DAMAGED_ENTRY, existing(columns[1]))
            return None
        _, path, title, digest, size, mtime_ns, inode, parser, state, _, indexed_at, _, ctime_ns = columns
        if state != FileState.INDEXED.value:
            return None  # put out of use by a repair until it is read anew
        if place_sum != checksums.place_sum(document, ordinal, chunk_id, place):
            self._database.faults.add(DAMAGED_PLACE, from_blob(path))
            return None
        if not checksums.chunk_is_sound(chunk_id, text):
            self._database.faults.add(DAMAGED_TEXT, from_blob(path))
            return None
        file = from_blob(path)
        location = location_of(place, file)
        chunk = Chunk(ChunkId(chunk_id), ordinal, text, num_tokens, location)
        stamp = FileStamp(size, mtime_ns, int(inode), parser, ctime_ns)
        return Passage(chunk, file, title, stamp, digest, indexed_at)

    def search_words(self, question: str, limit: int, under: Sequence[Path]) -> list[Hit]:
        """Return the best chunks by BM25; empty for a question without words."""
        with self._database.snapshot() as connection:
            hits, strays = words.search(connection, question, limit, under)
        if strays:
            self._database.faults.add("The word index names passages that do not exist.")
        return hits

    def spellings(self, typed: Collection[str], is_known: Callable[[str], bool]) -> dict[str, list[str]]:
        """See `words.spellings`."""
        with self._database.snapshot() as connection:
            return words.spellings(connection, typed, is_known)

    def check_words(self, question: str, chunk_ids: Sequence[ChunkId]) -> None:
        """Note a fault if the word index has lost a word of the question in one of these chunks."""
        with self._database.snapshot() as connection:
            if words.has_lost(connection, question, chunk_ids):
                self._database.faults.add(WORDS_DISAGREE)

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

    def scrub(self) -> bool:
        """Rewrite the word indexes so that words of deleted chunks are in no page any more, and empty the log.

        FTS5 keeps deleted words in its older segments until these are merged; SQLite before 3.42 has no other way.
        False if a reader was in the way of emptying the log: then the scrub stays owed.
        """
        since = self.scrub_owed()
        if since is None:
            return self._database.checkpoint()
        with self._database.write() as connection:
            for index in ("chunk_words", "name_words"):
                connection.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")
        with self._database.read() as connection:
            connection.execute("PRAGMA incremental_vacuum").fetchall()
        if not self._database.checkpoint():
            return False
        with self._database.write() as connection:  # unless something else was deleted meanwhile
            connection.execute("DELETE FROM state WHERE name = ? AND value = ?", (SCRUB_OWED, since))
        return self._database.checkpoint()

    def scrub_owed(self) -> float | None:
        """Unix time of the last deletion whose text may still be read from the catalog's files; None if there is none.

        For people only; equal times of two deletions are no matter, since both wait for the same scrub.
        """
        with self._database.read() as connection:
            row = connection.execute("SELECT value FROM state WHERE name = ?", (SCRUB_OWED,)).fetchone()
        return None if row is None else float(row[0])

    def _documents(self, condition: str, values: tuple[object, ...]) -> list[DocumentRow]:
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT {DOCUMENT} FROM documents d WHERE {condition} ORDER BY d.path", values
            ).fetchall()
        return [row for row in map(document, rows) if row is not None]
