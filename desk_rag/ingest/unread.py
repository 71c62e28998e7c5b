"""Count the files that were not read, by kind, so that an answer can say what it may have missed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.formats import KIND_NOT_READ, unread_kind
from desk_rag.documents.status import FileState

if TYPE_CHECKING:
    from desk_rag.store.store import Store

UNREADABLE = "that could not be read"
_GROUP_BY_RULE = {
    "secret": "that may hold secrets",
    "default": "of tools",
    "empty": "empty",
    "permission denied": UNREADABLE,
    **dict.fromkeys((".gitignore", ".deskragignore", "exclude"), "by your rules"),
}
"""Group of a skipped file by the beginning of its recorded reason."""
_BINARY = "binary files"
_TOO_LARGE = "too large"
_WITHOUT_TEXT = frozenset(
    {"programs", "fonts", "archives", "model weights", "audio", "video", _BINARY, "empty", "of tools"}
)
"""Groups that cannot hold an answer in text."""
_SINGULAR = {
    "images": "image",
    "archives": "archive",
    "old Office and iWork files": "old Office or iWork file",
    "other documents": "other document",
    "programs": "program",
    "databases and data files": "database or data file",
    "fonts": "font",
    "model weights": "file of model weights",
    _BINARY: "binary file",
    "others": "other",
}
_SUFFIX = re.compile(re.escape(KIND_NOT_READ) + r" \('(.*)'\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class UnreadFiles:
    """Number of files that were not read, in all and by kind."""

    files: int
    kinds: tuple[tuple[str, int], ...]
    """Kind and number of files, the largest number first."""

    @property
    def summary(self) -> str:
        """Return '46 files not read: 25 images, 20 archives, 1 too large'."""
        kinds = (f"{count:,} {_SINGULAR.get(kind, kind) if count == 1 else kind}" for kind, count in self.kinds)
        return f"{self.files:,} file{'' if self.files == 1 else 's'} not read: {', '.join(kinds)}"

    @property
    def hint(self) -> str:
        """Return the command that names the files."""
        return f"desk-rag why FOLDER lists {'it' if self.files == 1 else 'them'}"

    def with_text(self) -> UnreadFiles:
        """Return the kinds that may hold an answer in text, or all kinds if none of them can."""
        kinds = tuple((kind, count) for kind, count in self.kinds if kind not in _WITHOUT_TEXT)
        return UnreadFiles(sum(count for _, count in kinds), kinds) if kinds else self


def skipped_files(store: Store, under: Sequence[Path]) -> UnreadFiles:
    """Count the files below the folders `under` (all, if empty) that a rule or their kind leaves out."""
    return _counted(group for group in store.unread_reasons(under) if group[0] is FileState.SKIPPED)


def may_hold_answer(store: Store, under: Sequence[Path]) -> UnreadFiles | None:
    """Count the files below the folders `under` (all, if empty) that may hold an answer but were not read.

    Returns None if every file was read.
    """
    unread = _counted(store.unread_reasons(under)).with_text()
    return unread if unread.files else None


def kind_of(reason: str) -> str:
    """Return the group in which a skipped file with this recorded reason is counted."""
    if reason.startswith(KIND_NOT_READ):
        named = _SUFFIX.match(reason)
        return unread_kind(f"name{named[1]}") or _BINARY if named else _BINARY
    if reason.startswith("larger than "):
        return _TOO_LARGE
    return _GROUP_BY_RULE.get(reason.partition(":")[0], "others")


def _counted(groups: Iterable[tuple[FileState, str, int]]) -> UnreadFiles:
    kinds: Counter[str] = Counter()
    for state, reason, count in groups:
        kinds[kind_of(reason) if state is FileState.SKIPPED else UNREADABLE] += count
    return UnreadFiles(kinds.total(), tuple(kinds.most_common()))
