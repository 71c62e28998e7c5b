"""Logging into a file of the data directory, because nothing may write to the terminal while the UI draws on it.

Records say what happened to desk-rag; document text has no place in them.
"""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

_MOST_BYTES = 2 * 1024**2
_FILES = 5


class _PrivateHandler(RotatingFileHandler):
    """Creates its files readable by their owner only."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(descriptor, "a", encoding=self.encoding)


def log_to_file(directory: Path) -> Path | None:
    """Send all log records and warnings to `directory`/tui.log, rotated at 2 MiB, five files. Returns the file.

    None where nothing can be written, on a full or read-only drive: records are then dropped, for the UI can still ask.
    """
    file: Path | None = directory / "tui.log"
    handler: logging.Handler
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = _PrivateHandler(
            directory / "tui.log", maxBytes=_MOST_BYTES, backupCount=_FILES - 1, encoding="utf-8"
        )
    except OSError:
        file, handler = None, logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    return file
