"""Documents, their chunks and where these stand. Knows the rows of the text side; knows no file but SQLite's.

Chunks are content-addressed: equal text is one row, one entry in the word index, one vector, one KV, however many
documents hold it. A chunk row lives exactly as long as a document holds it.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from desk_rag.chunking import Chunk, ChunkId, Location
from desk_rag.documents import Document
from desk_rag.errors import UNWRITABLE, CorruptCatalog
from desk_rag.index_events import FileState
from desk_rag.store import checksums, words
from desk_rag.store.database import Database
from desk_rag.store.paths import Scope, from_blob, to_blob
from desk_rag.store.types import DocumentRow, Fault, FileStamp, Hit, Passage
from desk_rag.store.witness import Mark

NO_STAMP = FileStamp(0, 0, 0, "")
SCRUB_OWED = "scrub_owed"
AWAITED = "texts_awaited"
"""In `state`, with a unix time: texts were lost by damage and are expected back, and with them a use of their KV."""
_AWAITED_SECONDS = 7 * 86_400.0
_KEEPS_CHUNKS = (FileState.INDEXED, FileState.UNCHANGED, FileState.RENAMED)
_DOCUMENT = (
    f"{', '.join(f'd.{column}' for column in checksums.DOCUMENT.split(', '))}, d.sum,"
    " (SELECT count(*) FROM places WHERE document = d.id)"
)
_PASSAGE = (
    "c.chunk_id, p.ordinal, c.text, c.num_tokens, p.heading, p.page_start, p.page_end, p.line_start, p.line_end,"
    f" p.document, p.sum, {', '.join(f'd.{column}' for column in checksums.DOCUMENT.split(', '))}, d.sum"
    " FROM places p JOIN chunks c ON c.id = p.chunk JOIN documents d ON d.id = p.document"
)
_CHECK_SECONDS = 0.25
_CHECKED_UP_TO = "checked_up_to"
_PLAIN_WORD = re.compile(r"(?<!\S)[A-Za-z]{4,24}(?=[\s.,;:]|$)")
"""A word that every tokenizer takes for one."""
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
                heading = _storable(where.heading)
                pages_and_lines = (where.page_start, where.page_end, where.line_start, where.line_end)
                connection.execute(
                    "INSERT INTO places (document, ordinal, chunk, heading, page_start, page_end, line_start, line_end,"
                    " sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (row, chunk.ordinal, chunk_row, heading, *pages_and_lines)
                    + (checksums.place_sum(row, chunk.ordinal, chunk.chunk_id, heading, pages_and_lines),),
                )
            checksums.seal(connection, row, count=True)
            count_change(connection)
            removed = drop_unheld(connection, before - now)
        self._database.faults.forget(path)
        return removed

    def rename(self, old: Path, new: Path, found: FileStamp) -> Removed:
        """Give a document another path and stamp; what stood at the new path is replaced. No-op for an unknown path."""
        with self._database.write() as connection:
            row = _row_of(connection, old)
            if row is None:
                return Removed()
            if not checksums.is_sealed(connection, row):
                return Removed()  # the next look at the folder reads both anew
            removed = Removed() if old == new else _remove(connection, [new])
            connection.execute(
                "UPDATE documents SET path = ?, size = ?, mtime_ns = ?, inode = ?, parser = ? WHERE id = ?",
                (to_blob(new), found.size, found.mtime_ns, str(found.inode), found.parser, row),
            )
            _put_name(connection, row, new)
            checksums.seal(connection, row)
            count_change(connection)
            return removed

    def remove(self, paths: Iterable[Path], *, bin_since: float | None = None) -> Removed:
        """Remove documents, and every chunk that no other document holds, in one transaction.

        With `bin_since`, a store time, their chunk KV goes to the bin instead of being deleted.
        """
        paths = list(paths)
        with self._database.write() as connection:
            removed = _remove(connection, paths, bin_since)
        for path in paths:
            self._database.faults.forget(path)
        return removed

    def record(self, path: Path, state: FileState, reason: str, found: FileStamp | None) -> Removed:
        """Note what became of a file. A file that failed or was skipped has no content any more."""
        if state is FileState.REMOVED:
            return self.remove([path])
        with self._database.write() as connection:
            if state in _KEEPS_CHUNKS:
                known = _row_of(connection, path)
                if found is not None and known is not None and checksums.is_sealed(connection, known):
                    connection.execute(
                        "UPDATE documents SET size = ?, mtime_ns = ?, inode = ?, parser = ? WHERE id = ?",
                        (found.size, found.mtime_ns, str(found.inode), found.parser, known),
                    )
                    checksums.seal(connection, known)
                return Removed()
            row, before = _upsert(connection, path, "", "", found or NO_STAMP, state, reason)
            connection.execute("DELETE FROM places WHERE document = ?", (row,))
            checksums.seal(connection, row, count=True)
            count_change(connection)
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
        query = f"SELECT {_PASSAGE} WHERE c.chunk_id = ?{scope.and_path('d.path')} ORDER BY d.path, p.ordinal LIMIT ?"
        with self._database.snapshot() as connection:
            for most in (1, -1):  # other places are looked at only where the first one is damaged
                rows = connection.execute(query, (chunk_id, *scope.values, most)).fetchall()
                sound = next(filter(None, map(self._sound, rows)), None)
                if sound is not None or not rows:
                    break
            if not rows and _is_stray(connection, chunk_id):
                self._database.faults.add("A passage that was found by its words or meaning has no place in any file.")
        return sound

    def passages_of(self, path: Path) -> list[Passage]:
        """Return all chunks of a document in order."""
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT {_PASSAGE} WHERE d.path = ? ORDER BY p.ordinal", (to_blob(path),)
            ).fetchall()
        return [passage for passage in map(self._sound, rows) if passage is not None]

    def mark(self) -> Mark:
        """Return which catalog this is and how many changes it has seen; an empty identity where that is damaged."""
        with self._database.read() as connection:
            found = dict(connection.execute("SELECT name, value FROM state WHERE name IN ('identity', 'changes')"))
        identity, changes = found.get("identity"), found.get("changes")
        named = isinstance(identity, str) and re.fullmatch("[0-9a-f]{32}", identity) is not None
        return Mark(str(identity) if named else "", changes if isinstance(changes, int) else 0)

    def catch_up(self, changes: int) -> None:
        """Count changes that were lost, so that they are missed once only."""
        with self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO state VALUES ('changes', ?)", (changes,))

    def is_awaiting_texts(self) -> bool:
        """True for some days after texts were lost by damage: their chunk KV is kept until they are read again."""
        with self._database.read() as connection:
            found = connection.execute("SELECT value FROM state WHERE name = ?", (AWAITED,)).fetchone()
        return found is not None and isinstance(found[0], float) and abs(time.time() - found[0]) < _AWAITED_SECONDS

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

    def is_empty(self) -> bool:
        """True if no path is known, not even one that was left out."""
        with self._database.read() as connection:
            return connection.execute("SELECT 1 FROM documents LIMIT 1").fetchone() is None

    def read_again(self, path: Path) -> None:
        """Have a sound row's document read anew at the next look at its folder; meanwhile it goes on being used."""
        with self._database.write() as connection:
            row = _row_of(connection, path)
            if row is not None and checksums.is_sealed(connection, row):
                _forget_stamp(connection, row)

    def check_some(self, seconds: float = _CHECK_SECONDS) -> None:
        """Check the next documents, their places, texts and words; what is damaged is noted and marked to be read anew.

        A part at a time: about `seconds` of work, from where the last call stopped.
        """
        until = time.monotonic() + seconds
        with self._database.read() as connection:
            found = connection.execute("SELECT value FROM state WHERE name = ?", (_CHECKED_UP_TO,)).fetchone()
        last = found[0] if found is not None and isinstance(found[0], int) else 0
        while True:
            with self._database.read() as connection:
                row = connection.execute(
                    "SELECT id FROM documents WHERE id > ? ORDER BY id LIMIT 1", (last,)
                ).fetchone()
            last = row[0] if row is not None else 0
            if row is not None:
                self._check_document(last)
            if row is None or time.monotonic() >= until:
                break
        with suppress(*UNWRITABLE), self._database.write(durable=False) as connection:
            connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (_CHECKED_UP_TO, last))

    def _check_document(self, row: int) -> None:
        with self._database.snapshot() as connection:
            faults = document_faults(connection, row)
            for fault in faults:
                self._database.faults.add(fault.what, fault.path)
            if not faults:
                self._check_words(connection, row)
        for path in {fault.path for fault in faults if fault.path is not None}:
            with suppress(*UNWRITABLE):
                self.read_again(path)

    def _check_words(self, connection: sqlite3.Connection, document: int) -> None:
        texts = connection.execute(
            "SELECT c.id, c.text FROM places p JOIN chunks c ON c.id = p.chunk WHERE p.document = ?", (document,)
        )
        for chunk, text in texts:
            terms = " ".join(f'"{word}"' for word in sorted(set(_PLAIN_WORD.findall(text)), key=len)[-3:])
            found = not terms or connection.execute(
                "SELECT 1 FROM chunk_words WHERE chunk_words MATCH ? AND rowid = ?", (terms, chunk)
            ).fetchone()
            if not found:
                self._database.faults.add("The word index does not agree with the texts.")

    def _sound(self, row: sqlite3.Row) -> Passage | None:
        """The passage of a row; None, and a fault noted, where the row is not as it was written."""
        chunk_id, ordinal, text, num_tokens, heading, *pages_and_lines = row[:9]
        document, place_sum, *columns, document_sum = row[9:]
        if checksums.document_sum(columns) != document_sum:
            self._database.faults.add(_DAMAGED_ENTRY, _existing(columns[1]))
            return None
        _, path, title, digest, size, mtime_ns, inode, parser, state, _, indexed_at, _ = columns
        if state != FileState.INDEXED.value:
            return None  # put out of use by a repair until it is read anew
        if place_sum != checksums.place_sum(document, ordinal, chunk_id, heading, pages_and_lines):
            self._database.faults.add(_DAMAGED_PLACE, from_blob(path))
            return None
        if not checksums.chunk_is_sound(chunk_id, text):
            self._database.faults.add(_DAMAGED_TEXT, from_blob(path))
            return None
        chunk = Chunk(ChunkId(chunk_id), ordinal, text, num_tokens, Location(heading, *pages_and_lines))
        stamp = FileStamp(size, mtime_ns, int(inode), parser)
        return Passage(chunk, from_blob(path), title, stamp, digest, indexed_at)

    def search_words(self, question: str, limit: int, under: Sequence[Path]) -> list[Hit]:
        """Return the best chunks by BM25; empty for a question without words."""
        with self._database.snapshot() as connection:
            hits, strays = words.search(connection, question, limit, under)
        if strays:
            self._database.faults.add("The word index names passages that do not exist.")
        return hits

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
                f"SELECT {_DOCUMENT} FROM documents d WHERE {condition} ORDER BY d.path", values
            ).fetchall()
        return [row for row in map(_document, rows) if row is not None]


