"""Remove documents with everything derived from them, and search the raw files for remaining text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import Protocol

from desk_rag.errors import StoreFull
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import Scope, from_blob
from desk_rag.store.catalog.volume_rows import VolumeRows
from desk_rag.store.chats.chats import forget_folder, saved_text
from desk_rag.store.chats.place import places
from desk_rag.store.layout import Layout
from desk_rag.store.maintenance import trace_search
from desk_rag.store.maintenance.full_disk import PurgeSpace
from desk_rag.store.types import PurgeReport

_SHORTEST_TRACE = 12
_SHORTEST_LINE = 6
"""Shortest line in bytes that is searched for in a chunk without longer ones; six rarely occur by chance."""
_LONGEST_TRACE = 64
_MOST_TRACES = 2_000
_WORD = re.compile(r"\w+")


class _Remover(Protocol):
    def remove_documents(self, paths: Iterable[Path]) -> tuple[int, int, int, int]: ...
    def empty_quarantine(self) -> int: ...
    def empty_bin(self) -> int: ...
    def checkpoint(self) -> bool: ...


def purge(store: _Remover, layout: Layout, database: Database, path: Path, *, verify: bool) -> PurgeReport:
    """Remove the documents at or below `path`; with `verify` search all raw files for their text afterwards."""
    scope = Scope([path])
    with database.read() as connection:
        rows = connection.execute(
            f"SELECT path, state = 'indexed' FROM documents WHERE {scope.path_condition('path')}", scope.values
        ).fetchall()
    paths = [from_blob(blob) for blob, _ in rows]
    pieces_by_chunk = _pieces(database, scope) if verify else []
    repeated = [*_repeated_in(saved_text(layout.root), database, scope), *_names(paths)]
    space = PurgeSpace(layout, path)
    _, chunks, kv_files, freed = _remove(store, space, database, paths)
    space.retry_when_full(lambda: VolumeRows(database).forget(path), database)
    repeated = [piece for piece in repeated if _is_gone(database, piece)]
    chat_turns = space.retry_when_full(lambda: forget_folder(layout.root, path, repeated), database)
    # All of it, because the bin does not record which folder its files came from.
    of_deleted = space.retry_when_full(store.empty_bin, database)
    store.empty_quarantine()  # a quarantined catalog holds text as well
    emptied = space.retry_when_full(store.checkpoint, database)
    pieces, unsearched = _unique(database, pieces_by_chunk)
    traces = _traces(layout, pieces)
    if not emptied:
        traces.append("another process was reading, so the write-ahead log could not be emptied")
    verified = verify and bool(pieces)
    return PurgeReport(
        sum(is_indexed for _, is_indexed in rows), chunks, kv_files, freed + space.freed, verified, tuple(traces),
        unsearched, chat_turns, of_deleted,
    )  # fmt: skip


def _names(paths: Iterable[Path]) -> list[str]:
    """Return the names of files that are no plain words: 'cat.eml', not 'notes'."""
    return [path.name for path in paths if path.suffix and len(path.name.encode()) >= _SHORTEST_LINE]


def _remove(store: _Remover, space: PurgeSpace, database: Database, paths: Sequence[Path]) -> tuple[int, int, int, int]:
    """Remove all documents at once; on a full drive one by one, which needs less space at a time."""
    try:
        return store.remove_documents(paths)
    except StoreFull:
        done = [0, 0, 0, 0]
        for path in paths:
            removed = space.retry_when_full(lambda one=path: store.remove_documents([one]), database)  # type: ignore[misc]
            done = [old + new for old, new in zip(done, removed, strict=True)]
            database.checkpoint()
        return done[0], done[1], done[2], done[3]


def _pieces(database: Database, scope: Scope) -> list[list[str]]:
    """Return characteristic pieces of every chunk: its lines and longest words."""
    with database.read() as connection:
        texts = connection.execute(
            f"SELECT text FROM chunks WHERE 1{scope.and_chunk('chunks.id')}", scope.values
        ).fetchall()
    return [_pieces_of(text) for (text,) in texts]


def _repeated_in(saved: str, database: Database, scope: Scope) -> list[str]:
    """Return the pieces of the documents in `scope` that stand in the `saved` text, whatever their case."""
    folded = saved.casefold()
    words = set(_WORD.findall(folded))
    if not words:
        return []
    pieces: dict[str, None] = {}
    for chunk in _pieces(database, scope):
        for piece in chunk:
            first = _WORD.search(piece.casefold())
            if first is not None and first.group() in words and piece.casefold() in folded:
                pieces[piece] = None
    return list(pieces)


def _pieces_of(text: str) -> list[str]:
    lines = [line.strip()[:_LONGEST_TRACE] for line in text.splitlines()]
    words = sorted(set(re.findall(r"\w{12,}", text)), key=len, reverse=True)[:3]
    long = [line for line in lines if len(line) >= _SHORTEST_TRACE]
    long += [form for word in words for form in (word, word.casefold())]
    short = [text.strip()[:_LONGEST_TRACE], *lines]
    pieces = long or [line for line in short if len(line.encode()) >= _SHORTEST_LINE]
    return list(dict.fromkeys(pieces))


def _unique(database: Database, pieces_by_chunk: Sequence[Sequence[str]]) -> tuple[list[bytes], int]:
    """Leave out pieces that may remain: those in other documents, in paths, titles or the schema.

    Returns the pieces to search for, the first of every chunk first, and the number of chunks without any.
    """
    pieces: dict[str, None] = {}
    known: dict[str, bool] = {}
    for rank in range(max(map(len, pieces_by_chunk), default=0)):
        for candidate in (chunk[rank] for chunk in pieces_by_chunk if rank < len(chunk)):
            if len(pieces) < _MOST_TRACES and candidate not in known:
                known[candidate] = _is_gone(database, candidate)
                if known[candidate]:
                    pieces[candidate] = None
    unsearched = sum(not any(piece in pieces for piece in chunk) for chunk in pieces_by_chunk)
    return [piece.encode() for piece in pieces], unsearched


def _is_gone(database: Database, piece: str) -> bool:
    """Return whether no document, path, title or statement of the schema contains a piece of text any more."""
    elsewhere = (
        "SELECT 1 FROM chunks WHERE instr(lower(text), lower(:piece))"
        " UNION ALL SELECT 1 FROM documents WHERE instr(lower(CAST(path AS TEXT)), lower(:piece))"
        " OR instr(lower(title), lower(:piece))"
        " UNION ALL SELECT 1 FROM sqlite_master WHERE instr(lower(sql), lower(:piece)) LIMIT 1"
    )
    with database.read() as connection:
        return connection.execute(elsewhere, {"piece": piece}).fetchone() is None


def _traces(layout: Layout, pieces: Sequence[bytes]) -> list[str]:
    if not pieces:
        return []
    roots = {layout.root, layout.kv} if layout.kv.is_dir() and not layout.kv.is_symlink() else {layout.root}
    roots |= {place for place in places(layout.root) if place.is_dir()}
    files = {path for root in roots for path, status in OwnedDirectory(root).scan(root) if S_ISREG(status.st_mode)}
    return trace_search.search(sorted(files), pieces)
