"""A whole data directory with its `kv_dir`: list foreign files, remove everything of desk-rag."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from desk_rag.errors import StoreError
from desk_rag.store import ownership
from desk_rag.store.catalog.database import Database
from desk_rag.store.chats import place
from desk_rag.store.kv.index import KVIndex
from desk_rag.store.kv_directory import marker_of, record_of
from desk_rag.store.layout import KV_SUFFIX
from desk_rag.store.ownership import CATALOG, Cleared


def foreign_files(root: Path, kv_dir: Path | None) -> list[Path]:
    """Return the files that neither name and content nor a catalog row prove to be ours.

    `kv_dir` is None if it is not set or its drive is absent.
    """
    known = _known_by_rows(root)
    foreign = set(ownership.foreign_in(root, known))
    if kv_dir is not None:
        foreign |= set(ownership.foreign_in_kv(kv_dir, known))
    return sorted(foreign)


def clear_all(root: Path) -> tuple[Cleared, str]:
    """Remove what is ours in `root` and its `kv_dir`, and its chats; the caller holds the writer's lock.

    Also returns the `kv_dir` whose files had to stay because its drive is absent; "" if there is none.
    """
    known = _known_by_rows(root)
    record = None
    with suppress(StoreError):  # an unreadable record names no directory
        record = record_of(root)
    elsewhere = Cleared(0, ())
    away = ""
    if record is not None and record.path:
        kv_dir = Path(record.path)
        if not kv_dir.is_symlink() and marker_of(kv_dir) == record.identifier:
            elsewhere = ownership.clear_kv(kv_dir, known)
        else:
            away = record.path
    freed = place.clear(place.chats_directory(root), all_of_it=True) if place.chats_directory(root) != root else 0
    cleared = ownership.clear(root, known)
    freed += cleared.freed_bytes + elsewhere.freed_bytes
    return replace(cleared, freed_bytes=freed, remaining=(*cleared.remaining, *elsewhere.remaining)), away


def _known_by_rows(root: Path) -> frozenset[str]:
    """Return the names of KV files with a catalog row or marked as deleted; none if it cannot be read."""
    try:
        database = Database(root / CATALOG, read_only=True)
    except (StoreError, sqlite3.DatabaseError, OSError):
        return frozenset()
    try:
        rows = KVIndex(database)
        names = [*(row.name for row in rows.all()), *rows.marked_deleted()]
        return frozenset(f"kv/{space[:16]}/{tokens[:2]}/{tokens}{KV_SUFFIX}" for space, tokens in names)
    except (StoreError, sqlite3.DatabaseError):
        return frozenset()
    finally:
        database.close()
