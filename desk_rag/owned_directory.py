"""Change files in the data directory through directory handles only.

Directories are opened one component at a time. A link or a mount below the root is refused, and files are examined
through the handle of their directory, so that replacing a directory by a link meanwhile has no effect. On systems
without directory handles (Windows), each component is checked before each step instead.

No other module of desk-rag removes or renames files in a data directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from desk_rag.errors import ForeignPlace
from desk_rag.owned_folder import (
    Entry,
    Folder,
    Proof,
    is_same_file,
    open_folder,
    replacing,
    scan_below,
    write_all,
)


class OwnedDirectory:
    """A directory that belongs to desk-rag. Methods take paths below it; safe to use from several threads."""

    def __init__(self, root: Path, *, within: OwnedDirectory | None = None, follow: bool = True) -> None:
        """`within` is the owned directory that contains `root`, if any; `follow` allows `root` itself to be a link."""
        self.root = root
        self._within = within
        self._follow = follow
        self._identity: tuple[int, int] | None = None

    @contextmanager
    def opened(self, path: Path | None = None) -> Iterator[Folder]:
        """Open a directory at or below the root for the length of the block. Raises ForeignPlace, OSError."""
        if self._within is not None:
            with self._within.opened(self.root.parent) as parent:
                folder = parent.child(self.root.name)
        else:
            folder = open_folder(self.root, None, follow=self._follow)
        try:
            self._check(folder)
            for name in () if path is None else path.relative_to(self.root).parts:
                below = folder.child(name)
                folder.close()
                folder = below
            yield folder
        finally:
            folder.close()

    def forget_identity(self) -> None:
        """Accept a different directory at this path at the next use."""
        self._identity = None

    def is_in_place(self) -> bool:
        """Return whether the path still leads to the directory that was opened first."""
        try:
            with self.opened():
                return True
        except (ForeignPlace, OSError):
            return False

    def make_directory(self, path: Path) -> None:
        """Make a private directory below the root; its parent must exist. Raises ForeignPlace, OSError."""
        with self.opened(path.parent) as parent:
            parent.make_directory(path.name)
            folder = parent.child(path.name)
            try:
                folder.make_private()
            finally:
                folder.close()

    def scan(
        self, path: Path, *, skip: Callable[[Path], bool] = lambda _: False
    ) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield (path, status) of everything below a directory except directories.

        A link or a mount is one entry and is not entered. A directory that does not exist is empty.
        """
        try:
            with self.opened(path) as folder:
                yield from scan_below(folder, skip)
        except FileNotFoundError:
            return

    def entry(self, path: Path) -> Entry | None:
        """Return the entry at `path`; None if it does not exist or the way to it contains a link."""
        try:
            with self.opened(path.parent) as folder:
                entry = folder.entry(path.name)
                entry.start()
                return entry
        except (FileNotFoundError, ForeignPlace):
            return None

    def remove(self, path: Path, proof: Proof) -> os.stat_result | None:
        """Remove a file if `proof` accepts it; return its status, or None if nothing was removed. Raises OSError."""
        try:
            with self.opened(path.parent) as folder:
                return folder.unlink(path.name, proof)
        except (FileNotFoundError, ForeignPlace):
            return None

    def remove_socket(self, path: Path) -> None:
        """Remove a socket of this user, which nobody listens on any more. Raises ForeignPlace, OSError."""
        with suppress(FileNotFoundError), self.opened(path.parent) as folder:
            folder.unlink_socket(path.name)

    def move(self, path: Path, into: Path, name: Callable[[Entry], str], proof: Proof) -> bool:
        """Move a file to the directory `into` if `proof` accepts it; `name` makes its new name from its entry.

        Returns False if nothing was moved. Raises OSError.
        """
        try:
            with self.opened(path.parent) as folder, self.opened(into) as target:
                entry = folder.entry(path.name)
                if not (entry.is_file and proof(entry) and is_same_file(entry.status, folder.status(path.name))):
                    return False
                folder.replace(path.name, target, name(entry))
                return True
        except (FileNotFoundError, ForeignPlace):
            return False

    def remove_directory(self, path: Path) -> None:
        """Remove a directory below the root if it is empty."""
        with suppress(OSError, ForeignPlace), self.opened(path.parent) as folder:
            folder.remove_directory(path.name)

    def write(self, path: Path, content: bytes) -> None:
        """Write a small file (0600) completely or not at all; durable on return.

        The file's directory is made if it is missing. Raises ForeignPlace, OSError.
        """
        if path.parent != self.root:
            self.make_directory(path.parent)
        with self.opened(path.parent) as folder, replacing(folder, path.name) as descriptor:
            write_all(descriptor, memoryview(content))

    def sync(self, path: Path) -> None:
        """Make the names in a directory durable, unless it is gone. Raises ForeignPlace, OSError."""
        with suppress(FileNotFoundError), self.opened(path) as folder:
            folder.sync()

    def _check(self, folder: Folder) -> None:
        try:
            status = folder.path.stat() if folder.descriptor is None else os.fstat(folder.descriptor)
            identity = status.st_dev, status.st_ino
            self._identity = self._identity or identity
            if identity != self._identity:
                raise ForeignPlace(
                    f"{self.root} was replaced by another directory while it was in use.",
                    remedy="Put the original directory back, or restart desk-rag.",
                )
        except BaseException:
            folder.close()
            raise
