"""Holds the removal of many documents at once until a second look finds the same files gone.

Knows paths and one small note in the data directory; knows no store and removes nothing itself. An unmounted drive,
a cloud client that signed out or a wrong `rm` look the same as a clean-up; what hangs on a removal is hours of
prefill. So more than `share` of a folder's documents *and* more than `few` of them are let go only by a second
look, at least `seconds` after the first, that finds no file gone beyond those the first one noted. The note
outlives the process: running `desk-rag index` twice confirms as well as a background service does. It holds hashes,
not names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from desk_rag.errors import ForeignPlace
from desk_rag.owned_directory import OwnedDirectory, proven


@dataclass(frozen=True, slots=True)
class _Note:
    at: float
    paths: frozenset[str]


class RemovalBrake:
    """Decides whether removals may go on. One process at a time: only the writer of the store uses it."""

    def __init__(self, directory: Path | None, *, share: float = 0.5, few: int = 20, seconds: float = 10.0) -> None:
        """`directory`: where the note is kept, `run` of the data directory; None keeps it in this object only."""
        self._file = None if directory is None else directory / "held-removals.json"
        self._notes: dict[str, _Note] = {}
        self._share, self._few, self._seconds = share, few, seconds

    def allows(self, root: Path, gone: Sequence[Path], known: int) -> bool:
        """Whether `gone` (of `known` documents under `root`) may be removed now; if not, they are noted."""
        notes = self._read()
        note = notes.pop(_hash(root), None)
        if len(gone) <= max(self._few, self._share * known):
            if note is not None:
                self._write(notes)
            return True
        names = frozenset(_hash(path) for path in gone)
        same = note is not None and names <= note.paths
        # Both directions: a clock set back must not hold a removal for ever, nor one set forward confirm it alone.
        if same and note is not None and abs(time.time() - note.at) >= self._seconds:
            self._write(notes)
            return True
        at = note.at if same and note is not None else time.time()
        self._write({**notes, _hash(root): _Note(at, names)})
        return False

    def _read(self) -> dict[str, _Note]:
        if self._file is None:
            return dict(self._notes)
        try:
            held = json.loads(self._file.read_text(encoding="utf-8"))
            return {root: _Note(float(at), frozenset(paths)) for root, (at, paths) in held.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # no note, or one that a power cut spoiled: hold once more

    def _write(self, notes: dict[str, _Note]) -> None:
        if self._file is None:
            self._notes = notes
            return
        home = OwnedDirectory(self._file.parents[1])
        if not notes:
            home.remove(self._file, proven)  # it was read as a note of ours
            return
        text = json.dumps({root: [note.at, sorted(note.paths)] for root, note in notes.items()})
        # Without room for the note the removals are held again at the next look, which is the safe side.
        with contextlib.suppress(OSError, ForeignPlace):
            home.make_directory(self._file.parent)
            home.write(self._file, text.encode())


def _hash(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
