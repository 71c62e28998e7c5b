"""Where everything lies in the data directory and in `kv_dir`, with which permissions. Knows paths; knows no content.

The names are opaque on purpose: hashes only, so that a directory listing tells nothing about the documents.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from desk_rag.errors import ForeignPlace, StoreError, StoreFull, of_system
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import Proof
from desk_rag.store import ownership
from desk_rag.store.ownership import KV_MARKER, TAG

BLOCK = 4096
KV_SUFFIX = ".safetensors"
_NAME = re.compile(r"[0-9a-f]{32}")
_PLACED = re.compile(r"[0-9a-f]{16}/[0-9a-f]{2}/[0-9a-f]{32}\.(safetensors|\d+-\d+\.tmp)")
_CUT_OFF = re.compile(r"(?P<name>.+)\.(?:(?P<pid>\d+)(?:-\d+)?\.)?tmp")
"""Temporary files of small files and vector indexes, with the process that wrote them."""


def is_name(text: object) -> bool:
    """True for 32 hex digits, which is what namespaces and token hashes are."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def allocated_size(size: int) -> int:
    """Return what a file of `size` bytes is counted as: whole blocks of 4,096 bytes."""
    return -(-size // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True)
class KVEntry:
    """One entry under kv/ or quarantine/, seen without opening it."""

    path: Path
    size: int
    aside: bool = False
    """It lies in quarantine."""
    named_ours: bool = True
    """It is a regular file, and its place and name are ones that the store gives."""

    @property
    def counted(self) -> int:
        """Bytes it takes from the budget."""
        return allocated_size(self.size)

    @property
    def is_temporary(self) -> bool:
        """True for the remains of a write that was cut off."""
        return self.named_ours and self.path.suffix == ".tmp"


@dataclass(frozen=True, slots=True)
class Layout:
    """The places inside one data directory, and of its chunk KV where `kv_dir` puts that elsewhere."""

    root: Path
    kv_dir: Path | None = None
    home: OwnedDirectory = field(init=False, repr=False, compare=False)
    """The data directory, for whoever changes something in it."""
    cache: OwnedDirectory = field(init=False, repr=False, compare=False)
    """The directory through which KV files are changed: `kv_dir`, or the data directory."""
    kv_root: OwnedDirectory = field(init=False, repr=False, compare=False)
    """The root of all KV files, to see whether it is still the same."""

    def __post_init__(self) -> None:
        home = OwnedDirectory(self.root)
        apart = None if self.kv_dir is None else OwnedDirectory(self.kv_dir, follow=False)
        object.__setattr__(self, "home", home)
        object.__setattr__(self, "cache", apart or home)
        object.__setattr__(self, "kv_root", apart or OwnedDirectory(self.root / "kv", within=home))

    @property
    def catalog(self) -> Path:
        """The SQLite file."""
        return self.root / ownership.CATALOG

    @property
    def kv(self) -> Path:
        """Root of all KV files."""
        return self.kv_dir or self.root / "kv"

    @property
    def vectors(self) -> Path:
        """Saved approximate indexes."""
        return self.root / "vectors"

    @property
    def quarantine(self) -> Path:
        """Catalogs that failed a check, and KV files unless they lie elsewhere."""
        return self.root / "quarantine"

    @property
    def kv_quarantine(self) -> Path:
        """KV files that failed a check, on the drive that they were on."""
        return self.cache.root / "quarantine"

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

        Raises StoreError if the place cannot be used, or holds files of somebody else and no store; ForeignPlace where
        a link or a mount stands in place of a folder. (`kv` may be one here; `kv_directory.settle` refuses it.)
        """
        try:
            self._make_root()
            self.check_owner()
            self._tag()
            with self.home.opened() as root:
                root.make_private()
            for place in (self.root / "kv", self.vectors, self.quarantine, self.run, self.root / "logs"):
                if place.name == "kv":
                    with suppress(ForeignPlace):
                        self.home.make_directory(place)
                else:
                    self.home.make_directory(place)
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
            self.home.write(tag, ownership.TAG_CONTENT)
        except OSError as error:
            full = isinstance(of_system(error), StoreFull)
            if not (full and self.catalog.is_file()):  # a store that lost its tag is used all the same
                raise

    def has_kv(self) -> bool:
        """True if a complete KV file lies under kv/."""
        try:
            return any(entry.named_ours and not entry.is_temporary for entry in self._scan_kv())
        except ForeignPlace:  # a link or a mount: what is behind it is not looked at
            return False

    def remove_cut_off(self) -> None:
        """Remove what writes of small files and vector indexes left when they were cut off; of the living, nothing."""
        for folder in (self.root, self.vectors, self.run, self.root / "models"):
            try:
                with self.home.opened(folder) as place:
                    names = place.names()
            except (FileNotFoundError, ForeignPlace):
                continue
            for name in names:
                written = _CUT_OFF.fullmatch(name)
                if written and not _lives(written["pid"]):
                    self.home.remove(folder / name, self.proof(folder / name))

    def scan(self) -> Iterator[KVEntry]:
        """Yield every entry under kv/ and quarantine/, of all namespaces, temporary and foreign ones included.

        Raises ForeignPlace where a link or a mount stands in place of either.
        """
        yield from self._scan_kv()
        yield from self.scan_quarantine()

    def scan_quarantine(self) -> Iterator[KVEntry]:
        """Yield what was put aside, on both drives. Raises ForeignPlace as `scan` does."""
        for owner, folder in dict.fromkeys(((self.cache, self.kv_quarantine), (self.home, self.quarantine))):
            for path, status in owner.scan(folder):
                yield KVEntry(path, status.st_size, aside=True, named_ours=stat.S_ISREG(status.st_mode))

    def _scan_kv(self) -> Iterator[KVEntry]:
        apart = () if self.kv_dir is None else ("quarantine", TAG, KV_MARKER, "lost+found")
        for path, status in self.cache.scan(self.kv, skip=lambda path: path.parent == self.kv and path.name in apart):
            ours = stat.S_ISREG(status.st_mode) and _PLACED.fullmatch(path.relative_to(self.kv).as_posix()) is not None
            yield KVEntry(path, status.st_size, named_ours=ours)

    def proof(self, path: Path) -> Proof:
        """Return what the content of the file at `path` must be for it to be ours."""
        if self.kv_dir is not None and path.is_relative_to(self.kv_dir):
            return ownership.content_proves(ownership.name_in_kv(self.kv_dir, path))
        return ownership.content_proves(path.relative_to(self.root).as_posix())

    def owner(self, path: Path) -> OwnedDirectory:
        """Return the directory through which `path` is changed."""
        return self.cache if self.kv_dir is not None and path.is_relative_to(self.kv_dir) else self.home


def write_private(path: Path, content: bytes, root: Path | None = None) -> None:
    """Write a small file (0600) so that it is there completely or not at all.

    `root` is the data directory that `path` lies in: no link below it is followed, and a missing folder is made.
    Durable on return. Raises ForeignPlace, OSError.
    """
    home = OwnedDirectory(root or path.parent)
    if path.parent != home.root:
        home.make_directory(path.parent)
    home.write(path, content)


def drop_page_cache(paths: Iterable[Path]) -> None:
    """Ask the system to drop its copies of files in memory, so that reading them measures the drive."""
    for path in paths:
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


def start_readahead(paths: Iterable[Path], length: int = 0) -> int:
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


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
