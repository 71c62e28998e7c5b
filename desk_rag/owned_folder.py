"""An open directory of desk-rag: list, create, rename and remove what is in it."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import ForeignPlace

TEMPORARY_SUFFIX = ".tmp"
PROOF_BYTES = 64 << 10
"""Bytes read from the start of a file to find out whether desk-rag wrote it."""
_BY_HANDLE = {os.open, os.unlink, os.rename, os.mkdir, os.rmdir, os.stat} <= os.supports_dir_fd
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)
READ_BINARY = os.O_RDONLY | _BINARY
"""Flags that open a file for reading its bytes; without the second Windows ends it at the first Ctrl+Z."""
_READ = READ_BINARY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_MOST_READ = 1 << 24
_serial = itertools.count()


class Entry:
    """A name in a directory, its status and, on demand, the first bytes of the file."""

    def __init__(self, path: Path, status: os.stat_result, read: Callable[[], bytes]) -> None:
        self.path = path
        self.status = status
        self._read = read
        self._start: bytes | None = None

    @property
    def is_file(self) -> bool:
        """True for a regular file, False for a link."""
        return stat.S_ISREG(self.status.st_mode)

    def start(self) -> bytes:
        """Return the first 64 KiB; b"" if they cannot be read."""
        if self._start is None:
            try:
                self._start = self._read()
            except OSError:
                self._start = b""
        return self._start


Proof = Callable[[Entry], bool]
"""Decides whether desk-rag wrote a file."""


def proven(_entry: Entry) -> bool:
    """Accept a file that a catalog row names or that this process has just made."""
    return True


@dataclass(slots=True)
class Folder:
    """An open directory. Without directory handles (Windows), `descriptor` is None."""

    path: Path
    descriptor: int | None
    device: int
    mount: bytes
    """The mount it was reached through; empty if the system does not say."""

    def child(self, name: str) -> Folder:
        """Open a subdirectory. Raises ForeignPlace for a link or a mount, OSError."""
        return open_folder(self.path / name, self, follow=False)

    def status(self, name: str) -> os.stat_result:
        """Return the status of a name without following links. Raises OSError."""
        return os.stat(self._name(name), dir_fd=self._base(), follow_symlinks=False)

    def entry(self, name: str) -> Entry:
        """Return the entry of a name. Raises OSError."""
        return Entry(self.path / name, self.status(name), lambda: self._start(name))

    def names(self) -> list[str]:
        """Return all names in the directory."""
        return [name for name, _ in self.scan()]

    def scan(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield (name, status) of every entry without following links."""
        with os.scandir(self.path if self.descriptor is None else self.descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another process has just removed it
                    yield entry.name, entry.stat(follow_symlinks=False)

    def make_directory(self, name: str) -> None:
        """Make a private subdirectory, durable on return, unless it exists."""
        try:
            os.mkdir(self._name(name), 0o700, dir_fd=self._base())
        except FileExistsError:
            return
        self.sync()

    def make_private(self) -> None:
        """Restrict the directory to its owner (0700)."""
        if os.name == "posix" and self.descriptor is not None and os.fstat(self.descriptor).st_mode & 0o077:
            os.fchmod(self.descriptor, 0o700)

    def create(self, name: str) -> int:
        """Create a file (0600) and open it for reading and writing. Raises FileExistsError, OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _BINARY
        return os.open(self._name(name), flags, 0o600, dir_fd=self._base())

    def append_to(self, name: str) -> int:
        """Open a file for appending, created (0600) if missing. Raises ForeignPlace for a link, OSError."""
        with suppress(FileNotFoundError):
            require_own_file(self.path / name, self.status(name))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NOFOLLOW | _BINARY
        return os.open(self._name(name), flags, 0o600, dir_fd=self._base())

    def write_in_place(self, name: str, content: bytes) -> None:
        """Overwrite the start of a file, created (0600) if missing. Raises ForeignPlace, OSError."""
        with suppress(FileNotFoundError):
            require_own_file(self.path / name, self.status(name))
        flags = os.O_WRONLY | os.O_CREAT | _NOFOLLOW | _BINARY
        descriptor = os.open(self._name(name), flags, 0o600, dir_fd=self._base())
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def replace(self, name: str, into: Folder, new: str) -> None:
        """Rename a file into a directory, replacing a file of that name."""
        if self.descriptor is None or into.descriptor is None:
            (self.path / name).replace(into.path / new)
        else:
            os.replace(name, new, src_dir_fd=self.descriptor, dst_dir_fd=into.descriptor)

    def unlink(self, name: str, proof: Proof) -> os.stat_result | None:
        """Remove a regular file if `proof` accepts it; return its status, or None if nothing was removed."""
        try:
            entry = self.entry(name)
            if not (entry.is_file and proof(entry) and is_same_file(entry.status, self.status(name))):
                return None
            os.unlink(self._name(name), dir_fd=self._base())
        except FileNotFoundError:
            return None
        return entry.status

    def unlink_socket(self, name: str) -> None:
        """Remove a socket of this user; anything else of that name stays. Raises OSError."""
        with suppress(FileNotFoundError):
            status = self.status(name)
            if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
                os.unlink(self._name(name), dir_fd=self._base())

    def remove_directory(self, name: str) -> None:
        """Remove a subdirectory if it is empty and no link."""
        with suppress(OSError):
            os.rmdir(self._name(name), dir_fd=self._base())

    def sync(self) -> None:
        """Make the names in the directory durable, as far as its file system can do that."""
        if self.descriptor is None:
            return
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems that have no such call
                raise

    def reach(self, name: str) -> Path:
        """Return a path for libraries that take no descriptor; it leads through the open handle if possible."""
        through = Path(f"/proc/self/fd/{self.descriptor}")
        return (through if self.descriptor is not None and through.exists() else self.path) / name

    def close(self) -> None:
        """Close the handle."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _name(self, name: str) -> str | Path:
        if name in ("", ".", "..") or os.sep in name:
            raise ValueError(f"{name!r} is no name of a file in a directory")
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
    """Create a temporary file that is to become `name`; return its name and descriptor. Raises OSError."""
    while True:
        temporary = f"{name}.{os.getpid()}-{next(_serial)}{TEMPORARY_SUFFIX}"
        with suppress(FileExistsError):  # left by an earlier process with the same id
            return temporary, folder.create(temporary)


@contextmanager
def replacing(folder: Folder, name: str, *, stem: str = "", keep_cached: bool = True) -> Iterator[int]:
    """Lend the descriptor of a temporary file that replaces `name` when the block ends; durable then.

    After an error neither the temporary file nor a changed `name` is left. `stem` begins the temporary name instead of
    `name`. Without `keep_cached` the written pages are dropped from memory. Raises OSError.
    """
    temporary, descriptor = create_beside(folder, stem or name)
    try:
        try:
            yield descriptor
            os.fsync(descriptor)
            if not keep_cached and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        folder.replace(temporary, folder, name)
    except BaseException:
        with suppress(OSError):
            folder.unlink(temporary, proven)
        raise
    folder.sync()


def write_all(descriptor: int, content: memoryview) -> None:
    """Write every byte, however many the system takes at a time. Raises OSError."""
    while content.nbytes:
        content = content[os.write(descriptor, content) :]


def read_at(descriptor: int, view: memoryview, offset: int) -> int:
    """Read bytes from a place in a file into `view`; return how many, 0 at the end of the file. Raises OSError.

    On Windows it moves the position of the descriptor, which must not be shared by threads.
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    piece = os.read(descriptor, min(view.nbytes, _MOST_READ))
    view[: len(piece)] = piece
    return len(piece)


def sync_file(path: Path) -> None:
    """Make the content of a file durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR)  # Windows flushes only what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, as far as its file system can do that. Raises OSError."""
    folder = open_folder(path, None, follow=True)
    try:
        folder.sync()
    finally:
        folder.close()


