"""Every removal, rename and change of mode in the data directory, by directory handle.

Directories are opened one component at a time. A link or a mount below the root is refused, and a file is looked at
through the handle of its directory: a directory that is exchanged for a link meanwhile changes nothing. Where the
system has no such handles (Windows), each component is examined before each step instead.

No other module of desk-rag removes or renames anything in a data directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from desk_rag.errors import ForeignPlace
from desk_rag.owned_folder import Entry, Folder, Proof, create_beside, is_same_file, open_folder, proven, scan_below


class OwnedDirectory:
    """A directory of desk-rag's. Takes paths below it; safe to use from several threads."""

    def __init__(self, root: Path, *, within: OwnedDirectory | None = None, follow: bool = True) -> None:
        """`within` is the owned directory that holds it, if any; `follow` allows `root` itself to be a link."""
        self.root = root
        self._within = within
        self._follow = follow
        self._identity: tuple[int, int] | None = None

    @contextmanager
    def opened(self, path: Path | None = None) -> Iterator[Folder]:
        """Lend the handle of a directory at or below the root. Raises ForeignPlace, OSError."""
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
        """Accept another directory at the same path at the next use."""
        self._identity = None

    def is_in_place(self) -> bool:
        """True while the directory is the one that was opened first."""
        try:
            with self.opened():
                return True
        except (ForeignPlace, OSError):
            return False

    def make_directory(self, path: Path) -> None:
        """Make a directory below the root, private, in one that is there. Raises ForeignPlace, OSError."""
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
        """Yield everything below a directory but directories; a link or a mount is one entry and is not entered."""
        try:
            with self.opened(path) as folder:
                yield from scan_below(folder, skip)
        except FileNotFoundError:
            return

    def entry(self, path: Path) -> Entry | None:
        """Return what stands at `path`, None if nothing does or a link is on the way."""
        try:
            with self.opened(path.parent) as folder:
                entry = folder.entry(path.name)
                entry.start()
                return entry
        except (FileNotFoundError, ForeignPlace):
            return None

    def remove(self, path: Path, proof: Proof) -> os.stat_result | None:
        """Remove a file that is proven ours; return what it was, or None if it is gone or stays. Raises OSError."""
        try:
            with self.opened(path.parent) as folder:
                return folder.unlink(path.name, proof)
        except (FileNotFoundError, ForeignPlace):
            return None

    def move(self, path: Path, into: Path, name: Callable[[Entry], str], proof: Proof) -> bool:
        """Rename a file that is proven ours to a new name in the directory `into`; False if it is gone or stays.

        Raises OSError.
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
        """Remove an empty directory below the root; anything else stays."""
        with suppress(OSError, ForeignPlace), self.opened(path.parent) as folder:
            folder.remove_directory(path.name)

    def write(self, path: Path, content: bytes) -> None:
        """Write a small file (0600) so that it is there completely or not at all; durable on return.

        Raises ForeignPlace, OSError.
        """
        with self.opened(path.parent) as folder:
            beside, descriptor = create_beside(folder, path.name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                folder.replace(beside, folder, path.name)
            except BaseException:
                with suppress(OSError):
                    folder.unlink(beside, proven)
                raise
            folder.sync()

    def sync(self, path: Path) -> None:
        """Make the names in a directory durable; nothing if it is gone. Raises ForeignPlace, OSError."""
        with suppress(FileNotFoundError), self.opened(path) as folder:
            folder.sync()

    def _check(self, folder: Folder) -> None:
        try:
            status = folder.path.stat() if folder.descriptor is None else os.fstat(folder.descriptor)
            found = status.st_dev, status.st_ino
            self._identity = self._identity or found
            if found != self._identity:
                raise ForeignPlace(
                    f"{self.root} is another directory than when it was opened.",
                    remedy="Put the directory back, or start again.",
                )
        except BaseException:
            folder.close()
            raise
