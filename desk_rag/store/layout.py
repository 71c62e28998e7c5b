"""Paths and permissions in the data directory and in `kv_dir`.

File names are hashes, so that a directory listing reveals nothing about the documents.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from desk_rag.errors import ForeignPlace, StoreError, StoreFull, of_system
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import Proof, sync_directory
from desk_rag.store import ownership
from desk_rag.store.ownership import KV_MARKER, TAG

BLOCK = 4096
KV_SUFFIX = ".safetensors"
_NAME = re.compile(r"[0-9a-f]{32}")
_KV_PATH = re.compile(r"[0-9a-f]{16}/[0-9a-f]{2}/[0-9a-f]{32}\.(safetensors|\d+-\d+\.tmp)")
_TEMPORARY = re.compile(r"(?P<name>.+?)(?:\.(?P<pid>\d+)(?:-\d+)?)?\.tmp")
"""Temporary files of small files and vector indexes, with the id of the process that wrote them."""


def is_name(text: object) -> bool:
    """Return whether `text` is 32 hex digits, as namespaces and token hashes are."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def allocated_size(size: int) -> int:
    """Return the bytes that a file of `size` bytes takes on disk: whole blocks of 4,096 bytes."""
    return -(-size // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True)
class KVEntry:
    """An entry under kv/ or quarantine/, examined without opening it."""

    path: Path
    size: int
    aside: bool = False
    """True if it is in quarantine."""
    named_ours: bool = True
    """True for a regular file with a place and name that the store gives."""

    @property
    def counted(self) -> int:
        """Bytes it takes from the budget."""
        return allocated_size(self.size)

    @property
    def is_temporary(self) -> bool:
        """True for what an interrupted write left."""
        return self.named_ours and self.path.suffix == ".tmp"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths in one data directory, and of its chunk KV if `kv_dir` puts that elsewhere."""

    root: Path
    kv_dir: Path | None = None
    home: OwnedDirectory = field(init=False, repr=False, compare=False)
    """The data directory, through which its files are changed."""
    cache: OwnedDirectory = field(init=False, repr=False, compare=False)
    """The directory through which KV files are changed: `kv_dir`, or the data directory."""
    kv_root: OwnedDirectory = field(init=False, repr=False, compare=False)
    """The root of all KV files, to check that it is still the same directory."""

    def __post_init__(self) -> None:
        home = OwnedDirectory(self.root)
        separate = None if self.kv_dir is None else OwnedDirectory(self.kv_dir, follow=False)
        object.__setattr__(self, "home", home)
        object.__setattr__(self, "cache", separate or home)
        object.__setattr__(self, "kv_root", separate or OwnedDirectory(self.root / "kv", within=home))

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
        """Directory of saved vector indexes."""
        return self.root / "vectors"

    @property
    def quarantine(self) -> Path:
        """Directory of damaged catalogs, and of unsound KV files unless `kv_dir` is set."""
        return self.root / "quarantine"

    @property
    def kv_quarantine(self) -> Path:
        """Directory of unsound KV files, on the drive of the KV files."""
        return self.cache.root / "quarantine"

    @property
    def run(self) -> Path:
        """Directory of locks."""
        return self.root / "run"

    def kv_file(self, namespace: str, tokens: str) -> Path:
        """Return the path of a chunk KV from its namespace and token hash, both 32 hex digits."""
        assert _NAME.fullmatch(tokens), f"a token hash is 32 hex digits, not {tokens!r}"
        return self.namespace_dir(namespace) / tokens[:2] / f"{tokens}{KV_SUFFIX}"

    def namespace_dir(self, namespace: str) -> Path:
        """Return the directory of all chunk KV of a namespace (32 hex digits)."""
        assert _NAME.fullmatch(namespace), f"a namespace is 32 hex digits, not {namespace!r}"
        return self.kv / namespace[:16]

    def create(self) -> None:
        """Make the directories (0700), the CACHEDIR.TAG first, so that an unfinished tree is recognised as ours.

        Raises StoreError if the data directory cannot be used, or holds foreign files and no store; ForeignPlace if a
        folder is a link or a mount (except `kv`, which `kv_directory.open_kv_directory` checks).
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
                remedy="Set `data_dir` to a directory that you own and can write to.",
            ) from error

    def check_owner(self) -> None:
        """Raise StoreError if the data directory holds foreign files and no store; OSError if it is unreadable."""
        other = ownership.first_foreign(self.root) if self.root.exists() else None
        if other is not None:
            name = other.relative_to(self.root)
            raise StoreError(
                f"The directory {self.root} holds other files, such as '{name}', and no desk-rag store.",
                remedy="Set data_dir to an empty or new directory.",
            )

    def _make_root(self) -> None:
        """Make the data directory and its parents; their names are durable before the tag is written."""
        fresh = [place for place in (self.root, *self.root.parents) if not place.exists()]
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if fresh or not (self.root / ownership.TAG).exists():
            for place in reversed(fresh or [self.root]):
                with suppress(PermissionError):  # a parent that may be entered but not opened
                    sync_directory(place.parent)

    def _tag(self) -> None:
        tag = self.root / ownership.TAG
        if tag.exists():
            return
        try:
            self.home.write(tag, ownership.TAG_CONTENT)
        except OSError as error:
            full = isinstance(of_system(error), StoreFull)
            if not (full and self.catalog.is_file()):  # a store that lost its tag is still used
                raise

    def has_kv(self) -> bool:
        """Return whether there is a complete KV file under kv/."""
        try:
            return any(entry.named_ours and not entry.is_temporary for entry in self._scan_kv())
        except ForeignPlace:  # what is behind a link or a mount is not examined
            return False

    def remove_temporary(self) -> None:
        """Remove temporary files of small files and vector indexes whose process has ended."""
        for folder in (self.root, self.vectors, self.run, self.root / "models"):
            try:
                with self.home.opened(folder) as place:
                    names = place.names()
            except (FileNotFoundError, ForeignPlace):
                continue
            for name in names:
                match = _TEMPORARY.fullmatch(name)
                if match and not _is_writing(match["pid"]):
                    self.home.remove(folder / name, self.proof(folder / name))

    def scan(self) -> Iterator[KVEntry]:
        """Yield every entry under kv/ and quarantine/, including temporary and foreign files.

        Raises ForeignPlace if either is a link or a mount.
        """
        yield from self._scan_kv()
        yield from self.scan_quarantine()

    def scan_quarantine(self) -> Iterator[KVEntry]:
        """Yield the entries of the quarantines of both drives. Raises ForeignPlace as `scan` does."""
        for owner, folder in dict.fromkeys(((self.cache, self.kv_quarantine), (self.home, self.quarantine))):
            for path, status in owner.scan(folder):
                yield KVEntry(path, status.st_size, aside=True, named_ours=stat.S_ISREG(status.st_mode))

    def _scan_kv(self) -> Iterator[KVEntry]:
        other = () if self.kv_dir is None else ("quarantine", TAG, KV_MARKER, "lost+found")
        for path, status in self.cache.scan(self.kv, skip=lambda path: path.parent == self.kv and path.name in other):
            ours = stat.S_ISREG(status.st_mode) and _KV_PATH.fullmatch(path.relative_to(self.kv).as_posix()) is not None
            yield KVEntry(path, status.st_size, named_ours=ours)

    def proof(self, path: Path) -> Proof:
        """Return the proof that the file at `path` is ours."""
        if self.kv_dir is not None and path.is_relative_to(self.kv_dir):
            return ownership.content_proves(ownership.name_in_kv(self.kv_dir, path))
        return ownership.content_proves(path.relative_to(self.root).as_posix())

    def owner(self, path: Path) -> OwnedDirectory:
        """Return the directory through which `path` is changed."""
        return self.cache if self.kv_dir is not None and path.is_relative_to(self.kv_dir) else self.home


def drop_page_cache(paths: Iterable[Path]) -> None:
    """Ask the system to drop files from its page cache, so that reading them measures the drive."""
    for path in paths:
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


def start_readahead(paths: Iterable[Path], length: int = 0) -> int:
    """Ask the system to read files ahead, in parallel; `length` bytes of each, 0 for all of it.

    Returns the total size of the files; one that cannot be opened counts as 0.
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


def _is_writing(pid: str | None) -> bool:
    """Return whether another process with this id may still be writing; without an id there is none."""
    if pid is None or int(pid) == os.getpid():
        return False
    import psutil  # here, because a client of a resident process needs only the paths

    return bool(psutil.pid_exists(int(pid)))