def drop_unheld(
    connection: sqlite3.Connection, candidates: Iterable[int], bin_since: float | None = None
) -> Removed:
    """Delete those of the given chunk rows that no document holds, with words, vectors and KV rows (or bin these)."""
    dead = [
        row
        for row in candidates
        if connection.execute("SELECT 1 FROM places WHERE chunk = ? LIMIT 1", (row,)).fetchone() is None
    ]
    kv: list[KVName] = []
    vectors = False
    for row in dead:
        chunk_id = connection.execute("SELECT chunk_id FROM chunks WHERE id = ?", (row,)).fetchone()[0]
        kv += _drop_kv_of(connection, chunk_id) if bin_since is None else _bin_kv_of(connection, chunk_id, bin_since)
        vectors |= connection.execute("DELETE FROM vectors WHERE chunk = ?", (row,)).rowcount > 0
        connection.execute("DELETE FROM chunks WHERE id = ?", (row,))
    if dead:
        owe_scrub(connection)
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
        if not _is_needed(connection, row, chunk_id)
    ]
    return doom(connection, alone)


def _bin_kv_of(connection: sqlite3.Connection, chunk_id: str, since: float) -> list[KVName]:
    """Put the KV that only this chunk needs into the bin; its link stays, by which the same text finds it again."""
    for (row,) in connection.execute("SELECT kv FROM kv_chunks WHERE chunk_id = ?", (chunk_id,)).fetchall():
        if not _is_needed(connection, row, chunk_id):
            connection.execute("INSERT OR REPLACE INTO bin VALUES (?, ?)", (row, since))
    return []


