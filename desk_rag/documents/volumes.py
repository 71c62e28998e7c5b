"""Tell whether a folder is still the one that was indexed, or whether something else is in its place.

An unmounted drive leaves an empty directory, or one with other files, and every file on the drive looks deleted. So
each indexed folder and each mount point inside it has an identity: its file system and the inode of its directory. If
the identity differs, file names decide: a folder restored from a backup or a cloned disk holds the same files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from desk_rag.documents.discovery import check_root
from desk_rag.errors import DeskRagError

SAMPLE = 64
"""Documents looked for in a folder whose identity changed; half of them must exist."""
_BY_UUID = Path("/dev/disk/by-uuid")


@dataclass(frozen=True, slots=True)
class Volume:
    """An indexed folder, or a mount point inside one, as it looked when it was there."""

    path: Path
    filesystem: str
    """The most lasting name of the file system: its UUID, its network share, or else its mount."""
    inode: int


class Mounts:
    """The file systems mounted at this moment."""

    @cached_property
    def _mounts(self) -> dict[Path, tuple[str, str]]:
        """Kind and source by mount point; of several at one place the last hides the others."""
        return {Path(mount.mountpoint): (mount.fstype, mount.device) for mount in psutil.disk_partitions(all=True)}

    def inside(self, folder: Path) -> list[Path]:
        """Return the mount points below `folder`, as paths below the name that it was given by."""
        real = Path(os.path.realpath(folder))
        return sorted(folder / place.relative_to(real) for place in self._mounts if real in place.parents)

    def identify(self, path: Path) -> Volume:
        """Return what is at `path` now. Raises OSError."""
        info = path.stat()
        real = Path(os.path.realpath(path))
        kind, source = next(
            (self._mounts[folder] for folder in (real, *real.parents) if folder in self._mounts), ("", "")
        )
        uuid = _uuid(info.st_dev, source)
        if uuid:
            filesystem = f"uuid {uuid}"
        elif not hasattr(os, "statvfs"):  # Windows, where the device number is the serial number of the volume
            filesystem = f"{kind} {source} {info.st_dev:x}"
        elif ":" in source or source.startswith("//"):
            filesystem = f"{kind} {source}"
        else:
            filesystem = f"{kind} {source} {os.statvfs(path).f_fsid:x} {info.st_dev:x}"
        return Volume(path, filesystem, info.st_ino)


def root_absence(root: Path, known: Volume | None, documents: Callable[[], Sequence[Path]], mounts: Mounts) -> str:
    """Return why an indexed folder counts as absent; '' if it is present.

    `documents` returns the paths indexed below it.
    """
    try:
        check_root(root)
        if not any(root.iterdir()):
            return "the folder is empty, as when a drive is not mounted" if documents() else ""
        if known is None or mounts.identify(root) == known:
            return ""
    except DeskRagError as error:
        return error.message.rstrip(".")
    except OSError as error:
        return f"the folder cannot be read: {error.strerror}"
    return "" if _recognised(documents()) else "another folder or drive is in its place"


def mount_absence(known: Volume, documents: Callable[[], Sequence[Path]], mounts: Mounts) -> str:
    """Return why a mount point inside an indexed folder counts as absent; '' if it is present."""
    try:
        if mounts.identify(known.path) == known:
            return ""
    except OSError:
        pass
    if _recognised(documents()):
        return ""
    mounted = known.path in mounts.inside(known.path.parent)
    return "another drive is mounted in its place" if mounted else "the drive that was mounted here is not connected"


def _recognised(documents: Sequence[Path]) -> bool:
    sample = documents[:: max(1, len(documents) // SAMPLE)]
    return 2 * sum(os.path.lexists(path) for path in sample) >= len(sample)


def _uuid(device: int, source: str) -> str:
    """Return the UUID or serial number in the file system's own header, '' if the system does not list it."""
    devices = {device}
    try:
        if source.startswith("/dev/"):
            devices.add(Path(source).stat().st_rdev)
        with os.scandir(_BY_UUID) as entries:
            return next((entry.name for entry in entries if entry.stat().st_rdev in devices), "")
    except OSError:
        return ""
