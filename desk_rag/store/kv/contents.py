"""Describe the chunk KV on disk and what would be evicted next; for people, not for decisions."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import from_blob
from desk_rag.store.catalog.rows import location_of
from desk_rag.store.kv.eviction import Candidate, candidates, pinned_folders

_SAMPLE = 500
"""Newest chunks from which the length of their text per token is taken."""


@dataclass(frozen=True, slots=True)
class NextToGo:
    """A chunk KV file that is deleted when room is needed."""

    path: Path | None
    """A document with the chunk; None if no document holds it any more."""
    size: int
    reason: str
    """Reason why it goes before others."""
    place: str = ""
    """Place of the chunk in the document: 'p. 4', 'lines 12-40'; '' where it is not known."""


@dataclass(frozen=True, slots=True)
class CacheContents:
    """The chunk KV of all models on disk."""

    files: int
    kv_bytes: int
    text_bytes: float
    """Text behind it, roughly; a text kept for two models counts twice."""
    next: tuple[NextToGo, ...]
    pins: tuple[Path, ...]


def cache_contents(database: Database, most_next: int) -> CacheContents:
    """Return amounts, and the first `most_next` files in the order of eviction."""
    with database.snapshot() as connection:
        files, kv_bytes, tokens = connection.execute(
            "SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(num_tokens), 0) FROM kv"
        ).fetchone()
        length, sampled = connection.execute(
            "SELECT coalesce(sum(length(CAST(text AS BLOB))), 0), coalesce(sum(num_tokens), 0) FROM"
            " (SELECT text, num_tokens FROM chunks ORDER BY id DESC LIMIT ?)",
            (_SAMPLE,),
        ).fetchone()
        binned = {row for (row,) in connection.execute("SELECT kv FROM bin")}
        gone = tuple(_next(connection, one, binned) for one in islice(candidates(connection, None), most_next))
        pins = tuple(pinned_folders(connection))
    return CacheContents(files, kv_bytes, tokens * length / sampled if sampled else 0.0, gone, pins)


def _next(connection: sqlite3.Connection, candidate: Candidate, binned: set[int]) -> NextToGo:
    row = connection.execute(
        "SELECT d.path, p.heading, p.page_start, p.page_end, p.line_start, p.line_end"
        " FROM kv_chunks k JOIN chunks c ON c.chunk_id = k.chunk_id JOIN places p ON p.chunk = c.id"
        " JOIN documents d ON d.id = p.document WHERE k.kv = ? ORDER BY d.path LIMIT 1",
        (candidate.row,),
    ).fetchone()
    if candidate.row in binned:
        reason = "its document left the index"
    elif candidate.above is None:
        reason = "of a model that is not in use"
    elif candidate.pinned:
        reason = "pinned; goes after all others"
    else:
        reason = "saves least: used seldom or long ago"
    if row is None:
        return NextToGo(None, candidate.size, reason)
    path = from_blob(row[0])
    return NextToGo(path, candidate.size, reason, str(location_of((*row[1:], ""), path)))
