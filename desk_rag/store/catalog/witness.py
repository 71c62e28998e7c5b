"""Record of the catalog outside of it: that there was one, which, and how many changes of documents it had.

A catalog that was emptied, replaced, or lost the end of its write-ahead log looks like an older or a new one from
within. The witness is written after each commit and not waited for: it may lag behind the catalog, never run ahead.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import ForeignPlace
from desk_rag.owned_directory import OwnedDirectory

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

    def __init__(self, home: OwnedDirectory, run: Path) -> None:
        self._home = home
        self._path = run / NAME

    def read(self) -> Mark | None:
        """Return what was noted last; None if nothing was or it cannot be read."""
        try:
            match = _FORM.fullmatch(self._path.read_bytes()[:128])
        except OSError:
            return None
        return None if match is None else Mark(match[1].decode(), int(match[2]))

    def write(self, mark: Mark) -> None:
        """Note a mark; where the drive does not allow it, nothing is noted."""
        content = f"desk-rag catalog {mark.identity} {mark.changes:020d}\n".encode()
        with suppress(OSError, ForeignPlace), self._home.opened(self._path.parent) as folder:
            folder.write_in_place(NAME, content)