def require_own_file(path: Path, status: os.stat_result | None = None) -> None:
    """Raise ForeignPlace unless `path` is missing or a regular file with one name (no hard link)."""
    try:
        status = status or path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise ForeignPlace(f"{path} is {kind}.", remedy="Remove it; desk-rag creates its own file there.")
    if status.st_nlink > 1:
        raise ForeignPlace(
            f"{path} is a hard link: changing it would change the same file under its other name.",
            remedy=f"Make it a separate file: cp '{path}' '{path}.copy' && mv '{path}.copy' '{path}'",
        )


def scan_below(folder: Folder, skip: Callable[[Path], bool]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield (path, status) of everything below a directory except directories; enter no link and no mount."""
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
    """Open a directory, as a child of `parent` if given. Raises ForeignPlace for a link or a mount, OSError."""
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
    """Return the id of the mount that an open directory was reached through; b"" if unknown."""
    with suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{descriptor}").read_bytes().splitlines():
            if line.startswith(b"mnt_id:"):
                return line[7:].strip()
    return b""


def _foreign(path: Path) -> ForeignPlace:
    return ForeignPlace(
        f"{path} is a link or a file; desk-rag needs its own directory there.",
        remedy="Move it away; desk-rag creates the directory and follows no link out of its data directory.",
    )


def _mounted(path: Path) -> ForeignPlace:
    return ForeignPlace(
        f"Another drive or directory is mounted at {path}, inside the data directory of desk-rag.",
        remedy="Unmount it. To keep chunk KV on another drive, set `kv_dir` under [store].",
    )


def is_same_file(one: os.stat_result, other: os.stat_result) -> bool:
    """Return whether two statuses belong to the same file."""
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