def _is_needed(connection: sqlite3.Connection, kv: int, chunk_id: str) -> bool:
    """True if a chunk of the catalog other than `chunk_id` has this KV."""
    other = "SELECT 1 FROM kv_chunks k JOIN chunks c ON c.chunk_id = k.chunk_id WHERE k.kv = ? AND k.chunk_id <> ?"
    return connection.execute(f"{other} LIMIT 1", (kv, chunk_id)).fetchone() is not None


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
    elif connection.execute("DELETE FROM name_words WHERE rowid = ?", (written,)).rowcount:
        owe_scrub(connection)
    return written, before


def put_name(connection: sqlite3.Connection, row: int) -> None:
    """Index the file name of a document anew."""
    blob = connection.execute("SELECT path FROM documents WHERE id = ?", (row,)).fetchone()[0]
    _put_name(connection, row, from_blob(blob))


def _put_name(connection: sqlite3.Connection, row: int, path: Path) -> None:
    new = words.name_words(path)
    old = connection.execute("SELECT words FROM name_words WHERE rowid = ?", (row,)).fetchone()
    if old is not None and old[0] != new:
        connection.execute("DELETE FROM name_words WHERE rowid = ?", (row,))
        owe_scrub(connection)
    if old is None or old[0] != new:
        connection.execute("INSERT INTO name_words (rowid, words) VALUES (?, ?)", (row, new))


