"""Free space for a purge on a full drive.

Deleting rows makes SQLite's log grow first. So the chunk KV to be purged is removed before its rows, then, if that is
not enough, other chunk KV, least valuable first: all of it can be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from desk_rag.errors import StoreError, StoreFull
from desk_rag.owned_folder import Proof, proven
from desk_rag.store import kv_directory
from desk_rag.store.catalog.catalog import KVName
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import Scope
from desk_rag.store.kv.eviction import candidates
from desk_rag.store.layout import KVEntry, Layout

T = TypeVar("T")
_LEAST_ROOM = 1 << 20
"""Bytes freed at a time, in addition to twice the size of the catalog."""


class PurgeSpace:
    """Frees disk space for the purge of `path`; the caller holds the writer's lock."""

    def __init__(self, layout: Layout, path: Path) -> None:
        self._layout = layout
        self._scope = Scope([path])
        self._kv = kv_directory.open_kv_directory(layout, writer=False)
        self._begun = False
        self.files = 0
        """KV files of the purged documents that were removed before their rows."""
        self.freed = 0
        """Their bytes."""

    def retry_when_full(self, action: Callable[[], T], database: Database) -> T:
        """Run `action`, freeing space each time it raises StoreFull. Raises StoreFull once nothing can be freed."""
        log_emptied = False
        while True:
            try:
                return action()
            except StoreFull:
                if not log_emptied:  # only once: an action that fails again fills the log again
                    log_emptied = True
                    with suppress(StoreError):
                        database.checkpoint()
                elif not self.free_some(database):
                    raise

    def free_some(self, database: Database | None) -> bool:
        """Remove the KV files to be purged, or else some others; False if there was nothing to remove.

        Rows of removed files stay; they are misses, and the next start drops them. Without `database` any KV file may
        be removed.
        """
        if not self._begun:
            self._begun = True
            leftovers = [entry.path for entry in self._scan() if entry.aside or entry.is_temporary]
            freed = sum(self._unlink(path, self._layout.proof(path)) for path in leftovers)
            for name in self._own(database):
                size = self._unlink(self._layout.kv_file(*name), proven)
                self.files += size > 0
                self.freed += size
                freed += size
            if freed:
                return True
        catalog = self._layout.catalog
        need = _LEAST_ROOM + sum(2 * _size(catalog.with_name(catalog.name + end)) for end in ("", "-wal"))
        freed = 0
        for path, proof in self._others(database):
            freed += self._unlink(path, proof)
            if freed >= need:
                break
        return freed > 0

    def _own(self, database: Database | None) -> list[KVName]:
        """Return the chunk KV that belongs to the purged documents only."""
        if database is None or not self._kv.in_place():
            return []
        own, scope = self._scope.chunk_rows(), self._scope
        with database.read() as connection:
            return connection.execute(
                "SELECT n.name, kv.tokens FROM kv JOIN namespaces n ON n.id = kv.namespace WHERE kv.id IN ("
                f" SELECT k.kv FROM kv_chunks k JOIN chunks c ON c.chunk_id = k.chunk_id WHERE c.id IN {own})"
                " AND NOT EXISTS (SELECT 1 FROM kv_chunks k JOIN chunks c ON c.chunk_id = k.chunk_id"
                " JOIN places p ON p.chunk = c.id JOIN documents d ON d.id = p.document"
                f" WHERE k.kv = kv.id AND NOT {scope.path_condition('d.path')})",
                scope.values * 2,
            ).fetchall()

    def _others(self, database: Database | None) -> Iterator[tuple[Path, Proof]]:
        if database is not None and self._kv.in_place():
            with database.snapshot() as connection, closing(candidates(connection, None)) as order:
                names = [candidate.name for candidate in order]
            yield from ((self._layout.kv_file(*name), proven) for name in names)
        vectors = (path for path, _ in self._layout.home.scan(self._layout.vectors))  # rebuilt from the rows
        for path in [*(entry.path for entry in self._scan()), *vectors]:
            yield path, self._layout.proof(path)

    def _scan(self) -> list[KVEntry]:
        """Return the entries of the KV directory; none if it is absent or not ours."""
        return list(self._layout.scan()) if self._kv.in_place() else []

    def _unlink(self, path: Path, proof: Proof) -> int:
        try:
            removed = self._layout.owner(path).remove(path, proof)
        except OSError:
            return 0
        return 0 if removed is None else removed.st_blocks * 512


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
