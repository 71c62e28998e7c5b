"""Look through a folder before it is indexed: what would be read, what not and why, and what it would take.

No document is opened, so amounts of text, times and sizes are rough: they come from file sizes and kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from desk_rag.config import GIB, IndexSettings
from desk_rag.documents import document as documents
from desk_rag.documents import formats
from desk_rag.documents.discovery import LeftOut, check_root, walk
from desk_rag.documents.formats import Format
from desk_rag.ingest.unread import kind_of

_TEXT_SHARE = {
    Format.PDF: 0.03,
    Format.DOCX: 0.1,
    Format.SLIDES: 0.01,
    Format.SHEETS: 0.3,
    Format.OPEN_DOCUMENT: 0.1,
    Format.OPEN_SLIDES: 0.01,
    Format.EBOOK: 0.3,
    Format.HTML: 0.3,
    Format.WEB_ARCHIVE: 0.1,
    Format.MAIL: 0.4,
    Format.MAILBOX: 0.4,
    Format.OUTLOOK: 0.1,
    Format.NOTEBOOK: 0.3,
    Format.RICH_TEXT: 0.3,
}
"""Share of a file's bytes that is text; 1 for other formats."""
_UNREADABLE = "permission denied"
_CHUNK_BYTES = 660
_SECONDS_PER_FILE = 0.02
_SECONDS_PER_MB = 1.0
_SECONDS_PER_VECTOR = 0.02
_SECONDS_PER_CACHE = 0.15
"""Rates of the embedded reader on two CPU cores, without a GPU."""
KV_GIB_PER_MB = 0.8
"""Disk space for the caches of a megabyte of text, with the embedded reader."""
_INDEX_BYTES_PER_TEXT_BYTE = 5
_MOST_KINDS = 6


@dataclass(frozen=True, slots=True)
class FolderPreview:
    """Counts and estimates for indexing a folder."""

    folder: Path
    files: int
    """Files that would be read."""
    size: int
    """Their bytes."""
    text_bytes: int
    """Bytes of text in them, roughly."""
    kinds: tuple[tuple[str, int], ...]
    """Suffixes and numbers of files, the largest number first."""
    left_out: tuple[tuple[str, int], ...]
    """Groups and numbers of files and folders that would not be read, the largest number first."""
    unreadable: int
    """Files and folders without permission to read them."""
    complete: bool = True
    """False if the look was ended early: there is more."""

    @property
    def left_out_total(self) -> int:
        """Number of files and folders that would not be read because of a rule or their kind."""
        return sum(number for _, number in self.left_out)

    @property
    def kinds_line(self) -> str:
        """Return 'md 1,902 · pdf 611 · 12 other kinds'."""
        shown = [f"{name} {number:,}" for name, number in self.kinds[:_MOST_KINDS]]
        rest = len(self.kinds) - _MOST_KINDS
        return " · ".join([*shown, f"{rest} other kind{'' if rest == 1 else 's'}"] if rest > 0 else shown)

    @property
    def left_out_line(self) -> str:
        """Return 'images 120 · by your rules 8'."""
        return " · ".join(f"{name} {number:,}" for name, number in self.left_out[:_MOST_KINDS])

    @property
    def chunks(self) -> int:
        """Number of chunks, roughly."""
        return max(self.files, self.text_bytes // _CHUNK_BYTES) if self.files else 0

    @property
    def seconds_to_words(self) -> float:
        """Time until the files can be found by their words, roughly."""
        return self.files * _SECONDS_PER_FILE + self.text_bytes / 1e6 * _SECONDS_PER_MB

    @property
    def seconds_to_meaning(self) -> float:
        """Time until they can be found by meaning, roughly."""
        return self.seconds_to_words + self.chunks * _SECONDS_PER_VECTOR

    @property
    def seconds_to_warm(self) -> float:
        """Idle time until all caches are there, roughly, with the embedded reader on two CPU cores."""
        return self.chunks * _SECONDS_PER_CACHE

    @property
    def index_bytes(self) -> int:
        """Disk space for text, words and vectors, roughly."""
        return self.text_bytes * _INDEX_BYTES_PER_TEXT_BYTE

    @property
    def kv_bytes(self) -> int:
        """Disk space that caches of everything would take, roughly, with the embedded reader."""
        return int(self.text_bytes / 1e6 * KV_GIB_PER_MB * GIB)

    @property
    def sentence(self) -> str:
        """Return what will be read and what not, in one sentence."""
        least = "" if self.complete else "at least "
        said = f"{least}{self.files:,} file{'' if self.files == 1 else 's'} to read ({self.kinds_line})"
        if self.left_out_total:
            said += f"; {least}{self.left_out_total:,} left out ({self.left_out_line})"
        if self.unreadable:
            said += f"; {self.unreadable:,} may not be opened"
        return said + "."


def preview(
    folder: Path,
    settings: IndexSettings,
    stop: Callable[[], bool] = documents.never,
    report: Callable[[int], None] = lambda _: None,
) -> FolderPreview:
    """Count the files below `folder` by what indexing would do with them; `report` hears how many were seen so far.

    Ends early, with what was seen, once `stop` returns True. Raises ConfigError or UnreadableDocument for a folder
    that cannot be walked.
    """
    check_root(folder)
    kinds, left_out = Counter[str](), Counter[str]()
    size = unreadable = 0
    text_bytes, stopped = 0.0, False
    for seen, found in enumerate(walk(folder, settings, stop), 1):
        if seen % 500 == 0:
            report(seen)
        if stop():
            stopped = True
            break
        if isinstance(found, LeftOut):
            if found.reason == _UNREADABLE:
                unreadable += 1
            else:
                left_out[kind_of(found.reason)] += 1
        elif not documents.supported(found.path):
            left_out[formats.unread_kind(found.path.name) or "binary files"] += 1
        elif not found.size:
            left_out["empty"] += 1
        else:
            kinds[found.path.suffix.lower().removeprefix(".") or "without suffix"] += 1
            size += found.size
            share = _TEXT_SHARE.get(formats.format_of_name(found.path.name) or Format.TEXT, 1.0)
            text_bytes += min(found.size * share, settings.max_text_mib * 1024 * 1024)
    return FolderPreview(
        folder,
        kinds.total(),
        size,
        int(text_bytes),
        tuple(kinds.most_common()),
        tuple(left_out.most_common()),
        unreadable,
        complete=not stopped and not stop(),
    )
