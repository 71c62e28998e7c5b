"""Open a store whose drive is full, making room for a purge."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.errors import StoreError, StoreFull
from desk_rag.store import opening
from desk_rag.store.catalog.database import Database
from desk_rag.store.layout import Layout

if TYPE_CHECKING:
    from desk_rag.config import StoreSettings
    from desk_rag.store.store import Store
from desk_rag.store.maintenance.full_disk import PurgeSpace


def open_to_purge(root: Path, settings: StoreSettings, path: Path) -> tuple[Store, PurgeSpace]:
    """Open the store at `root` for writing although its drive is full, by making room for the purge of `path`.

    Raises what `Store.open` does; StoreFull only if there was nothing left to remove.
    """
    from desk_rag.store.store import Store

    layout = Layout(root.absolute(), settings.kv_place)
    room = PurgeSpace(layout, path)
    while True:
        try:
            return Store.open(root, settings, writer=True), room
        except StoreFull:
            if not _make_unopened(layout, room):
                raise


def _make_unopened(layout: Layout, room: PurgeSpace) -> bool:
    with opening.locked(layout):
        try:
            database = Database(layout.catalog, read_only=True)
        except (StoreError, sqlite3.DatabaseError):
            return room.make(None)
        try:
            return room.make(database)
        finally:
            database.close()
