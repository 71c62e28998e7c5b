"""Rows of the text side: written, compared with their checksums and dropped, within a transaction of the caller."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from desk_rag.documents.chunking import Chunk, ChunkId
from desk_rag.documents.formats import place_units
from desk_rag.documents.location import Location, Part
from desk_rag.documents.status import FileState
from desk_rag.store.catalog import checksums, words
from desk_rag.store.catalog.faults import Faults
from desk_rag.store.catalog.paths import Scope, from_blob, plainest, to_blob
from desk_rag.store.types import DocumentRow, Fault, FileStamp, Passage, PendingChunk

NO_STAMP = FileStamp(0, 0, 0, "")
STAMP = "size = ?, mtime_ns = ?, ctime_ns = ?, inode = ?, parser = ?"
"""Assignments of an update, for the values of `stamp_values`."""
SCRUB_OWED = "scrub_owed"
AWAITED = "texts_awaited"
"""Row of `state` with a unix time: texts were lost by damage, and their chunk KV is kept until they are read again."""
AWAITED_SECONDS = 7 * 86_400.0
KEEPS_CHUNKS = (FileState.INDEXED, FileState.UNCHANGED, FileState.RENAMED)
DOCUMENT = (
    f"{', '.join(f'd.{column}' for column in checksums.DOCUMENT.split(', '))}, d.sum,"
    " (SELECT count(*) FROM places WHERE document = d.id)"
)
_PLACE = ", ".join(f"p.{column}" for column in checksums.PLACE.split(", "))
PASSAGE = (
    f"c.chunk_id, p.ordinal, c.text, c.num_tokens, {_PLACE}, p.document, p.sum,"
    f" {', '.join(f'd.{column}' for column in checksums.DOCUMENT.split(', '))}, d.sum"
    " FROM places p JOIN chunks c ON c.id = p.chunk JOIN documents d ON d.id = p.document"
)
_MOST_TWINS = 100
"""Files of equal content that are compared and counted."""
KVName = tuple[str, str]
"""Namespace and token hash."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Chunks that went with the last document that held them; their rows are gone, their files are not yet."""

    chunks: int = 0
    documents: int = 0
    vectors: bool = False
    kv: tuple[KVName, ...] = ()


def drop_unheld(connection: sqlite3.Connection, candidates: Iterable[int], bin_since: float | None = None) -> Removed:
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


def mark_deleted(connection: sqlite3.Connection, rows: Iterable[int]) -> list[KVName]:
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
    alone = [row for (row,) in linked if not _is_needed(connection, row, chunk_id)]
    return mark_deleted(connection, alone)


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


def upsert(
    connection: sqlite3.Connection,
    path: Path,
    title: str,
    digest: str,
    stamp: FileStamp,
    state: FileState,
    reason: str,
) -> tuple[int, set[int]]:
    """Write the document's row; return it with the chunk rows the document held so far."""
    before: set[int] = set()
    row = row_of(connection, path)
    if row is not None:
        before = {chunk for (chunk,) in connection.execute("SELECT chunk FROM places WHERE document = ?", (row,))}
    written: int = connection.execute(
        "INSERT INTO documents (path, title, digest, size, mtime_ns, ctime_ns, inode, parser, state, reason,"
        " indexed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (path) DO UPDATE SET title = excluded.title,"
        " digest = excluded.digest, size = excluded.size, mtime_ns = excluded.mtime_ns,"
        " ctime_ns = excluded.ctime_ns, inode = excluded.inode,"
        " parser = excluded.parser, state = excluded.state, reason = excluded.reason,"
        " indexed_at = excluded.indexed_at RETURNING id",
        (to_blob(path), storable(title), digest, stamp.size, stamp.mtime_ns, stamp.ctime_ns, str(stamp.inode))
        + (stamp.parser, state.value, storable(reason), time.time()),
    ).fetchone()[0]
    if state is FileState.INDEXED:
        put_name_of(connection, written, path)
    elif connection.execute("DELETE FROM name_words WHERE rowid = ?", (written,)).rowcount:
        owe_scrub(connection)
    return written, before


def put_name(connection: sqlite3.Connection, row: int) -> None:
    """Index the file name of a document anew."""
    blob = connection.execute("SELECT path FROM documents WHERE id = ?", (row,)).fetchone()[0]
    put_name_of(connection, row, from_blob(blob))


def put_name_of(connection: sqlite3.Connection, row: int, path: Path) -> None:
    """Index the words of a file name, unless they are indexed already."""
    new = words.name_words(path)
    old = connection.execute("SELECT words FROM name_words WHERE rowid = ?", (row,)).fetchone()
    if old is not None and old[0] != new:
        connection.execute("DELETE FROM name_words WHERE rowid = ?", (row,))
        owe_scrub(connection)
    if old is None or old[0] != new:
        connection.execute("INSERT INTO name_words (rowid, words) VALUES (?, ?)", (row, new))


