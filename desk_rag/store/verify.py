"""The whole store checked: catalog, rows against files, every checksum. Knows what is sound; mends by putting aside."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from threading import Lock

import xxhash

from desk_rag.errors import CorruptKV, StoreError, UnknownFormat
from desk_rag.store.catalog import Catalog, KVName
from desk_rag.store.database import Database
from desk_rag.store.kv_rows import KVRow, KVRows
from desk_rag.store.layout import KVEntry, Layout
from desk_rag.store.types import Problem, VerifyReport
from desk_rag.store.upkeep import Upkeep, read_header

_READ_AT_ONCE = 8 << 20
_SCRUB_SECONDS = 60.0
"""A running `watch` scrubs deleted text within this time."""


class Verification:
    """One check of a store. The store stays in use meanwhile; what looks wrong is looked at again before it is said."""

    def __init__(self, layout: Layout, database: Database, rows: KVRows, *, writer: bool) -> None:
        self._layout = layout
        self._database = database
        self._rows = rows
        self._writer = writer

    def run(self, changing: Lock, *, repair: bool, subset: tuple[int, int] | None) -> VerifyReport:
        """Check everything; with `subset=(i, n)` the content of every n-th KV file only, by name, i from 1 to n.

        `changing` is held while suspicions are looked at again, so that no write of this process is half way.
        """
        if subset is not None and not 1 <= subset[0] <= subset[1]:
            raise ValueError(f"a subset is (i, n) with 1 <= i <= n, not {subset}")
        problems = _check_catalog(self._database, repair=repair)
        known = self._known()
        entries = [found for found in self._layout.scan() if not found.path.is_relative_to(self._layout.quarantine)]
        checked = [found for found in entries if found.path in known and _in_subset(found.path, subset)]
        unread = {found.path for found in entries} - {found.path for found in checked}
        suspects = [found.path for found in entries if self._fault(found.path, known.get(found.path), unread)]
        suspects += known.keys() - {found.path for found in entries}
        with changing:
            known = self._known()
            for path in suspects:
                fault = self._fault(path, known.get(path), unread)
                if fault is not None:
                    if repair:
                        self._mend(path, known.get(path))
                    problems.append(Problem(fault, repaired=repair))
        with self._database.read() as connection:
            documents = connection.execute("SELECT count(*) FROM documents WHERE state = 'indexed'").fetchone()[0]
            chunks = connection.execute("SELECT count(*) FROM chunks").fetchone()[0]
        return VerifyReport(len(checked), sum(found.size for found in checked), documents, chunks, tuple(problems))

    def _known(self) -> dict[Path, KVRow]:
        return {self._layout.kv_file(*row.name): row for row in self._rows.all()}

    def _fault(self, path: Path, row: KVRow | None, unread: set[Path]) -> str | None:
        try:
            entry = KVEntry(path, path.stat().st_size)
        except FileNotFoundError:
            return f"{path} is missing." if row is not None else None
        if row is None:
            if not self._writer and (self._layout.run / "writer.pid").exists():
                return None  # another process may be writing it this moment
            return f"{path} was left by a write that was cut off." if entry.is_temporary else f"{path} has no row."
        if row.size != entry.size:
            return f"{path} has {entry.size} bytes, the catalog says {row.size}."
        return None if path in unread else _content_fault(path, row.name)

    def _mend(self, path: Path, row: KVRow | None) -> None:
        if row is not None:
            Upkeep(self._layout, self._rows).quarantine(path)
            self._rows.drop([row.name])
        # a file without a row is adopted or removed by the reconciliation that follows a repair


def check_content(path: Path, name: KVName) -> None:
    """Read a KV file through and raise CorruptKV or UnknownFormat unless every byte of it is right."""
    header = read_header(path)
    if (header.namespace, header.tokens) != name:
        raise CorruptKV(f"{path} holds the KV of another chunk or model.")
    with path.open("rb") as file:
        file.seek(header.data_start)
        for group in header.groups:
            digest = xxhash.xxh3_64()
            left = group.end - group.start
            while left and (block := file.read(min(left, _READ_AT_ONCE))):
                digest.update(block)
                left -= len(block)
            if digest.hexdigest() != group.checksum:
                last = group.first_layer + group.num_layers - 1
                raise CorruptKV(f"{path} is damaged in layers {group.first_layer} to {last}.")


def _check_catalog(database: Database, *, repair: bool) -> list[Problem]:
    problems = []
    with database.read() as connection:
        for (line,) in connection.execute("PRAGMA quick_check").fetchall():
            if line != "ok":
                problems.append(Problem(f"The catalog is damaged: {line}", repaired=False))
        for table, *_ in connection.execute("PRAGMA foreign_key_check").fetchall():
            problems.append(Problem(f"A row of '{table}' refers to one that does not exist.", repaired=False))
        unheld = connection.execute(
            "SELECT count(*) FROM chunks WHERE NOT EXISTS (SELECT 1 FROM places WHERE chunk = chunks.id)"
        ).fetchone()[0]
    if (trace := _deleted_text(database, repair=repair)) is not None:
        problems.append(trace)
    if unheld:
        problems.append(Problem(f"{unheld} chunks belong to no document.", repaired=False))
    for index in () if database.read_only else ("chunk_words", "name_words"):  # looking at them is a write to SQLite
        if not _words_sound(database, index):
            if repair:
                with database.write() as connection:
                    connection.execute(f"INSERT INTO {index} ({index}) VALUES ('rebuild')")
            problems.append(Problem(f"The word index '{index}' does not agree with the texts.", repaired=repair))
    return problems


def _deleted_text(database: Database, *, repair: bool) -> Problem | None:
    """What is to be said where text that was deleted or edited away may still stand in the catalog's files."""
    catalog = Catalog(database)
    since = catalog.scrub_owed()
    if since is None or 0 <= time.time() - since < _SCRUB_SECONDS:
        return None
    what = "Text that was deleted or edited away may still be in the catalog's files."
    return Problem(what, repaired=repair and catalog.scrub())


def _words_sound(database: Database, index: str) -> bool:
    try:
        with database.write(durable=False) as connection:
            # rank = 1 compares the index with the texts, not only with itself
            connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 1)")
    except StoreError as error:
        if isinstance(error.__cause__, sqlite3.OperationalError):
            raise
        return False
    return True


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


def _in_subset(path: Path, subset: tuple[int, int] | None) -> bool:
    return subset is None or int(path.stem[:8], 16) % subset[1] == subset[0] - 1
