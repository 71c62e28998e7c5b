"""A log file in the data directory: private, rotated, and never written through a link."""

from __future__ import annotations

import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from desk_rag.errors import ForeignPlace
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store.ownership import content_proves


class PrivateLog(RotatingFileHandler):
    """Appends to `logs/NAME` of a data directory, readable by its owner only."""

    def __init__(self, folder: Path, name: str, *, most_bytes: int, old_files: int, delay: bool = False) -> None:
        """Make the folder if it is missing. Raises OSError, also if the folder or the file is a link."""
        self._home = OwnedDirectory(folder.parent)
        self._folder = folder
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._home.make_directory(folder)
            super().__init__(folder / name, maxBytes=most_bytes, backupCount=old_files, encoding="utf-8", delay=delay)
        except ForeignPlace as error:
            raise OSError(error.message) from error

    def _open(self) -> TextIOWrapper:
        with self._home.opened(self._folder) as folder:
            descriptor = folder.append_to(Path(self.baseFilename).name)
        return os.fdopen(descriptor, "a", encoding=self.encoding)

    def doRollover(self) -> None:
        """Renumber the older files and remove the oldest; stop at a file that cannot be replaced."""
        if self.stream:
            self.stream.close()
            self.stream = None
        name = Path(self.baseFilename).name
        with self._home.opened(self._folder) as folder:
            oldest = f"{name}.{self.backupCount}"
            folder.unlink(oldest, content_proves(f"logs/{oldest}"))
            for number in range(self.backupCount - 1, -1, -1):
                old = f"{name}.{number}" if number else name
                if old in folder.names() and f"{name}.{number + 1}" not in folder.names():
                    folder.replace(old, folder, f"{name}.{number + 1}")
        self.stream = self._open()
