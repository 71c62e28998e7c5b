"""What happened to a file, and which stage of indexing it is in."""

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
    """The note of a file of which `kept` bytes of text are indexed, and no more."""
    amount = f"{kept / 2**20:.1f} MiB" if kept >= 2**20 // 10 else f"{kept / 1024:.1f} KiB"
    return f"{_ONLY}{amount} of its text are indexed (`max_text_mib` under [index])"


def is_beginning_only(note: str) -> bool:
    """Whether an indexed file's note says that only its beginning is indexed."""
    return note.startswith(_ONLY)
