"""Indexed folders and mount points inside them, as they were when last present."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from desk_rag.documents.volumes import Volume
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import Scope, from_blob, to_blob


class VolumeRows:
    """The table `volumes`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def roots(self) -> list[Path]:
        """Return the indexed folders."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT path FROM volumes WHERE path = root ORDER BY path").fetchall()
        return [from_blob(path) for (path,) in rows]

    def of(self, root: Path) -> list[Volume]:
        """Return the record of the folder, if any, and of the mount points inside it."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT path, filesystem, inode FROM volumes WHERE root = ? ORDER BY path", (to_blob(root),)
            ).fetchall()
        return [Volume(from_blob(path), filesystem, int(inode)) for path, filesystem, inode in rows]

    def put(self, root: Path, volumes: Sequence[Volume]) -> None:
        """Record these volumes; writes only new ones."""
        known = set(self.of(root))
        rows = [
            (to_blob(root), to_blob(volume.path), volume.filesystem, str(volume.inode))
            for volume in volumes
            if volume not in known
        ]
        if rows:
            with self._database.write() as connection:
                connection.executemany("INSERT OR REPLACE INTO volumes VALUES (?, ?, ?, ?)", rows)

    def drop(self, root: Path, paths: Sequence[Path]) -> None:
        """Delete the records of some mount points of a folder."""
        if paths:
            with self._database.write() as connection:
                rows = [(to_blob(root), to_blob(path)) for path in paths]
                connection.executemany("DELETE FROM volumes WHERE root = ? AND path = ?", rows)

    def forget(self, under: Path) -> None:
        """Delete the records at or below a path."""
        scope = Scope([under])
        with self._database.write() as connection:
            connection.execute(f"DELETE FROM volumes WHERE {scope.path_condition('path')}", scope.values)
