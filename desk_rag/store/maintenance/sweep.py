"""The catalog checked a part at a time: rows against checksums, indexes against rows, words against texts."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import suppress

from desk_rag.errors import UNWRITABLE, CorruptCatalog
from desk_rag.store.catalog import words
from desk_rag.store.catalog.catalog import Catalog, document_faults
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import from_blob
from desk_rag.store.catalog.rows import WORDS_DISAGREE

_SECONDS = 0.25
_SECONDS_BESIDE_ANSWER = 0.1
_AGAIN_AFTER = 3600.0
_CHECKED_UP_TO = "checked_up_to"
_SMALL = 2_000
"""Chunks up to which the word indexes are compared as a whole beside an answer."""
_UNREADABLE = "A part of the catalog cannot be read."
_INDEX_DISAGREES = "An index of the catalog does not agree with its rows."
_DOCUMENTS_MISSING = "The entry of a document is missing."
_NAMES_DISAGREE = "The index of file names does not agree with the files."


class Sweep:
    """Goes round the documents of a catalog, from where the last part ended; faults are noted in the database."""

    def __init__(self, database: Database, catalog: Catalog) -> None:
        self._database = database
        self._catalog = catalog
        self._begun: int | None = None
        """The place where this process began its present round; None before its first."""
        self._wrapped = False
        self._turn = threading.Lock()
        self._completed = float("-inf")

    def run(self, seconds: float = _SECONDS) -> None:
        """Check the next documents for about so long; what is damaged is also marked to be read anew."""
        with self._turn:
            self._run(seconds)

    def run_beside_answer(self) -> None:
        """Check the next part, unless this process has checked all of it within the last hour."""
        if time.monotonic() - self._completed < _AGAIN_AFTER or not self._turn.acquire(blocking=False):
            return
        try:
            if self._begun is None and not self._database.read_only and self._catalog.last_chunk() <= _SMALL:
                self._compare_words()
            self._run(_SECONDS_BESIDE_ANSWER)
        except CorruptCatalog:
            self._database.faults.add(_UNREADABLE)
        finally:
            self._turn.release()

    def _compare_words(self) -> None:
        for index, fault in (("chunk_words", WORDS_DISAGREE), ("name_words", _NAMES_DISAGREE)):
            with suppress(*UNWRITABLE):
                if not words_sound(self._database, index):
                    self._database.faults.add(fault)

    def _run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._database.read() as connection:
            row = connection.execute("SELECT value FROM state WHERE name = ?", (_CHECKED_UP_TO,)).fetchone()
        last = row[0] if row is not None and isinstance(row[0], int) else 0
        if self._begun is None:
            self._begun, self._wrapped = last, False
        while True:
            last = self._check_next(last)
            around, self._wrapped = self._wrapped and not last, self._wrapped or not last
            if around or (self._wrapped and last >= self._begun):
                self._begun, self._completed = None, time.monotonic()
                break
            if time.monotonic() >= until:
                break
        with suppress(*UNWRITABLE), self._database.write(durable=False) as connection:
            connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (_CHECKED_UP_TO, last))

    def _check_next(self, last: int) -> int:
        """Check the document after row `last`, and that none is missing between; return its row, 0 after the last."""
        with self._database.snapshot() as connection:
            row = connection.execute("SELECT id FROM documents WHERE id > ? ORDER BY id LIMIT 1", (last,)).fetchone()
            end = (1 << 62) if row is None else row[0]
            between = "SELECT 1 FROM places WHERE document > ? AND document < ? LIMIT 1"
            if connection.execute(between, (last, end)).fetchone() is not None:
                self._database.faults.add(_DOCUMENTS_MISSING)
            if row is None:
                return 0
            faults = document_faults(connection, row[0])
            for fault in faults:
                self._database.faults.add(fault.what, fault.path)
            if not faults:
                self._check_indexes(connection, row[0])
        for path in {fault.path for fault in faults if fault.path is not None}:
            with suppress(*UNWRITABLE):
                self._catalog.read_again(path)
        return int(row[0])

    def _check_indexes(self, connection: sqlite3.Connection, document: int) -> None:
        """Look for a sound document, its places and its chunks in every index that leads to them."""
        path, state, name, by_path = connection.execute(
            "SELECT d.path, d.state, n.c0, (SELECT id FROM documents WHERE path = d.path) FROM documents d"
            " LEFT JOIN name_words_content n ON n.id = d.id WHERE d.id = ?", (document,)
        ).fetchone()  # fmt: skip
        if by_path != document:
            self._database.faults.add(_INDEX_DISAGREES)
        if state == "indexed" and name != words.name_words(from_blob(path)):
            self._database.faults.add(_NAMES_DISAGREE)
        chunks = connection.execute(
            "SELECT c.id, c.text, (SELECT id FROM chunks WHERE chunk_id = c.chunk_id),"
            " (SELECT count(*) FROM places INDEXED BY places_chunk"
            "  WHERE chunk = p.chunk AND document = p.document AND ordinal = p.ordinal)"
            " FROM places p JOIN chunks c ON c.id = p.chunk WHERE p.document = ?", (document,)
        )  # fmt: skip
        for chunk, text, by_id, places in chunks:
            if by_id != chunk or places != 1:
                self._database.faults.add(_INDEX_DISAGREES)
            if not words.text_is_indexed(connection, chunk, text):
                self._database.faults.add(WORDS_DISAGREE)


def words_sound(database: Database, index: str) -> bool:
    """Compare a word index with all that it was made from. Raises StoreFull, StoreReadOnly: to SQLite it is a write."""
    try:
        with database.write(durable=False) as connection:
            # rank = 1 compares the index with the texts, not only with itself
            connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 1)")
    except CorruptCatalog:
        return False
    return True
