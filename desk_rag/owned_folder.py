"""One open directory of desk-rag: what is in it, and how that is made, renamed and removed."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import ForeignPlace

TEMPORARY_SUFFIX = ".tmp"
PROOF_BYTES = 64 << 10
"""How much of a file is read at most to tell whose it is."""
_BY_HANDLE = {os.open, os.unlink, os.rename, os.mkdir, os.rmdir, os.stat} <= os.supports_dir_fd
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_serial = itertools.count()


class Entry:
    """One name in a directory: what it is, and on demand how it begins."""

    def __init__(self, path: Path, status: os.stat_result, read: Callable[[], bytes]) -> None:
        self.path = path
        self.status = status
        self._read = read
        self._start: bytes | None = None

    @property
    def is_file(self) -> bool:
        """True for a regular file; a link is none."""
        return stat.S_ISREG(self.status.st_mode)

    def start(self) -> bytes:
        """Return the first 64 KiB; nothing where they cannot be read."""
        if self._start is None:
            try:
                self._start = self._read()
            except OSError:
                self._start = b""
        return self._start


Proof = Callable[[Entry], bool]
"""Says whether a file was written by desk-rag."""


def proven(_entry: Entry) -> bool:
    """Proof for a file that a catalog row names, or that this process has just made."""
    return True


@dataclass(slots=True)
class Folder:
    """One open directory."""

    path: Path
    descriptor: int | None
    device: int
    mount: bytes
    """Which mount it was reached through; empty where the system does not say."""

    def child(self, name: str) -> Folder:
        """Open a directory in this one. Raises ForeignPlace for a link or a mount, OSError."""
        return open_folder(self.path / name, self, follow=False)

    def status(self, name: str) -> os.stat_result:
        """Return what the name is, following no link. Raises OSError."""
        return os.stat(self._name(name), dir_fd=self._base(), follow_symlinks=False)

    def entry(self, name: str) -> Entry:
        """Return the name as an `Entry`. Raises OSError."""
        return Entry(self.path / name, self.status(name), lambda: self._start(name))

    def names(self) -> list[str]:
        """Return all names in it."""
        return [name for name, _ in self.scan()]

    def scan(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield (name, status) of everything in it, following no link."""
        with os.scandir(self.path if self.descriptor is None else self.descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed by another process meanwhile
                    yield entry.name, entry.stat(follow_symlinks=False)

    def make_directory(self, name: str) -> None:
        """Make a private directory in this one, its name durable on return, unless there is one."""
        try:
            os.mkdir(self._name(name), 0o700, dir_fd=self._base())
        except FileExistsError:
            return
        self.sync()

    def make_private(self) -> None:
        """Take all rights to this directory from others."""
        if os.name == "posix" and self.descriptor is not None and os.fstat(self.descriptor).st_mode & 0o077:
            os.fchmod(self.descriptor, 0o700)

    def create(self, name: str) -> int:
        """Open a new file (0600) for reading and writing; never one that is there. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW | getattr(os, "O_BINARY", 0)
        return os.open(self._name(name), flags, 0o600, dir_fd=self._base())

    def append_to(self, name: str) -> int:
        """Open a file to append to (0600), made where there is none. Raises ForeignPlace for a link, OSError."""
        with suppress(FileNotFoundError):
            require_own_file(self.path / name, self.status(name))
        return os.open(self._name(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NOFOLLOW, 0o600, dir_fd=self._base())

    def write_in_place(self, name: str, content: bytes) -> None:
        """Write a few bytes at the start of a file (0600), made where there is none. Raises ForeignPlace, OSError."""
        with suppress(FileNotFoundError):
            require_own_file(self.path / name, self.status(name))
        descriptor = os.open(self._name(name), os.O_WRONLY | os.O_CREAT | _NOFOLLOW, 0o600, dir_fd=self._base())
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def replace(self, name: str, into: Folder, new: str) -> None:
        """Rename a file, over another if there is one."""
        if self.descriptor is None or into.descriptor is None:
            (self.path / name).replace(into.path / new)
        else:
            os.replace(name, new, src_dir_fd=self.descriptor, dst_dir_fd=into.descriptor)

    def unlink(self, name: str, proof: Proof) -> os.stat_result | None:
        """Remove a regular file that is proven ours; return what it was, or None if it stays or is gone."""
        try:
            entry = self.entry(name)
            if not (entry.is_file and proof(entry) and is_same_file(entry.status, self.status(name))):
                return None
            os.unlink(self._name(name), dir_fd=self._base())
        except FileNotFoundError:
            return None
        return entry.status

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory; one that is not empty, or is a link, stays."""
        with suppress(OSError):
            os.rmdir(self._name(name), dir_fd=self._base())

    def sync(self) -> None:
        """Make the names in it durable."""
        if self.descriptor is not None:
            os.fsync(self.descriptor)

    def reach(self, name: str) -> Path:
        """Return a path to a file for libraries that take nothing else; it leads through the handle where it can."""
        through = Path(f"/proc/self/fd/{self.descriptor}")
        return (through if self.descriptor is not None and through.exists() else self.path) / name

    def close(self) -> None:
        """Close the handle."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _name(self, name: str) -> str | Path:
        if name in ("", ".", "..") or os.sep in name:
            raise ValueError(f"{name!r} is no name of a file")
        return name if self.descriptor is not None else self.path / name

    def _base(self) -> int | None:
        return self.descriptor

    def _start(self, name: str) -> bytes:
        descriptor = os.open(self._name(name), _READ, dir_fd=self._base())
        try:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return os.read(descriptor, PROOF_BYTES) if regular else b""
        finally:
            os.close(descriptor)


def create_beside(folder: Folder, name: str) -> tuple[str, int]:
    """Open a new temporary file that is to become `name`; return its name and descriptor. Raises OSError."""
    while True:
        beside = f"{name}.{os.getpid()}-{next(_serial)}{TEMPORARY_SUFFIX}"
        with suppress(FileExistsError):  # left by a process that had our number
            return beside, folder.create(beside)


def require_own_file(path: Path, status: os.stat_result | None = None) -> None:
    """Raise ForeignPlace unless there is nothing at `path` or a regular file with no second name (hard link)."""
    try:
        status = status or path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "no regular file"
        raise ForeignPlace(f"{path} is {kind}.", remedy="Remove it there; desk-rag makes its own file.")
    if status.st_nlink > 1:
        raise ForeignPlace(
            f"{path} is a hard link: the same file has another name, and would be changed there too.",
            remedy=f"Make it a file of its own: cp '{path}' '{path}.copy' && mv '{path}.copy' '{path}'",
        )


def scan_below(folder: Folder, skip: Callable[[Path], bool]) -> Iterator[tuple[Path, os.stat_result]]:
    for name, status in folder.scan():
        path = folder.path / name
        if skip(path):
            continue
        if stat.S_ISDIR(status.st_mode):
            try:
                below = folder.child(name)
            except FileNotFoundError:
                continue
            except ForeignPlace:
                yield path, status
                continue
            try:
                yield from scan_below(below, skip)
            finally:
                below.close()
        else:
            yield path, status


def open_folder(path: Path, parent: Folder | None, *, follow: bool) -> Folder:
    """Open a directory, in `parent` if that is given. Raises ForeignPlace, OSError."""
    if not _BY_HANDLE:
        status = path.stat() if follow else path.lstat()
        reparse = getattr(status, "st_file_attributes", 0) & getattr(stat, "FILE_ATTRIBUTE_REPARSE_POINT", 1024)
        if not stat.S_ISDIR(status.st_mode) or reparse and not follow:
            raise _foreign(path)
        if parent is not None and status.st_dev != parent.device:
            raise _mounted(path)
        return Folder(path, None, status.st_dev, b"")
    base, name = (None, path) if parent is None else (parent.descriptor, Path(path.name))
    try:
        descriptor = os.open(name, os.O_RDONLY | _DIRECTORY | (0 if follow else _NOFOLLOW), dir_fd=base)
    except OSError as error:
        with suppress(OSError):
            status = os.stat(name, dir_fd=base, follow_symlinks=follow)
            if not stat.S_ISDIR(status.st_mode):
                raise _foreign(path) from error
        raise
    try:
        folder = Folder(path, descriptor, os.fstat(descriptor).st_dev, _mount_of(descriptor))
        if parent is not None and folder.device != parent.device:
            raise _mounted(path)
        if parent is not None and folder.mount and parent.mount and folder.mount != parent.mount:
            raise _mounted(path)
    except BaseException:
        os.close(descriptor)
        raise
    return folder


def _mount_of(descriptor: int) -> bytes:
    """Name the mount that an open directory is reached through; a bind mount has one of its own."""
    with suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{descriptor}").read_bytes().splitlines():
            if line.startswith(b"mnt_id:"):
                return line[7:].strip()
    return b""


def _foreign(path: Path) -> ForeignPlace:
    return ForeignPlace(
        f"{path} is a link or a file where desk-rag has a directory of its own.",
        remedy="Move it away; desk-rag follows no link out of its data directory and makes its own directory.",
    )


def _mounted(path: Path) -> ForeignPlace:
    return ForeignPlace(
        f"Another drive or directory is mounted at {path}, where desk-rag has a directory of its own.",
        remedy="Unmount it; for chunk KV on another drive set `kv_dir` under [store].",
    )


def is_same_file(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
