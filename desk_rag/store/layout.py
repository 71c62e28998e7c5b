"""Where everything lies inside the data directory, with which permissions. Knows paths; knows no content.

The names are opaque on purpose: hashes only, so that a directory listing tells nothing about the documents.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from desk_rag.errors import StoreError, StoreFull, of_system
from desk_rag.store import ownership

BLOCK = 4096
KV_SUFFIX = ".safetensors"
TEMPORARY_SUFFIX = ".tmp"
_NAME = re.compile(r"[0-9a-f]{32}")
_CUT_OFF = re.compile(
    r"(?:[0-9a-f]{16}\.json|[0-9a-f]{32}\.safetensors|names\.json|drives\.json|writer\.pid|CACHEDIR\.TAG)"
    r"\.(?P<pid>\d+)\.tmp|[0-9a-f]{16}\.hnsw\.tmp"
)
"""Temporary files by `write_private`, with the process that wrote them, and those of vector indexes."""


def on_disk(size: int) -> int:
    """Return what a file of `size` bytes is counted as: whole blocks of 4,096 bytes."""
    return -(-size // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True)
class KVEntry:
    """One file found under kv/ or quarantine/, seen without opening it."""

    path: Path
    size: int

    @property
    def counted(self) -> int:
        """Bytes it takes from the budget."""
        return on_disk(self.size)

    @property
    def is_kv_file(self) -> bool:
        """True if the name is one that the store gives to a complete file."""
        return self.path.suffix == KV_SUFFIX and _NAME.fullmatch(self.path.stem) is not None

    @property
    def is_temporary(self) -> bool:
        """True for the remains of a write that was cut off."""
        return self.path.suffix == TEMPORARY_SUFFIX


@dataclass(frozen=True, slots=True)
class Layout:
    """The places inside one data directory."""

    root: Path

    @property
    def catalog(self) -> Path:
        """The SQLite file."""
        return self.root / ownership.CATALOG

    @property
    def kv(self) -> Path:
        """Root of all KV files."""
        return self.root / "kv"

    @property
    def vectors(self) -> Path:
        """Saved approximate indexes."""
        return self.root / "vectors"

    @property
    def quarantine(self) -> Path:
        """Files that failed a check."""
        return self.root / "quarantine"

    @property
    def run(self) -> Path:
        """Locks."""
        return self.root / "run"

    def kv_file(self, namespace: str, tokens: str) -> Path:
        """Return the one place of the chunk KV (namespace, tokens), both 32 hex digits."""
        assert _NAME.fullmatch(tokens), f"a token hash is 32 hex digits, not {tokens!r}"
        return self.namespace_dir(namespace) / tokens[:2] / f"{tokens}{KV_SUFFIX}"

    def namespace_dir(self, namespace: str) -> Path:
        """Return where all chunk KV of one namespace (32 hex digits) lies."""
        assert _NAME.fullmatch(namespace), f"a namespace is 32 hex digits, not {namespace!r}"
        return self.kv / namespace[:16]

    def create(self) -> None:
        """Make the tree, 0700, with its CACHEDIR.TAG first: one that was begun is known to be ours.

        Raises StoreError if the place cannot be used, or holds files of somebody else and no store.
        """
        try:
            self._make_root()
            self.check_owner()
            self._tag()
            fresh = False
            for place in (self.root, self.kv, self.vectors, self.quarantine, self.run, self.root / "logs"):
                fresh |= not place.exists()
                place.mkdir(mode=0o700, exist_ok=True)
                if place.stat().st_mode & 0o077:
                    place.chmod(0o700)
            if fresh:
                sync_directory(self.root)
        except OSError as error:
            raise of_system(error, self.root) or StoreError(
                f"The data directory {self.root} cannot be used: {error.strerror or error}.",
                remedy="Give `data_dir` a directory that you own and that can be written to.",
            ) from error

    def check_owner(self) -> None:
        """Raises StoreError if the place holds files of somebody else and no store; OSError if it cannot be read."""
        other = ownership.stranger(self.root) if self.root.exists() else None
        if other is not None:
            name = other.relative_to(self.root)
            raise StoreError(
                f"The directory {self.root} holds other files ('{name}' for one) and no desk-rag store.",
                remedy="Give data_dir a directory of its own: an empty or a new one.",
            )

    def _make_root(self) -> None:
        """Make the directory and those above it; their names are durable before the tag says that a store was begun."""
        fresh = [place for place in (self.root, *self.root.parents) if not place.exists()]
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if fresh or not (self.root / ownership.TAG).exists():
            for place in reversed(fresh or [self.root]):
                with suppress(PermissionError):  # a folder above that may be entered and not be opened
                    sync_directory(place.parent)

    def _tag(self) -> None:
        tag = self.root / ownership.TAG
        if tag.exists():
            return
        try:
            write_private(tag, ownership.TAG_CONTENT)
        except OSError as error:
            full = isinstance(of_system(error), StoreFull)
            if not (full and self.catalog.is_file()):  # a store that lost its tag is used all the same
                raise

    def remove_cut_off(self) -> None:
        """Remove what writes of small files and vector indexes left when they were cut off; of the living, nothing."""
        for folder in (self.root, self.vectors, self.run, self.root / "models"):
            with suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in list(entries):
                    written = _CUT_OFF.fullmatch(entry.name)
                    if written and entry.is_file(follow_symlinks=False) and not _lives(written["pid"]):
                        Path(entry.path).unlink(missing_ok=True)

    def scan(self) -> Iterator[KVEntry]:
        """Yield every file under kv/ and quarantine/, of all namespaces, temporary and unknown ones included."""
        yield from _scan(self.kv)
        yield from _scan(self.quarantine)


def write_private(path: Path, content: bytes) -> None:
    """Write a small file (0600), and its folder, so that it is there completely or not at all; durable on return."""
    make_directory(path.parent)
    beside = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make a directory (0700) and those above it, their names durable on return, unless it is there already."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def forget_cached(paths: Iterable[Path]) -> None:
    """Ask the system to drop its copies of files in memory, so that reading them measures the drive."""
    for path in paths:
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


def announce(paths: Iterable[Path], length: int = 0) -> int:
    """Tell the system to read files ahead (`length` bytes of each, 0 for all), which it does in parallel.

    Returns their bytes as a whole; a file that cannot be opened counts nothing.
    """
    total = 0
    for path in paths:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                total += os.fstat(descriptor).st_size
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(descriptor, 0, length, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)
    return total


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, as far as its file system can do that."""
    if os.name == "nt":  # a directory cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems that have no such call
            raise
    finally:
        os.close(descriptor)


def _lives(pid: str | None) -> bool:
    """True while a process of that number may still be writing; vector indexes are written by the writer alone."""
    return pid is not None and int(pid) != os.getpid() and psutil.pid_exists(int(pid))


def _scan(directory: Path) -> Iterator[KVEntry]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _scan(Path(entry.path))
                    continue
                try:
                    yield KVEntry(Path(entry.path), entry.stat(follow_symlinks=False).st_size)
                except FileNotFoundError:
                    continue  # evicted or quarantined by another process while we look
    except FileNotFoundError:
        return
