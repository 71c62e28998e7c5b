"""Order chunk KV for eviction, and record which namespaces belong to one model."""

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
    """A KV file that may be evicted."""

    row: int
    name: KVName
    size: int
    rank: float
    pinned: bool
    above: int | None
    """Prefix variants above the namespace that needs room; None for another model's and for what is in the bin."""


_NAMESPACES = "held_together"
"""Row of `state` with the namespaces of the current model, separated by spaces."""
_AUXILIARY = "auxiliary"
"""Row of `state` with the plain namespace of the current model and that of the auxiliary model beside it."""


def register_model(database: Database, names: Sequence[str], auxiliary: str = "") -> None:
    """Record that these namespaces belong to one model; a single name ends the grouping. Written only if changed.

    `auxiliary` is the namespace of the model that selects tokens beside it, '' if there is none. The catalog keeps this
    for processes that load no model but make room or estimate sizes.
    """
    with database.read() as connection:
        known = namespaces_of_model(connection, names[0]), auxiliary_of(connection, names[0])
        if known == (tuple(names), auxiliary):
            return
    with database.write() as connection:
        connection.execute("DELETE FROM state WHERE name IN (?, ?)", (_NAMESPACES, _AUXILIARY))
        if len(names) > 1:
            connection.execute("INSERT INTO state VALUES (?, ?)", (_NAMESPACES, " ".join(names)))
        if auxiliary:
            connection.execute("INSERT INTO state VALUES (?, ?)", (_AUXILIARY, f"{names[0]} {auxiliary}"))


def namespaces_of_model(connection: sqlite3.Connection, name: str) -> tuple[str, ...]:
    """Return the namespaces of the same model, including this one, from the plain variant upwards."""
    row = connection.execute("SELECT value FROM state WHERE name = ?", (_NAMESPACES,)).fetchone()
    names = tuple(str(row[0]).split()) if row else ()
    return names if name in names else (name,)


def auxiliary_of(connection: sqlite3.Connection, name: str | None) -> str:
    """Return the auxiliary's namespace beside the model of a namespace, or beside any for None; '' if there is none."""
    plain, auxiliary = _auxiliary_row(connection)
    return auxiliary if name is None or plain in namespaces_of_model(connection, name) else ""


def family_of(connection: sqlite3.Connection, name: str) -> tuple[str, ...]:
    """Return the namespaces of a model and of its auxiliary, which comes last, from either's namespace."""
    plain, auxiliary = _auxiliary_row(connection)
    names = namespaces_of_model(connection, plain if name == auxiliary else name)
    return (*names, auxiliary) if auxiliary and plain in names else names


def _auxiliary_row(connection: sqlite3.Connection) -> tuple[str, str]:
    row = connection.execute("SELECT value FROM state WHERE name = ?", (_AUXILIARY,)).fetchone()
    plain, _, auxiliary = str(row[0] if row else "").partition(" ")
    return plain, auxiliary


def candidates(connection: sqlite3.Connection, own: str | None) -> Generator[Candidate, None, None]:
    """Yield rows in the order of eviction: the bin, other models, then the model of `own`; pinned rows last in each.

    Within a namespace the lowest rank is first. Of the model of `own` the auxiliary's namespace is first, then the
    highest prefix variant: it improves some answers, while the plain one makes them fast. Pins protect only the chunk
    KV of the model in use. `own` None means the namespace used last. Rows are read as they are taken.
    """
    pinned, binned = _pinned_rows(connection), set[int]()
    for row, name, tokens, size, rank in connection.execute(
        "SELECT kv.id, n.name, tokens, bytes, rank FROM bin JOIN kv ON kv.id = bin.kv"
        " JOIN namespaces n ON n.id = kv.namespace ORDER BY bin.since, rank, kv.id"
    ):
        binned.add(row)
        yield Candidate(row, (name, tokens), size, rank, pinned=False, above=None)
    own = own or _used_last(connection)
    own_names = () if own is None else family_of(connection, own)
    known = {name: number for number, name in connection.execute("SELECT id, name FROM namespaces ORDER BY id")}
    passes = (False, True) if pinned else (False,)
    order = [(name, late) for name in known if name not in own_names for late in passes]
    order += [(name, late) for late in passes for name in reversed(own_names) if name in known]
    for name, late in order:
        above = own_names.index(name) - own_names.index(str(own)) if name in own_names else None
        rows = connection.execute(
            "SELECT id, tokens, bytes, rank FROM kv WHERE namespace = ? ORDER BY rank, id", (known[name],)
        )
        for row, tokens, size, rank in rows:
            if (row in pinned) is late and row not in binned:
                yield Candidate(row, (name, tokens), size, rank, late, above)


def pinned_folders(connection: sqlite3.Connection) -> list[Path]:
    """Return the folders whose chunk KV is evicted last."""
    return [from_blob(path) for (path,) in connection.execute("SELECT path FROM pins ORDER BY path")]


def _used_last(connection: sqlite3.Connection) -> str | None:
    row = connection.execute(
        "SELECT n.name FROM kv JOIN namespaces n ON n.id = kv.namespace ORDER BY kv.tick DESC, kv.id DESC LIMIT 1"
    ).fetchone()
    return None if row is None else str(row[0])


def _pinned_rows(connection: sqlite3.Connection) -> set[int]:
    folders = Scope(pinned_folders(connection))
    if folders.everything:
        return set()
    rows = connection.execute(
        f"SELECT k.kv FROM kv_chunks k JOIN chunks c ON c.chunk_id = k.chunk_id WHERE c.id IN {folders.chunk_rows()}",
        folders.values,
    )
    return {row for (row,) in rows}
