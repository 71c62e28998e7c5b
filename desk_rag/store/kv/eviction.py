"""In which order chunk KV gives way, and which namespaces count as one model's. Knows rows; removes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from desk_rag.store.catalog.catalog import KVName
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import Scope, from_blob


@dataclass(frozen=True, slots=True)
class Candidate:
    """One KV file as eviction sees it."""

    row: int
    name: KVName
    size: int
    rank: float
    pinned: bool
    above: int | None
    """Of the model that room is made for: by how many rungs above what it is made for; None for another model's and for
    what is in the bin."""


_HELD = "held_together"


def register_model(database: Database, names: Sequence[str]) -> None:
    """These are one model's, until told otherwise; one name alone stands for itself again. Written only if it is new.

    Kept in the catalog, because who has loaded no model needs it too: to make room, or to say how much is to come.
    """
    with database.read() as connection:
        if namespaces_of_model(connection, names[0]) == tuple(names):
            return
    with database.write() as connection:
        connection.execute("DELETE FROM state WHERE name = ?", (_HELD,))
        if len(names) > 1:
            connection.execute("INSERT INTO state VALUES (?, ?)", (_HELD, " ".join(names)))


def namespaces_of_model(connection: sqlite3.Connection, name: str) -> tuple[str, ...]:
    """The namespaces of the same model, this one among them, from the plain rung upward."""
    found = connection.execute("SELECT value FROM state WHERE name = ?", (_HELD,)).fetchone()
    names = tuple(str(found[0]).split()) if found else ()
    return names if name in names else (name,)


def candidates(connection: sqlite3.Connection, own: str | None) -> Generator[Candidate, None, None]:
    """Yield rows in the order of eviction: the bin, then other models than that of `own`, by rank in each, pinned last.

    Of our own the highest rung goes first: it makes some answers better, while the plain one makes them fast. A pin
    keeps what the model in use has of a folder; what another model, or this one before a drift, left there goes before.
    `own` None means the namespace used last. Nothing is read beyond what is taken.
    """
    pinned, binned = _pinned_rows(connection), set[int]()
    for row, name, tokens, size, rank in connection.execute(
        "SELECT kv.id, n.name, tokens, bytes, rank FROM bin JOIN kv ON kv.id = bin.kv"
        " JOIN namespaces n ON n.id = kv.namespace ORDER BY bin.since, rank, kv.id"
    ):
        binned.add(row)
        yield Candidate(row, (name, tokens), size, rank, pinned=False, above=None)
    own = own or _used_last(connection)
    held = () if own is None else namespaces_of_model(connection, own)
    known = {name: number for number, name in connection.execute("SELECT id, name FROM namespaces ORDER BY id")}
    passes = (False, True) if pinned else (False,)
    order = [(name, late) for name in known if name not in held for late in passes]
    order += [(name, late) for late in passes for name in reversed(held) if name in known]
    for name, late in order:
        above = held.index(name) - held.index(str(own)) if name in held else None
        rows = connection.execute(
            "SELECT id, tokens, bytes, rank FROM kv WHERE namespace = ? ORDER BY rank, id", (known[name],)
        )
        for row, tokens, size, rank in rows:
            if (row in pinned) is late and row not in binned:
                yield Candidate(row, (name, tokens), size, rank, late, above)


def pinned_folders(connection: sqlite3.Connection) -> list[Path]:
    """Folders whose chunk KV goes last."""
    return [from_blob(path) for (path,) in connection.execute("SELECT path FROM pins ORDER BY path")]


def _used_last(connection: sqlite3.Connection) -> str | None:
    found = connection.execute(
        "SELECT n.name FROM kv JOIN namespaces n ON n.id = kv.namespace ORDER BY kv.tick DESC, kv.id DESC LIMIT 1"
    ).fetchone()
    return None if found is None else str(found[0])


def _pinned_rows(connection: sqlite3.Connection) -> set[int]:
    folders = Scope(pinned_folders(connection))
    if folders.everything:
        return set()
    rows = connection.execute(
        "SELECT k.kv FROM kv_chunks k JOIN chunks c ON c.chunk_id = k.chunk_id"
        f" WHERE c.id IN {folders.chunk_rows()}",
        folders.values,
    )
    return {row for (row,) in rows}
