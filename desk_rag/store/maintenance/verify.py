"""Check the whole store: catalog, rows against files, every checksum; repair by putting unsound parts aside."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from desk_rag.errors import CorruptKV, StoreError, UnknownFormat
from desk_rag.store.catalog import words
from desk_rag.store.catalog.catalog import (
    AWAITED,
    Catalog,
    KVName,
    await_texts,
    document_faults,
    drop_damaged_places,
    is_entry,
    owe_scrub,
    put_name,
)
from desk_rag.store.catalog.checksums import chunk_is_sound
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import from_blob
from desk_rag.store.kv.header import check_content, read_header
from desk_rag.store.kv.index import KVIndex, KVRow
from desk_rag.store.kv.reconcile import KVMaintenance
from desk_rag.store.layout import KVEntry, Layout, is_name
from desk_rag.store.maintenance.data_directory import foreign_files
from desk_rag.store.maintenance.sweep import words_sound
from desk_rag.store.types import Problem, VerifyReport
from desk_rag.store.vectors.search import vector_is_sound
from desk_rag.store.vectors.tokens import signs_are_sound

_UNHELD = "FROM chunks WHERE id NOT IN (SELECT chunk FROM places)"
_STRAY = {
    "places": "FROM places WHERE document NOT IN (SELECT id FROM documents) OR chunk NOT IN (SELECT id FROM chunks)",
    "vectors": "FROM vectors WHERE chunk NOT IN (SELECT id FROM chunks) OR embedder NOT IN (SELECT id FROM embedders)",
    "token_vectors": "FROM token_vectors"
    " WHERE chunk NOT IN (SELECT id FROM chunks) OR embedder NOT IN (SELECT id FROM embedders)",
    "kv": "FROM kv WHERE namespace NOT IN (SELECT id FROM namespaces)",
    "kv_chunks": "FROM kv_chunks WHERE kv NOT IN (SELECT id FROM kv)",
    "refused": "FROM refused WHERE chunk NOT IN (SELECT id FROM chunks)"
    " OR namespace NOT IN (SELECT id FROM namespaces)",
}
"""Rows without what they refer to, by table; in this order no removal makes another."""
_SCRUB_SECONDS = 60.0
"""A running `watch` scrubs deleted text within this time."""


class Verification:
    """One check of a store. The store stays in use meanwhile; what looks wrong is looked at again before it is said."""

    def __init__(
        self, layout: Layout, database: Database, rows: KVIndex, upkeep: KVMaintenance, *, writer: bool
    ) -> None:
        self._layout = layout
        self._database = database
        self._rows = rows
        self._upkeep = upkeep
        self._writer = writer

    def run(
        self,
        changing: Lock,
        *,
        repair: bool,
        subset: tuple[int, int] | None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> VerifyReport:
        """Check everything; with `subset=(i, n)` the content of every n-th KV file only, by name, i from 1 to n.

        `progress` hears how many KV files were looked at. `changing` is held while suspicions are looked at again, so
        that no write of this process is half way.
        """
        if subset is not None and not 1 <= subset[0] <= subset[1]:
            raise ValueError(f"a subset is (i, n) with 1 <= i <= n, not {subset}")
        problems, unusable = _check_catalog(self._database, repair=repair)
        if unusable:
            return VerifyReport(0, 0, 0, 0, tuple(problems), unusable=True)
        in_place = self._upkeep.kv.in_place()
        known = self._known() if in_place else {}
        entries = [entry for entry in self._layout.scan() if not entry.aside] if in_place else []
        foreign = set(foreign_files(self._layout.root, self._layout.kv_dir if in_place else None))
        entries = [entry for entry in entries if entry.path not in foreign]
        checked = [kv_entry for kv_entry in entries if kv_entry.path in known and _in_subset(kv_entry.path, subset)]
        unread = {kv_entry.path for kv_entry in entries} - {kv_entry.path for kv_entry in checked}
        suspects = []
        for number, kv_entry in enumerate(entries):
            progress(number, len(entries))
            if self._fault(kv_entry.path, known.get(kv_entry.path), unread):
                suspects.append(kv_entry.path)
        progress(len(entries), len(entries))
        suspects += known.keys() - {kv_entry.path for kv_entry in entries}
        with changing:
            known = known and self._known()
            for path in suspects:
                fault = self._fault(path, known.get(path), unread)
                if fault is not None:
                    if repair:
                        self._mend(path, known.get(path))
                    problems.append(Problem(fault, repaired=repair))
        with self._database.read() as connection:
            documents = connection.execute("SELECT count(*) FROM documents WHERE state = 'indexed'").fetchone()[0]
            chunks = connection.execute("SELECT count(*) FROM chunks").fetchone()[0]
        size = sum(entry.size for entry in checked)
        return VerifyReport(len(checked), size, documents, chunks, tuple(problems), tuple(sorted(foreign)))

    def _known(self) -> dict[Path, KVRow]:
        return {self._layout.kv_file(*row.name): row for row in self._rows.all()}

    def _fault(self, path: Path, row: KVRow | None, unread: set[Path]) -> str | None:
        try:
            entry = KVEntry(path, path.lstat().st_size)
        except FileNotFoundError:
            return f"{path} is missing." if row is not None else None
        if row is None:
            if not self._writer and (self._layout.run / "writer.pid").exists():
                return None  # another process may be writing it this moment
            return f"{path} was left by a write that was cut off." if entry.is_temporary else f"{path} has no row."
        if row.size != entry.size:
            return f"{path} has {entry.size} bytes, the catalog says {row.size}."
        if path in unread:
            return None
        if (fault := _content_fault(path, row.name)) is not None:
            return fault
        chunks = len(self._unlinked(path, row))
        return f"{path} holds the KV of {chunks} chunks that the catalog does not link to it." if chunks else None

    def _mend(self, path: Path, row: KVRow | None) -> None:
        if row is None:
            return  # adopted or removed by the reconciliation that follows a repair
        if _is_sound_in_place(self._layout, path):
            if row.size == path.stat().st_size and (unlinked := self._unlinked(path, row)):
                self._rows.link(row.name, unlinked)
                return
            self._rows.drop([row.name])  # the row is damaged, not the file, which is adopted again
            return
        self._upkeep.quarantine(path)
        self._rows.drop([row.name])

    def _unlinked(self, path: Path, row: KVRow) -> list[str]:
        header = read_header(path)
        return self._rows.unlinked(row.row, header.chunk_ids) if (header.namespace, header.tokens) == row.name else []


def _check_catalog(database: Database, *, repair: bool) -> tuple[list[Problem], bool]:
    """Check tables, rows and word indexes; also say whether the catalog is damaged beyond what can be mended in it."""
    lines = _structure(database)
    if lines and repair and all(_of_an_index(line) for line in lines):
        with suppress(StoreError), database.write() as connection:
            connection.execute("REINDEX")
        left = _structure(database)
        problems = [Problem(f"The catalog was damaged: {line}", repaired=not left) for line in lines]
        lines = left
    else:
        problems = [Problem(f"The catalog is damaged: {line}", repaired=False) for line in lines]
    if lines:
        return problems, True
    problems += [Problem(what, repaired=repair) for what in _check_rows(database, repair=repair)]
    # Only now: what the word indexes are rebuilt from must be sound.
    if (trace := _deleted_text(database, repair=repair)) is not None:
        problems.append(trace)
    for index in () if database.read_only else ("chunk_words", "name_words"):  # looking at them is a write to SQLite
        if not words_sound(database, index):
            if repair:
                with database.write() as connection:
                    connection.execute(f"INSERT INTO {index} ({index}) VALUES ('rebuild')")
            problems.append(Problem(f"The word index '{index}' does not agree with the texts.", repaired=repair))
    return problems, False


def _structure(database: Database) -> list[str]:
    """Return what SQLite finds wrong with pages and indexes; the word indexes are checked apart."""
    with database.read() as connection:
        lines = [str(line) for (line,) in connection.execute("PRAGMA integrity_check").fetchall()]
        return [line for line in lines if line != "ok" and "FTS5" not in line]


def _of_an_index(line: str) -> bool:
    return "index" in line and "Tree" not in line


def _check_rows(database: Database, *, repair: bool) -> list[str]:
    """Compare every row that an answer shows with its checksum, and every text with its hash.

    A repair removes what is damaged. The rows of chunk KV stay: they go by hashes, and the texts are expected back.
    """
    damaged = _damaged_documents(database)
    with database.snapshot() as connection:
        for table, find in _SUSPECTS.items():
            damaged.rows[table] = find(connection)
        strays = {table: connection.execute(f"SELECT count(*) {_STRAY[table]}").fetchone()[0] for table in _STRAY}
        awaited = connection.execute("SELECT 1 FROM state WHERE name = ?", (AWAITED,)).fetchone() is not None
        unheld = connection.execute(f"SELECT count(*) {_UNHELD}").fetchone()[0]
    damaged.sentences += [f"{len(rows)} {_WHAT[table]}." for table, rows in damaged.rows.items() if rows]
    counted = [(table, count) for table, count in strays.items() if count]
    damaged.sentences += [f"{count} rows of '{table}' refer to what is not there." for table, count in counted]
    if unheld and not awaited:
        damaged.sentences.append(f"{unheld} chunks belong to no document.")
    if repair and damaged.sentences:
        with database.write() as connection:
            _remove_damaged(connection, damaged)
    return damaged.sentences


@dataclass(slots=True)
class _Damaged:
    """Rows that differ from what was written."""

    sentences: list[str] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    """Rows of documents that are damaged themselves."""
    incomplete: list[int] = field(default_factory=list)
    """Rows of documents that are sound and have damaged places or texts."""
    rows: dict[str, list[int]] = field(default_factory=dict)
    """Rows of other tables."""


def _damaged_documents(database: Database) -> _Damaged:
    damaged = _Damaged()
    with database.read() as connection:
        documents = [row for (row,) in connection.execute("SELECT id FROM documents ORDER BY id").fetchall()]
    for row in documents:
        with database.snapshot() as connection:
            faults = document_faults(connection, row)
        damaged.sentences += [f"{fault.what[:-1]}: {fault.path or f'number {row}'}." for fault in faults]
        if faults:
            (damaged.documents if is_entry(faults[0]) else damaged.incomplete).append(row)
    return damaged


def _unlike_their_ids(connection: sqlite3.Connection) -> list[int]:
    rows = connection.execute("SELECT id, chunk_id, text FROM chunks")
    return [row for row, chunk_id, text in rows if not chunk_is_sound(chunk_id, text)]


def _unlike_their_grams(connection: sqlite3.Connection) -> list[int]:
    rows = connection.execute("SELECT id, text, grams FROM chunks")
    return [row for row, text, grams in rows if isinstance(text, str) and words.grams(text) != grams]


def _damaged_vectors(connection: sqlite3.Connection) -> list[int]:
    rows = connection.execute(
        "SELECT v.seq, v.chunk, v.vector, v.sum, e.dim FROM vectors v JOIN embedders e ON e.id = v.embedder"
    )
    return [seq for seq, chunk, vector, checksum, dim in rows if not vector_is_sound(chunk, vector, checksum, dim)]


def _damaged_token_vectors(connection: sqlite3.Connection) -> list[int]:
    rows = connection.execute(
        "SELECT t.id, t.chunk, t.signs, t.sum, t.bytes, e.dim"
        " FROM token_vectors t JOIN embedders e ON e.id = t.embedder"
    )
    return [row for row, *columns in rows if not signs_are_sound(*columns)]


def _damaged_names(connection: sqlite3.Connection) -> list[int]:
    rows = connection.execute(
        "SELECT d.id, d.path, n.c0 FROM documents d LEFT JOIN name_words_content n ON n.id = d.id"
        " WHERE d.state = 'indexed'"
    )
    return [row for row, path, name in rows if isinstance(path, bytes) and name != words.name_words(from_blob(path))]


def _damaged_files(connection: sqlite3.Connection) -> list[int]:
    rows = connection.execute("SELECT kv.id, n.name, kv.tokens FROM kv JOIN namespaces n ON n.id = kv.namespace")
    return [row for row, name, tokens in rows if not (is_name(name) and is_name(tokens))]


_SUSPECTS: dict[str, Callable[[sqlite3.Connection], list[int]]] = {
    "chunks": _unlike_their_ids,
    "grams": _unlike_their_grams,
    "vectors": _damaged_vectors,
    "token_vectors": _damaged_token_vectors,
    "name_words": _damaged_names,
    "kv": _damaged_files,
}
_WHAT = {
    "chunks": "texts do not have the hash that they are stored under",
    "grams": "texts are not indexed by the word parts that are made of them",
    "vectors": "vectors do not have their checksum",
    "token_vectors": "token vectors do not have their checksum",
    "name_words": "file names are not indexed as they are",
    "kv": "rows about KV files are damaged",
}


def _remove_damaged(connection: sqlite3.Connection, damaged: _Damaged) -> None:
    for condition in _STRAY.values():
        connection.execute(f"DELETE {condition}")
    for row in damaged.rows["name_words"]:
        put_name(connection, row)
    for row in damaged.documents:
        for statement in (
            "DELETE FROM places WHERE document = ?", "DELETE FROM name_words WHERE rowid = ?",
            "DELETE FROM documents WHERE id = ?",
        ):  # fmt: skip
            connection.execute(statement, (row,))
    for row in damaged.rows["chunks"]:
        connection.execute("DELETE FROM places WHERE chunk = ?", (row,))
        connection.execute("DELETE FROM chunks WHERE id = ?", (row,))
    for row in damaged.incomplete:
        drop_damaged_places(connection, row)
    for row in damaged.rows["grams"]:
        text_row = connection.execute("SELECT text FROM chunks WHERE id = ?", (row,)).fetchone()
        if text_row is not None:
            connection.execute("UPDATE chunks SET grams = ? WHERE id = ?", (words.grams(text_row[0]), row))
    connection.executemany("DELETE FROM vectors WHERE seq = ?", [(row,) for row in damaged.rows["vectors"]])
    connection.executemany("DELETE FROM token_vectors WHERE id = ?", [(r,) for r in damaged.rows["token_vectors"]])
    connection.executemany("DELETE FROM kv WHERE id = ?", [(row,) for row in damaged.rows["kv"]])
    # The index was told to forget damaged words, which it never held.
    connection.execute("INSERT INTO chunk_words (chunk_words) VALUES ('rebuild')")
    await_texts(connection)
    owe_scrub(connection)


def _deleted_text(database: Database, *, repair: bool) -> Problem | None:
    """Return a problem if deleted or edited text may remain in the catalog's files."""
    catalog = Catalog(database)
    since = catalog.scrub_owed()
    if since is None or 0 <= time.time() - since < _SCRUB_SECONDS:
        return None
    what = "Text that was deleted or edited away may still be in the catalog's files."
    return Problem(what, repaired=repair and catalog.scrub())


def _content_fault(path: Path, name: KVName) -> str | None:
    try:
        check_content(path, name)
    except FileNotFoundError:
        return None
    except (CorruptKV, UnknownFormat) as error:
        return error.message
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    return None


def _is_sound_in_place(layout: Layout, path: Path) -> bool:
    """True for a sound KV file that lies where its own header says."""
    try:
        header = read_header(path)
        name = (header.namespace, header.tokens)
        placed = is_name(name[0]) and is_name(name[1]) and layout.kv_file(*name) == path
        return placed and _content_fault(path, name) is None
    except (CorruptKV, UnknownFormat, OSError):
        return False


def _in_subset(path: Path, subset: tuple[int, int] | None) -> bool:
    return subset is None or int(path.stem[:8], 16) % subset[1] == subset[0] - 1
