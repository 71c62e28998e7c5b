"""List the paths of the catalog, a part at a time, for lists that are too long to be read as a whole.

A list is an array of document rows in path order; `rows` reads those that are looked at. Nothing here changes anything.
"""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from desk_rag.documents.status import FileState
from desk_rag.errors import Cancelled
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import Scope, from_blob, to_blob
from desk_rag.store.catalog.rows import DOCUMENT, document
from desk_rag.store.types import FOLDER, DocumentRow, UnreadGroup

_SLASH = b"/"
_UNREAD = (FileState.SKIPPED.value, FileState.FAILED.value)
_WARM = (
    "(SELECT count(*) FROM places p JOIN chunks c ON c.id = p.chunk WHERE p.document = d.id AND EXISTS ("
    "SELECT 1 FROM kv_chunks k JOIN kv ON kv.id = k.kv JOIN namespaces n ON n.id = kv.namespace"
    " WHERE k.chunk_id = c.chunk_id AND n.name = ?))"
)
_AT_ONCE = 500
"""Rows read with one statement; SQLite limits the number of parameters."""
_MOST_FOLDERS = 100
"""Folders that a search lists."""
_STEPS_BETWEEN_LOOKS = 20_000
"""Steps of SQLite's virtual machine, about a millisecond, after which a search looks whether it is still wanted."""


@dataclass(frozen=True, slots=True)
class ListedDocument:
    """A document's row and how many of its chunks have chunk KV."""

    row: DocumentRow
    warm: int


@dataclass(frozen=True, slots=True)
class FolderCounts:
    """Files at any depth below one folder, by what became of them."""

    path: Path
    indexed: int = 0
    failed: int = 0
    skipped: int = 0


