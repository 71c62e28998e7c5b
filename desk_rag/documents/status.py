"""States of a file and stages of indexing, and how counts are worded."""

from __future__ import annotations

from enum import Enum


class IndexStage(Enum):
    """A document is first findable by words, then by meaning, then warm."""

    SCAN = "scan"
    WORDS = "words"
    VECTORS = "vectors"
    WARM = "warm"


class FileState(Enum):
    """The last thing that happened to a file; kept in the catalog so that `why` can answer."""

    INDEXED = "indexed"
    UNCHANGED = "unchanged"
    RENAMED = "renamed"
    REMOVED = "removed"
    SKIPPED = "skipped"
    FAILED = "failed"


_ONLY = "only the first "


def beginning_only(kept: int) -> str:
    """Return the note for a file of which only the first `kept` bytes of text are indexed."""
    amount = f"{kept / 2**20:.1f} MiB" if kept >= 2**20 // 10 else f"{kept / 1024:.1f} KiB"
    return f"{_ONLY}{amount} of its text are indexed (`max_text_mib` under [index])"


def is_beginning_only(note: str) -> bool:
    """Return whether an indexed file's note says that only its beginning is indexed."""
    return note.startswith(_ONLY)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: '1 file', '12,431 files'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def foreseen(seconds: float) -> str:
    """Return a predicted time, no more exact than a prediction is: '4 s', '12 min', '3.5 h'."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
