"""Log to a file in the data directory, because nothing else may write to the terminal of the UI.

Records say what happened to desk-rag; document text has no place in them.
"""

from __future__ import annotations

import logging
from pathlib import Path

from desk_rag.store.private_log import PrivateLog

_MOST_BYTES = 2 * 1024**2
_FILES = 5


def log_to_file(directory: Path) -> Path | None:
    """Send all log records and warnings to `directory`/tui.log, rotated at 2 MiB, five files. Returns the file.

    None where nothing can be written, on a full or read-only drive: records are then dropped, for the UI can still ask.
    """
    file: Path | None = directory / "tui.log"
    handler: logging.Handler
    try:
        handler = PrivateLog(directory, "tui.log", most_bytes=_MOST_BYTES, old_files=_FILES - 1)
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
