"""What is known of the catalog outside of it: that there was one, which, and how many changes of documents it had.

A catalog that was emptied, replaced, or lost the end of its write-ahead log looks like an older or a new one from
within. The witness is written after each commit and not waited for: it may lag behind the catalog, never run ahead.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NAME = "catalog.mark"
_FORM = re.compile(rb"desk-rag catalog ([0-9a-f]{32}) ([0-9]{20})\n")


@dataclass(frozen=True, slots=True)
class Mark:
    """One catalog at one moment."""

    identity: str
    """32 random hex digits, given when the catalog was made."""
    changes: int
    """Transactions so far that changed documents."""


class Witness:
    """The file `run/catalog.mark`. Only the writer writes it."""

    def __init__(self, run: Path) -> None:
        self._path = run / NAME

    def read(self) -> Mark | None:
        """Return what was noted last; None if nothing was or it cannot be read."""
        try:
            found = _FORM.fullmatch(self._path.read_bytes()[:128])
        except OSError:
            return None
        return None if found is None else Mark(found[1].decode(), int(found[2]))

    def write(self, mark: Mark) -> None:
        """Note a mark; where the drive does not allow it, nothing is noted."""
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            try:
                os.pwrite(descriptor, f"desk-rag catalog {mark.identity} {mark.changes:020d}\n".encode(), 0)
            finally:
                os.close(descriptor)