def put_chunk(connection: sqlite3.Connection, chunk: Chunk, mtime_ns: int) -> int:
    text = storable(chunk.text)
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


def columns_of(location: Location) -> tuple[str | int | None, ...]:
    """Return the columns `checksums.PLACE` of a place."""
    parts = [
        [part.begin, part.page, part.line_start, part.line_end, *filter(None, [storable(part.section)])]
        for part in location.parts
    ]
    shown = json.dumps(parts, separators=(",", ":"), ensure_ascii=False) if parts else ""
    pages_and_lines = (location.page_start, location.page_end, location.line_start, location.line_end)
    return storable(location.heading), *pages_and_lines, shown


def location_of(place: Sequence[Any], file: Path) -> Location:
    """Return the place in `file` that these columns, whose sum agrees, tell."""
    heading, page_start, page_end, line_start, line_end, parts = place
    inside = tuple(Part(*part) for part in json.loads(parts)) if parts else ()
    return Location(heading, page_start, page_end, line_start, line_end, place_units(file.name), inside)


def plainest_twin(
    connection: sqlite3.Connection, passage: Passage, scope: Scope
) -> tuple[sqlite3.Row | None, int]:
    """Return `PASSAGE` in the plainest file in scope of this content, None if it is that; and how many others are."""
    twins = connection.execute(
        "SELECT path, mtime_ns FROM documents WHERE digest = ? AND digest <> '' AND state = ?"
        f"{scope.and_path('path')} ORDER BY mtime_ns LIMIT ?",
        (passage.digest, FileState.INDEXED.value, *scope.values, _MOST_TWINS),
    ).fetchall()
    if len(twins) < 2:
        return None, 0
    path = plainest([(from_blob(blob), mtime_ns) for blob, mtime_ns in twins], passage.chunk.text)
    query = f"SELECT {PASSAGE} WHERE c.chunk_id = ? AND d.path = ? ORDER BY p.ordinal LIMIT 1"
    other = path != passage.path
    row = connection.execute(query, (passage.chunk.chunk_id, to_blob(path))).fetchone() if other else None
    return row, len(twins) - 1


def remove(connection: sqlite3.Connection, paths: Iterable[Path], bin_since: float | None = None) -> Removed:
    kept_rows: set[int] = set()
    documents = 0
    for path in paths:
        row = row_of(connection, path)
        if row is None:
            continue
        documents += 1
        kept_rows |= {chunk for (chunk,) in connection.execute("SELECT chunk FROM places WHERE document = ?", (row,))}
        connection.execute("DELETE FROM documents WHERE id = ?", (row,))
        connection.execute("DELETE FROM name_words WHERE rowid = ?", (row,))
    removed = drop_unheld(connection, kept_rows, bin_since)
    if documents:
        owe_scrub(connection)
        count_change(connection)
    return Removed(removed.chunks, documents, removed.vectors, removed.kv)


def row_of(connection: sqlite3.Connection, path: Path) -> int | None:
    known = connection.execute("SELECT id FROM documents WHERE path = ?", (to_blob(path),)).fetchone()
    return None if known is None else int(known[0])


def storable(text: str) -> str:
    """Lone surrogates cannot be stored as text; they become '?'."""
    return text.encode("utf-8", "replace").decode()


def await_texts(connection: sqlite3.Connection) -> None:
    """Do what `Catalog.await_texts` does, within a transaction."""
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (AWAITED, time.time()))


def owe_scrub(connection: sqlite3.Connection) -> None:
    """Note that text was deleted which older pages, index segments or the log may still hold."""
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (SCRUB_OWED, time.time()))


def document_faults(connection: sqlite3.Connection, row: int) -> list[Fault]:
    """Check one document's row, its places and their texts; return what is not as it was written."""
    fields = connection.execute(f"SELECT {checksums.DOCUMENT}, sum FROM documents WHERE id = ?", (row,)).fetchone()
    if fields is None:
        return []
    if checksums.document_sum(fields[:-1]) != fields[-1]:
        return [Fault(DAMAGED_ENTRY, existing(fields[1]))]
    path, num_places = from_blob(fields[1]), fields[11]
    faults: dict[Fault, None] = {}
    places = connection.execute(
        f"SELECT c.chunk_id, c.text, p.ordinal, {_PLACE}, p.sum"
        " FROM places p JOIN chunks c ON c.id = p.chunk WHERE p.document = ?",
        (row,),
    )
    count = 0
    for chunk_id, text, ordinal, *place, place_sum in places:
        count += 1
        if checksums.place_sum(row, ordinal, chunk_id, place) != place_sum:
            faults[Fault(DAMAGED_PLACE, path)] = None
        if not checksums.chunk_is_sound(chunk_id, text):
            faults[Fault(DAMAGED_TEXT, path)] = None
    if count != num_places:
        faults[Fault(_MISSING_PLACES, path)] = None
    return list(faults)