def _put_chunk(connection: sqlite3.Connection, chunk: Chunk, mtime_ns: int) -> int:
    text = _storable(chunk.text)
    further = words.grams(text)
    row, known, known_further = connection.execute(
        "INSERT INTO chunks (chunk_id, text, grams, num_tokens, recent) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (chunk_id) DO UPDATE SET recent = max(recent, excluded.recent) RETURNING id, text, grams",
        (chunk.chunk_id, text, further, chunk.num_tokens, mtime_ns),
    ).fetchone()
    if (known, known_further) != (text, further):  # damaged; the word index was made from the sound one
        connection.execute(
            "UPDATE chunks SET text = ?, grams = ?, num_tokens = ? WHERE id = ?",
            (text, further, chunk.num_tokens, row),
        )
    return int(row)


def _remove(connection: sqlite3.Connection, paths: Iterable[Path], bin_since: float | None = None) -> Removed:
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
    removed = drop_unheld(connection, held, bin_since)
    if documents:
        owe_scrub(connection)
        count_change(connection)
    return Removed(removed.chunks, documents, removed.vectors, removed.kv)


def _row_of(connection: sqlite3.Connection, path: Path) -> int | None:
    found = connection.execute("SELECT id FROM documents WHERE path = ?", (to_blob(path),)).fetchone()
    return None if found is None else int(found[0])


def _storable(text: str) -> str:
    """Lone surrogates cannot be stored as text; they become '?'."""
    return text.encode("utf-8", "replace").decode()


def await_texts(connection: sqlite3.Connection) -> None:
    """As `Catalog.await_texts`, within a transaction."""
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (AWAITED, time.time()))


def owe_scrub(connection: sqlite3.Connection) -> None:
    """Note that text was deleted which older pages, index segments or the log may still hold."""
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (SCRUB_OWED, time.time()))


def document_faults(connection: sqlite3.Connection, row: int) -> list[Fault]:
    """Check one document's row, its places and their texts; return what is not as it was written."""
    found = connection.execute(f"SELECT {checksums.DOCUMENT}, sum FROM documents WHERE id = ?", (row,)).fetchone()
    if found is None:
        return []
    if checksums.document_sum(found[:-1]) != found[-1]:
        return [Fault(_DAMAGED_ENTRY, _existing(found[1]))]
    path, num_places = from_blob(found[1]), found[11]
    faults: dict[Fault, None] = {}
    places = connection.execute(
        "SELECT c.chunk_id, c.text, p.ordinal, p.heading, p.page_start, p.page_end, p.line_start, p.line_end, p.sum"
        " FROM places p JOIN chunks c ON c.id = p.chunk WHERE p.document = ?",
        (row,),
    )
    count = 0
    for chunk_id, text, ordinal, heading, *pages_and_lines, place_sum in places:
        count += 1
        if checksums.place_sum(row, ordinal, chunk_id, heading, pages_and_lines) != place_sum:
            faults[Fault(_DAMAGED_PLACE, path)] = None
        if not checksums.chunk_is_sound(chunk_id, text):
            faults[Fault(_DAMAGED_TEXT, path)] = None
    if count != num_places:
        faults[Fault(_MISSING_PLACES, path)] = None
    return list(faults)