class Listing:
    """Queries over documents in path order. Safe to use from several threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def matching(
        self,
        under: Path | None,
        terms: Sequence[str] = (),
        states: Collection[FileState] = (),
        stop: Callable[[], bool] | None = None,
    ) -> array[int]:
        """Return the documents at any depth below `under` whose path below it holds all `terms`, in any case.

        Without `states` in any state. Raises Cancelled within milliseconds once `stop` returns True.
        """
        where, values = _holding(under, terms)
        return self._documents(where, values, states, stop)

    def folders_matching(
        self, under: Path, terms: Sequence[str], stop: Callable[[], bool] | None = None
    ) -> list[FolderCounts]:
        """Return the folders at any depth below `under` whose own name holds a term and whose path holds all of them.

        Of many the first ones only. Raises Cancelled within milliseconds once `stop` returns True.
        """
        where, values = _holding(under, terms)
        folders: dict[bytes, None] = {}
        begin, wanted = _length_below(under) - 1, [os.fsencode(term).lower() for term in terms]
        with self._until(stop) as connection:
            for (path,) in connection.execute(f"SELECT path FROM documents WHERE {where} ORDER BY path", values):
                parts = bytes(path)[begin:].split(_SLASH)[:-1]
                for depth, name in enumerate(parts, start=1):
                    shown = _SLASH.join(parts[:depth]).lower()
                    if any(term in name.lower() for term in wanted) and all(term in shown for term in wanted):
                        folders[_SLASH.join(parts[:depth])] = None
                if len(folders) >= _MOST_FOLDERS:
                    break
        return [self.count(under / from_blob(folder)) for folder in folders]

    def in_folder(self, folder: Path, states: Collection[FileState] = ()) -> array[int]:
        """Return the documents directly in `folder`; without `states` in any state."""
        where, values = _below(folder)
        name = f"substr(path, {_length_below(folder)})"
        return self._documents(f"{where} AND instr({name}, x'2f') = 0", values, states)

    def subfolders(self, folder: Path) -> list[FolderCounts]:
        """Return the folders directly in `folder` that hold known files at any depth, in name order."""
        where, values = _below(folder)
        name = f"substr(path, {_length_below(folder)})"
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT substr({name}, 1, instr({name}, x'2f') - 1) AS folder, state, count(*) FROM documents"
                f" WHERE {where} AND instr({name}, x'2f') > 0 GROUP BY 1, 2 ORDER BY 1",
                values,
            ).fetchall()
        counts: dict[bytes, dict[str, int]] = {}
        for child, state, number in rows:
            counts.setdefault(bytes(child), {})[str(state)] = number
        return [_counts(folder / from_blob(child), by_state) for child, by_state in counts.items()]

    def count(self, folder: Path) -> FolderCounts:
        """Count the files at any depth below `folder`."""
        scope = Scope([folder])
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT state, count(*) FROM documents WHERE {scope.path_condition('path')} GROUP BY 1", scope.values
            ).fetchall()
        return _counts(folder, dict(rows))

    def names_in(self, folder: Path) -> set[bytes]:
        """Return the names of all files and folders directly in `folder` that are known, as bytes."""
        where, values = _below(folder)
        name = f"substr(path, {_length_below(folder)})"
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT DISTINCT CASE instr({name}, x'2f') WHEN 0 THEN {name}"
                f" ELSE substr({name}, 1, instr({name}, x'2f') - 1) END FROM documents WHERE {where}",
                values,
            ).fetchall()
        return {bytes(child) for (child,) in rows}

    def changes(self) -> int:
        """Return a number that differs after every change of what is indexed."""
        with self._database.read() as connection:
            row = connection.execute("SELECT value FROM state WHERE name = 'changes'").fetchone()
        return row[0] if row is not None and isinstance(row[0], int) else 0

    def newest_outcome(self) -> float:
        """Return the Unix time at which a file was last read or left out; 0 if none was."""
        with self._database.read() as connection:
            return float(connection.execute("SELECT COALESCE(MAX(indexed_at), 0) FROM documents").fetchone()[0])

    def rows(self, documents: Sequence[int], namespace: str | None = None) -> list[ListedDocument | None]:
        """Return these documents in the given order; None for one that was removed meanwhile.

        Without a namespace no chunk counts as warm.
        """
        listed: dict[int, ListedDocument] = {}
        with self._database.read() as connection:
            for start in range(0, len(documents), _AT_ONCE):
                some = list(documents[start : start + _AT_ONCE])
                marks = ", ".join("?" * len(some))
                query = f"SELECT d.id, {_WARM}, {DOCUMENT} FROM documents d WHERE d.id IN ({marks})"
                for row_id, warm, *columns in connection.execute(query, (namespace or "", *some)):
                    row = document(columns)
                    if row is not None:
                        listed[row_id] = ListedDocument(row, warm)
        return [listed.get(row_id) for row_id in documents]

    def at(self, paths: Sequence[Path]) -> dict[Path, tuple[int, DocumentRow]]:
        """Return the known ones of these paths, each with its document and its row."""
        known: dict[Path, tuple[int, DocumentRow]] = {}
        by_blob = {to_blob(path): path for path in paths}
        blobs = list(by_blob)
        with self._database.read() as connection:
            for start in range(0, len(blobs), _AT_ONCE):
                some = blobs[start : start + _AT_ONCE]
                query = (
                    f"SELECT d.id, d.path, {DOCUMENT} FROM documents d WHERE d.path IN ({', '.join('?' * len(some))})"
                )
                for row_id, blob, *columns in connection.execute(query, some):
                    row = document(columns)
                    if row is not None:
                        known[by_blob[blob]] = row_id, row
        return known

    def unread_groups(self, under: Sequence[Path] = ()) -> list[UnreadGroup]:
        """Return the skipped and failed files, and the folders left out as a whole, grouped by reason without path."""
        scope, bare = Scope(under), "replace(reason, CAST(path AS TEXT) || ' ', '')"
        query = f"SELECT state, {bare}, parser = ?, count(*), max(path) FROM documents WHERE state IN (?, ?)"
        values = (FOLDER.parser, *_UNREAD, *scope.values)
        with self._database.read() as connection:
            rows = connection.execute(f"{query}{scope.and_path('path')} GROUP BY 1, 2, 3", values)
            return [
                UnreadGroup(FileState(state), reason, number, from_blob(path) if is_folder else None)
                for state, reason, is_folder, number, path in rows
            ]

    def unread_files(self, under: Sequence[Path], most: int) -> list[tuple[Path, FileState, str, bool]]:
        """Return (path, state, reason, whether a folder) of at most `most` not read, those last looked at first."""
        scope, values = Scope(under), (FOLDER.parser, *_UNREAD)
        query = f"SELECT path, state, reason, parser = ? FROM documents WHERE state IN (?, ?){scope.and_path('path')}"
        with self._database.read() as connection:
            rows = connection.execute(f"{query} ORDER BY id DESC LIMIT ?", (*values, *scope.values, most))
            return [(from_blob(path), FileState(state), reason, bool(folder)) for path, state, reason, folder in rows]

    def _documents(
        self,
        where: str,
        values: Sequence[object],
        states: Collection[FileState],
        stop: Callable[[], bool] | None = None,
    ) -> array[int]:
        if states:
            where += f" AND state IN ({', '.join('?' * len(states))})"
        query = f"SELECT id FROM documents WHERE {where} ORDER BY path"
        with self._until(stop) as connection:
            rows = connection.execute(query, (*values, *(state.value for state in states)))
            return array("q", (row_id for (row_id,) in rows))

    @contextmanager
    def _until(self, stop: Callable[[], bool] | None) -> Iterator[sqlite3.Connection]:
        """Lend the connection for a search that raises Cancelled once `stop` returns True."""
        with self._database.read() as connection:
            connection.set_progress_handler(stop, _STEPS_BETWEEN_LOOKS)
            try:
                yield connection
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    raise Cancelled("The search is not wanted any more.") from error
                raise
            finally:
                connection.set_progress_handler(None, 0)


def _holding(under: Path | None, terms: Sequence[str]) -> tuple[str, list[object]]:
    """Return the condition for documents at or below `under` whose path below it holds all terms, in any case."""
    scope = Scope([] if under is None else [under])
    where, values = scope.path_condition("path"), list[object](scope.values)
    shown = f"CAST(substr(path, {_length_below(under)}) AS TEXT)"
    for term in terms:
        cases = _cases(term)
        where += f" AND ({' OR '.join([f'instr(lower({shown}), ?)'] * len(cases))})"
        values += cases
    return where, values


def _below(folder: Path) -> tuple[str, tuple[bytes, bytes]]:
    start = to_blob(folder).rstrip(_SLASH) + _SLASH
    return "path >= ? AND path < ?", (start, start[:-1] + b"0")


def _length_below(folder: Path | None) -> int:
    """Return where the part of a path below `folder` begins, counted from 1 in bytes."""
    return 1 if folder is None else len(to_blob(folder).rstrip(_SLASH)) + 2


def _cases(term: str) -> list[str]:
    """Return the forms of a term to look for: SQLite turns only ASCII letters into small ones."""
    forms = (term.lower(), term.upper(), term.title())
    return list(dict.fromkeys("".join(c.lower() if c.isascii() else c for c in form) for form in forms))


def _counts(folder: Path, by_state: dict[str, int]) -> FolderCounts:
    return FolderCounts(
        folder,
        by_state.get(FileState.INDEXED.value, 0),
        by_state.get(FileState.FAILED.value, 0),
        by_state.get(FileState.SKIPPED.value, 0),
    )
