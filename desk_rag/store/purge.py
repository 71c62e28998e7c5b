"""Everything derived from a document removed, and the proof that it is. Knows raw files; trusts no row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from desk_rag.store.database import Database
from desk_rag.store.layout import Layout
from desk_rag.store.paths import Scope, from_blob
from desk_rag.store.types import PurgeReport

_SHORTEST_TRACE = 12
_LONGEST_TRACE = 64
_MOST_TRACES = 2_000
_READ_AT_ONCE = 16 << 20


class _Remover(Protocol):
    def remove_documents(self, paths: Iterable[Path]) -> tuple[int, int, int, int]: ...
    def empty_quarantine(self) -> int: ...
    def checkpoint(self) -> bool: ...


def purge(store: _Remover, layout: Layout, database: Database, path: Path, *, verify: bool) -> PurgeReport:
    """Remove the documents at or below `path`; with `verify` search all raw files for their text afterwards."""
    scope = Scope([path])
    with database.read() as connection:
        rows = connection.execute(
            f"SELECT path FROM documents WHERE {scope.path_condition('path')}", scope.values
        ).fetchall()
    paths = [from_blob(blob) for (blob,) in rows]
    wanted = _pieces(database, scope) if verify else []
    documents, chunks, kv_files, freed = store.remove_documents(paths)
    store.empty_quarantine()  # a catalog that was put aside holds text, whatever this one says
    emptied = store.checkpoint()
    traces = _traces(layout, _unique(database, wanted)) if verify else []
    if not emptied:
        traces.append("another process was reading, so the write-ahead log could not be emptied")
    return PurgeReport(documents, chunks, kv_files, freed, verify, tuple(traces))


def _pieces(database: Database, scope: Scope) -> list[str]:
    """Return one telling piece of every chunk: its longest words, as they stand."""
    with database.read() as connection:
        texts = connection.execute(
            f"SELECT text FROM chunks WHERE 1{scope.and_chunk('chunks.id')}", scope.values
        ).fetchall()
    pieces: dict[str, None] = {}
    for (text,) in texts:
        for line in text.splitlines():
            if len(line.strip()) >= _SHORTEST_TRACE:
                pieces[line.strip()[:_LONGEST_TRACE]] = None
        for word in sorted(set(re.findall(r"\w{12,}", text)), key=len, reverse=True)[:3]:
            pieces[word] = None
            pieces[word.casefold()] = None
    return list(pieces)[:_MOST_TRACES]


def _unique(database: Database, pieces: Sequence[str]) -> list[bytes]:
    """Leave out what other documents say too."""
    elsewhere = "SELECT 1 FROM chunks WHERE instr(lower(text), lower(?)) LIMIT 1"
    with database.read() as connection:
        return [
            piece.encode()
            for piece in pieces
            if connection.execute(elsewhere, (piece,)).fetchone() is None
        ]


def _traces(layout: Layout, pieces: Sequence[bytes]) -> list[str]:
    if not pieces:
        return []
    pattern = re.compile(b"|".join(re.escape(piece) for piece in pieces))
    longest = max(len(piece) for piece in pieces)
    found = []
    for file in sorted(place for place in layout.root.rglob("*") if place.is_file()):
        if any(pattern.search(block) for block in _blocks(file, longest)):
            found.append(str(file))
    return found


def _blocks(file: Path, overlap: int) -> Iterator[bytes]:
    with file.open("rb") as opened:
        tail = b""
        while block := opened.read(_READ_AT_ONCE):
            yield tail + block
            tail = block[-overlap:]