def is_entry(fault: Fault) -> bool:
    """True if the document's own row is damaged, not only what belongs to it."""
    return fault.what == _DAMAGED_ENTRY


def drop_damaged_places(connection: sqlite3.Connection, row: int) -> None:
    """Remove what is damaged of a document whose own row is sound, and have it read anew."""
    places = connection.execute(
        "SELECT p.ordinal, c.chunk_id, p.heading, p.page_start, p.page_end, p.line_start, p.line_end, p.sum"
        " FROM places p LEFT JOIN chunks c ON c.id = p.chunk WHERE p.document = ?",
        (row,),
    ).fetchall()
    for ordinal, chunk_id, heading, *pages_and_lines, place_sum in places:
        if checksums.place_sum(row, ordinal, chunk_id, heading, pages_and_lines) != place_sum:
            connection.execute("DELETE FROM places WHERE document = ? AND ordinal IS ?", (row, ordinal))
    checksums.seal(connection, row, count=True)
    _forget_stamp(connection, row)


_DAMAGED_ENTRY = "The entry of a document is damaged."
_DAMAGED_PLACE = "The place of a passage is damaged."
_DAMAGED_TEXT = "The text of a passage is damaged."
_MISSING_PLACES = "Passages of a document are missing."


def _existing(blob: object) -> Path | None:
    """The path of a damaged row, if a file is there: what else stands in its place must not be shown."""
    if not isinstance(blob, bytes) or b"\0" in blob:
        return None
    path = from_blob(blob)
    try:
        return path if path.is_absolute() and path.is_file() else None
    except (OSError, ValueError):
        return None


def _is_stray(connection: sqlite3.Connection, chunk_id: str) -> bool:
    """True for a chunk whose row is there and which no document holds, or which only its index has lost."""
    # Not by the index, which may be what is damaged. Rare: a chunk that a search has just found was removed.
    row = connection.execute("SELECT id FROM chunks NOT INDEXED WHERE chunk_id = ?", (chunk_id,)).fetchone()
    if row is None:
        return connection.execute("SELECT 1 FROM chunks WHERE chunk_id = ?", (chunk_id,)).fetchone() is not None
    held = connection.execute(
        "SELECT 1 FROM places p JOIN documents d ON d.id = p.document WHERE p.chunk = ? LIMIT 1", row
    ).fetchone()
    by_index = connection.execute("SELECT id FROM chunks WHERE chunk_id = ?", (chunk_id,)).fetchone()
    return held is None or by_index != row


def _forget_stamp(connection: sqlite3.Connection, row: int) -> None:
    stamp = NO_STAMP
    connection.execute(
        "UPDATE documents SET digest = '', size = ?, mtime_ns = ?, inode = ?, parser = ? WHERE id = ?",
        (stamp.size, stamp.mtime_ns, str(stamp.inode), stamp.parser, row),
    )
    checksums.seal(connection, row)


def count_change(connection: sqlite3.Connection) -> None:
    """Count a transaction that changed what is found, for `witness.Witness`."""
    connection.execute(
        "INSERT INTO state VALUES ('changes', 1) ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1"
    )


def _document(row: Sequence[object]) -> DocumentRow | None:
    *columns, document_sum, num_chunks = row
    _, path, title, digest, size, mtime_ns, inode, parser, state, reason, indexed_at, _ = columns
    if checksums.document_sum(columns) != document_sum:
        existing = _existing(path)
        # With this stamp it differs from every file, so that the file is read anew.
        if existing is None:
            return None
        return DocumentRow(existing, "", "", NO_STAMP, FileState.FAILED, _DAMAGED_ENTRY, 0, 0.0)
    assert isinstance(path, bytes) and isinstance(num_chunks, int)
    stamp = FileStamp(_int(size), _int(mtime_ns), _int(inode), str(parser))
    at = float(str(indexed_at))
    return DocumentRow(
        from_blob(path), str(title), str(digest), stamp, FileState(state), str(reason), num_chunks, at
    )


def _int(value: object) -> int:
    return int(str(value))
