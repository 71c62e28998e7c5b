"""Which indexed folders, and mounts inside them, are there now; what is not there is left alone.

Compares the catalog's memory of a folder with the file system (`volumes` does the comparing). The answer is always of
this moment: a drive that was unplugged a second ago is absent for the next question already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.status import FileState
from desk_rag.documents.volumes import Mounts, Volume, mount_absence, root_absence

if TYPE_CHECKING:
    from desk_rag.store.store import Store


@dataclass(frozen=True, slots=True)
class AbsentFolder:
    """An indexed folder, or a mount point inside one, whose files cannot be told to be deleted now."""

    path: Path
    reason: str
    documents: int
    """How many are kept of it."""

    @property
    def sentence(self) -> str:
        """Say why it is left alone, and what would end that."""
        if not self.documents:
            return self.reason
        kept = "1 document is" if self.documents == 1 else f"{self.documents:,} documents are"
        return f"{self.reason}; its {kept} kept and still found (`desk-rag purge FOLDER` forgets them)"


class Presence:
    """One indexed folder as the catalog remembers it and as it is now."""

    def __init__(self, store: Store, root: Path) -> None:
        self._store, self._root = store, root

    def absent(self) -> list[AbsentFolder]:
        """Look: the folder alone if it is not there, else the mount points inside it that are not."""
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
        """Note what the folder and the mounts inside it look like now, except for those that are absent."""
        mounts = Mounts()
        away = {folder.path for folder in absent}
        volumes: list[Volume] = []
        for path in (self._root, *mounts.inside(self._root)):
            if path not in away:
                try:
                    volumes.append(mounts.identify(path))
                except OSError:  # no business of ours, like another user's file system in user space
                    continue
        self._store.volumes.put(self._root, volumes)
        looked_at = {volume.path for volume in volumes} | away
        # What was copied from a drive to where the drive was mounted is an ordinary folder by now.
        self._store.volumes.drop(self._root, [old.path for old in self._inner() if old.path not in looked_at])

    def remember_mount_of(self, path: Path) -> None:
        """Do so if this file is on a mount that is not known yet."""
        try:
            mounted = path.stat().st_dev != self._root.stat().st_dev
        except OSError:
            return
        if mounted and not any(volume.path in path.parents for volume in self._inner()):
            self.remember(self.absent())

    def forget_unused(self) -> None:
        """Forget mount points that hold no document."""
        self._store.volumes.drop(
            self._root, [volume.path for volume in self._inner() if not self._documents(volume.path)]
        )

    def _inner(self) -> list[Volume]:
        return [volume for volume in self._store.volumes.of(self._root) if volume.path != self._root]

    def _documents(self, folder: Path) -> list[Path]:
        return [row.path for row in self._store.documents(folder) if row.state is FileState.INDEXED]


def absent_folders(store: Store) -> list[AbsentFolder]:
    """Return what is absent of all indexed folders, if documents are kept of it."""
    found = {folder.path: folder for root in store.volumes.roots() for folder in Presence(store, root).absent()}
    return [folder for _, folder in sorted(found.items()) if folder.documents]


def covers(absent: Sequence[AbsentFolder], path: Path) -> bool:
    """Return whether `path` is in one of these folders."""
    return any(folder.path == path or folder.path in path.parents for folder in absent)