def is_entry(fault: Fault) -> bool:
    """True if the document's own row is damaged, not only what belongs to it."""
    return fault.what == DAMAGED_ENTRY


def drop_damaged_places(connection: sqlite3.Connection, row: int) -> None:
    """Remove what is damaged of a document whose own row is sound, and have it read anew."""
    places = connection.execute(
        f"SELECT p.ordinal, c.chunk_id, {_PLACE}, p.sum"
        " FROM places p LEFT JOIN chunks c ON c.id = p.chunk WHERE p.document = ?",
        (row,),
    ).fetchall()
    for ordinal, chunk_id, *place, place_sum in places:
        if checksums.place_sum(row, ordinal, chunk_id, place) != place_sum:
            connection.execute("DELETE FROM places WHERE document = ? AND ordinal IS ?", (row, ordinal))
    checksums.seal(connection, row, count=True)
    forget_stamp(connection, row)


DAMAGED_ENTRY = "The entry of a document is damaged."
DAMAGED_PLACE = "The place of a passage is damaged."
DAMAGED_TEXT = "The text of a passage is damaged."
WORDS_DISAGREE = "The word index does not agree with the texts."
_MISSING_PLACES = "Passages of a document are missing."


def existing(blob: object) -> Path | None:
    """The path of a damaged row, if a file is there: what else stands in its place must not be shown."""
    if not isinstance(blob, bytes) or b"\0" in blob:
        return None
    path = from_blob(blob)
    try:
        return path if path.is_absolute() and path.is_file() else None
    except (OSError, ValueError):
        return None


def is_stray(connection: sqlite3.Connection, chunk_id: str) -> bool:
    """True for a chunk whose row is there and which no document holds, or which only its index has lost."""
    # Not by the index, which may be what is damaged. Rare: a chunk that a search has just found was removed.
    row = connection.execute("SELECT id FROM chunks NOT INDEXED WHERE chunk_id = ?", (chunk_id,)).fetchone()
    if row is None:
        return connection.execute("SELECT 1 FROM chunks WHERE chunk_id = ?", (chunk_id,)).fetchone() is not None
    stored_row = connection.execute(
        "SELECT 1 FROM places p JOIN documents d ON d.id = p.document WHERE p.chunk = ? LIMIT 1", row
    ).fetchone()
    by_index = connection.execute("SELECT id FROM chunks WHERE chunk_id = ?", (chunk_id,)).fetchone()
    return stored_row is None or by_index != row


def stamp_values(stamp: FileStamp) -> tuple[int | str, ...]:
    """Return the values of the columns `STAMP`."""
    return stamp.size, stamp.mtime_ns, stamp.ctime_ns, str(stamp.inode), stamp.parser


def forget_stamp(connection: sqlite3.Connection, row: int) -> None:
    stamp = NO_STAMP
    connection.execute(
        f"UPDATE documents SET digest = '', {STAMP} WHERE id = ?", (*stamp_values(stamp), row)
    )
    checksums.seal(connection, row)


def count_change(connection: sqlite3.Connection) -> None:
    """Count a transaction that changed what is found, for `witness.Witness`."""
    connection.execute(
        "INSERT INTO state VALUES ('changes', 1) ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1"
    )


def document(row: Sequence[object]) -> DocumentRow | None:
    *columns, document_sum, num_chunks = row
    _, path, title, digest, size, mtime_ns, inode, parser, state, reason, indexed_at, _, ctime_ns = columns
    if checksums.document_sum(columns) != document_sum:
        present = existing(path)
        # With this stamp it differs from every file, so that the file is read anew.
        if present is None:
            return None
        return DocumentRow(present, "", "", NO_STAMP, FileState.FAILED, DAMAGED_ENTRY, 0, 0.0)
    assert isinstance(path, bytes) and isinstance(num_chunks, int)
    stamp = FileStamp(_int(size), _int(mtime_ns), _int(inode), str(parser), _int(ctime_ns))
    read_at = float(str(indexed_at))
    facts = str(title), str(digest), stamp, FileState(state), str(reason)
    return DocumentRow(from_blob(path), *facts, num_chunks, read_at)


def _int(value: object) -> int:
    return int(str(value))


def pending_chunks(
    connection: sqlite3.Connection, statement: str, values: Sequence[object], limit: int, faults: Faults
) -> list[PendingChunk]:
    """Run a query for (chunk id, text, path) that ends in a limit; return at most `limit` sound chunks.

    Damaged ones are noted and passed over.
    """
    most = limit
    while True:
        rows = connection.execute(statement, (*values, most)).fetchall()
        sound = [row for row in rows if checksums.chunk_is_sound(row[0], row[1]) and isinstance(row[2], bytes)]
        if len(sound) >= limit or len(rows) < most:
            break
        most *= 2
    if len(sound) < len(rows):
        faults.add("Texts that wait for a vector or chunk KV are damaged.")
    return [PendingChunk(ChunkId(chunk_id), text, from_blob(path)) for chunk_id, text, path in sound[:limit]]
