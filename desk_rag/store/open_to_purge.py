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
    """Open the store at `root` for writing, removing chunk KV if its drive is too full to purge `path`.

    Raises as `Store.open` does; StoreFull only if there is nothing left to remove.
    """
    from desk_rag.store.store import Store

    layout = Layout(root.absolute(), settings.kv_place)
    space = PurgeSpace(layout, path)
    while True:
        try:
            return Store.open(root, settings, writer=True), space
        except StoreFull:
            if not _free_unopened(layout, space):
                raise


def _free_unopened(layout: Layout, space: PurgeSpace) -> bool:
    with opening.locked(layout):
        try:
            database = Database(layout.catalog, read_only=True)
        except (StoreError, sqlite3.DatabaseError):
            return space.free_some(None)
        try:
            return space.free_some(database)
        finally:
            database.close()
