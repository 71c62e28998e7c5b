"""Check which indexed folders, and mounts inside them, are present now.

The catalog's record of a folder is compared with the file system each time (`documents/volumes.py`), so that a drive
unplugged a second ago is absent for the next question. Documents of an absent folder are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.status import FileState
from desk_rag.documents.volumes import Mounts, Volume, mount_absence, root_absence
from desk_rag.sanitize import quoted_path

if TYPE_CHECKING:
    from desk_rag.store.store import Store


@dataclass(frozen=True, slots=True)
class AbsentFolder:
    """An indexed folder, or a mount point inside one, that is not present now."""

    path: Path
    reason: str
    documents: int
    """Number of its documents, which are kept."""

    @property
    def sentence(self) -> str:
        """Say why it is absent, and how to remove its documents anyway."""
        if not self.documents:
            return self.reason
        kept = "1 document is" if self.documents == 1 else f"{self.documents:,} documents are"
        return f"{self.reason}; its {kept} kept and still found (`desk-rag purge FOLDER` removes them)"

    @property
    def unread(self) -> str:
        """Say why a file is not read that is at its path now, and what would read it."""
        place = quoted_path(self.path)
        return f"not read, because {self.reason}: `desk-rag purge {place}` forgets the old one, and `index` reads this"


class Presence:
    """An indexed folder, as the catalog records it and as it is now."""

    def __init__(self, store: Store, root: Path) -> None:
        self._store, self._root = store, root

    def absent(self) -> list[AbsentFolder]:
        """Return the folder itself if it is absent, else the absent mount points inside it."""
        mounts = Mounts()
        known = {volume.path: volume for volume in self._store.volumes.of(self._root)}
        reason = root_absence(self._root, known.pop(self._root, None), lambda: self._documents(self._root), mounts)
        if reason:
            return [AbsentFolder(self._root, reason, len(self._documents(self._root)))]
        return [
            AbsentFolder(path, reason, len(self._documents(path)))
            for path, volume in known.items()
            if (reason := mount_absence(volume, lambda path=path: self._documents(path), mounts))  # type: ignore[misc]
        ]

    def remember(self, absent: Sequence[AbsentFolder]) -> None:
        """Record the folder and the mounts inside it as they are now, except absent ones."""
        mounts = Mounts()
        away = {folder.path for folder in absent}
        volumes: list[Volume] = []
        for path in (self._root, *mounts.inside(self._root)):
            if path not in away:
                try:
                    volumes.append(mounts.identify(path))
                except OSError:  # not accessible, such as another user's FUSE file system
                    continue
        self._store.volumes.put(self._root, volumes)
        current = {volume.path for volume in volumes} | away
        # A mount point into which the files of the drive were copied is now an ordinary folder.
        self._store.volumes.drop(self._root, [old.path for old in self._inner() if old.path not in current])

    def remember_mount_of(self, path: Path) -> None:
        """Record the mounts again if this file is on one that is not recorded yet."""
        try:
            mounted = path.stat().st_dev != self._root.stat().st_dev
        except OSError:
            return
        if mounted and not any(volume.path in path.parents for volume in self._inner()):
            self.remember(self.absent())

    def forget_unused(self) -> None:
        """Delete the records of mount points without documents."""
        self._store.volumes.drop(
            self._root, [volume.path for volume in self._inner() if not self._documents(volume.path)]
        )

    def _inner(self) -> list[Volume]:
        return [volume for volume in self._store.volumes.of(self._root) if volume.path != self._root]

    def _documents(self, folder: Path) -> list[Path]:
        return [row.path for row in self._store.documents(folder) if row.state is FileState.INDEXED]


def absent_folders(store: Store) -> list[AbsentFolder]:
    """Return the absent folders and mount points that have documents."""
    absent = {folder.path: folder for root in store.volumes.roots() for folder in Presence(store, root).absent()}
    return [folder for _, folder in sorted(absent.items()) if folder.documents]


def covers(absent: Sequence[AbsentFolder], path: Path) -> bool:
    """Return whether `path` is in one of these folders."""
    return any(folder.path == path or folder.path in path.parents for folder in absent)
