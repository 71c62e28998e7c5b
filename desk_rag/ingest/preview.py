"""Say what indexing folders would do, without opening a document or writing anything.

`compare` judges every file; `changes` collects its paths for `index --dry-run`, `preview` counts and estimates for a
folder that is new. Amounts of text, times and sizes are rough: they come from file sizes and kinds.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import IndexSettings
from desk_rag.documents import document, formats
from desk_rag.documents.discovery import FoundFile, LeftOut, check_root, walk
from desk_rag.documents.formats import Format
from desk_rag.documents.rules.ignore_rules import pattern_of
from desk_rag.documents.status import FileState, plural
from desk_rag.ingest.file_update import as_known, is_gone, not_opened, stamp_of
from desk_rag.ingest.unread import UNREADABLE, UnreadCounter, UnreadFiles, is_no_document, kind_of
from desk_rag.model.memory.plan import EMBEDDED_KV_BYTES_PER_TOKEN, cache_bytes

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

_TEXT_SHARE = {
    Format.PDF: 0.03,
    Format.DOCX: 0.03,
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
_CHUNK_BYTES = 530
_SECONDS_PER_FILE = 0.005
_SECONDS_PER_MB = 1.2
_SECONDS_PER_VECTOR = 0.012
_SECONDS_PER_CACHE = 0.08
"""Rates of the embedded reader on two CPU cores, without a GPU."""
_INDEX_BYTES_PER_TEXT_BYTE = 5
_MOST_KINDS = 6
_GIANT_BYTES = 1 << 20
"""Text that a file holds at least to be named because most of the text is in it."""


class Verdict(Enum):
    """The outcome that indexing a file would have."""

    NEW = "new"
    CHANGED = "changed"
    """A file to read again, because it or the parsers have changed."""
    UNCHANGED = "unchanged"
    FAILED = "failed"
    """Could not be read, and has not changed since."""
    LEFT_OUT = "left out"
    GONE = "gone"
    """A document whose file is not there any more."""


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """A file, or a folder that is left out, and what indexing would do with it."""

    path: Path
    verdict: Verdict
    size: int = 0
    """Size of the file, if it would be read."""
    kind: str = ""
    """Group in which it is counted, if it is left out."""
    is_folder: bool = False


def compare(
    roots: Sequence[Path],
    settings: IndexSettings,
    store: Store | None = None,
    stop: Callable[[], bool] = document.never,
) -> Iterator[JudgedFile]:
    """Judge every file below the folders, by the catalog if there is one. Raises StoreError."""
    for root in roots:
        rows = {} if store is None else {row.path: row for row in store.documents(root)}
        for entry in walk(root, settings, stop):
            row = rows.pop(entry.path, None)
            if not (isinstance(entry, LeftOut) and is_no_document(entry.reason)):
                yield _judged(entry, row, settings)
        if not stop():
            gone_paths = [path for path, row in rows.items() if row.state is FileState.INDEXED and is_gone(path, root)]
            yield from (JudgedFile(path, Verdict.GONE) for path in gone_paths)


def _judged(entry: FoundFile | LeftOut, row: DocumentRow | None, settings: IndexSettings) -> JudgedFile:
    known = row is not None and isinstance(entry, FoundFile) and row.stamp == stamp_of(entry, settings)
    if isinstance(entry, LeftOut):
        reason = entry.reason
    else:
        reason = not_opened(entry, settings)
        if not reason and known and row is not None and row.state is FileState.SKIPPED:
            reason = as_known(row).reason
    if reason:
        is_folder = isinstance(entry, LeftOut) and entry.is_folder
        return JudgedFile(entry.path, Verdict.LEFT_OUT, kind=kind_of(reason), is_folder=is_folder)
    assert isinstance(entry, FoundFile)
    if known and row is not None:
        return JudgedFile(entry.path, Verdict.FAILED if row.state is FileState.FAILED else Verdict.UNCHANGED)
    if not os.access(entry.path, os.R_OK):
        return JudgedFile(entry.path, Verdict.LEFT_OUT, kind=UNREADABLE)
    return JudgedFile(entry.path, Verdict.NEW if row is None or not row.num_chunks else Verdict.CHANGED, entry.size)


@dataclass(frozen=True, slots=True)
class IndexEstimate:
    """Rough time and space that reading files takes, with the embedded reader on two CPU cores."""

    files: int
    text_bytes: int

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return max(self.files, self.text_bytes // _CHUNK_BYTES) if self.files else 0

    @property
    def seconds_to_words(self) -> float:
        """Time until the files can be found by their words."""
        return self.files * _SECONDS_PER_FILE + self.text_bytes / 1e6 * _SECONDS_PER_MB

    @property
    def seconds_to_meaning(self) -> float:
        """Time until they can be found by meaning."""
        return self.seconds_to_words + self.chunks * _SECONDS_PER_VECTOR

    @property
    def seconds_to_warm(self) -> float:
        """Idle time until all caches are there."""
        return self.chunks * _SECONDS_PER_CACHE

    @property
    def index_bytes(self) -> int:
        """Disk space for text, words and vectors."""
        return self.text_bytes * _INDEX_BYTES_PER_TEXT_BYTE

    @property
    def kv_bytes(self) -> int:
        """Disk space that caches of everything would take."""
        return cache_bytes(self.text_bytes, EMBEDDED_KV_BYTES_PER_TOKEN, embedded=True)


def text_in(file: JudgedFile, settings: IndexSettings) -> int:
    """Return roughly how many bytes of a file that would be read are text."""
    share = _TEXT_SHARE.get(formats.format_of_name(file.path.name) or Format.TEXT, 1.0)
    return int(min(file.size * share, settings.max_text_mib * 1024 * 1024))


class _LargestText:
    """Finds the file with the most text among those that would be read, and sums up."""

    def __init__(self, settings: IndexSettings) -> None:
        self.total, self._settings = 0, settings
        self._path, self._most = Path(), 0

    def add(self, file: JudgedFile) -> None:
        text = text_in(file, self._settings) if file.size else 0
        self.total += text
        if text > self._most:
            self._path, self._most = file.path, text

    @property
    def giant(self) -> Path | None:
        """The file, if most of the text stands in it and takes a while."""
        return self._path if self._most >= _GIANT_BYTES and self._most > self.total / 2 else None


def giant_line(path: Path) -> str:
    """Return which file costs more than all others, and how to leave it out."""
    rule = pattern_of(path, is_folder=False)
    return f'{path.name} is more than half of the text; `exclude = ["{rule}"]` under [index] leaves it out'


@dataclass(frozen=True, slots=True)
class Changes:
    """Files that a run over some folders would find."""

    new: tuple[Path, ...]
    changed: tuple[Path, ...]
    gone: tuple[Path, ...]
    unchanged: int
    failed: int
    bytes_to_read: int
    estimate: IndexEstimate
    """Cost of reading the new and the changed files."""
    left_out: UnreadFiles
    giant: Path | None = None
    """A file with most of the text that would be read."""

    @property
    def files(self) -> int:
        """Return the number of files that were found."""
        return len(self.new) + len(self.changed) + self.unchanged + self.failed + self.left_out.files


def changes(store: Store | None, roots: Sequence[Path], settings: IndexSettings) -> Changes:
    """Compare the folders with the catalog, if there is one. Raises StoreError."""
    paths: dict[Verdict, list[Path]] = {Verdict.NEW: [], Verdict.CHANGED: [], Verdict.GONE: []}
    counts, left_out = Counter[Verdict](), UnreadCounter()
    size, text = 0, _LargestText(settings)
    for file in compare(roots, settings, store):
        if file.verdict in paths:
            paths[file.verdict].append(file.path)
        counts[file.verdict] += 1
        if file.verdict is Verdict.LEFT_OUT:
            left_out.add(file.kind, folder=file.path if file.is_folder else None)
        size += file.size
        text.add(file)
    return Changes(
        new=tuple(paths[Verdict.NEW]),
        changed=tuple(paths[Verdict.CHANGED]),
        gone=tuple(paths[Verdict.GONE]),
        unchanged=counts[Verdict.UNCHANGED],
        failed=counts[Verdict.FAILED],
        bytes_to_read=size,
        estimate=IndexEstimate(counts[Verdict.NEW] + counts[Verdict.CHANGED], text.total),
        left_out=left_out.done("left out"),
        giant=text.giant,
    )


@dataclass(frozen=True, slots=True)
class FolderPreview:
    """Counts and estimates for indexing a folder."""

    folder: Path
    files: int
    """Files that would be read."""
    size: int
    """Their bytes."""
    estimate: IndexEstimate
    kinds: tuple[tuple[str, int], ...]
    """Suffixes and numbers of files, the largest number first."""
    left_out: UnreadFiles
    """Files and folders that a rule or their kind leaves out."""
    unreadable: int
    """Files and folders without permission to read them."""
    giant: Path | None = None
    """A file with most of the text that would be read."""
    complete: bool = True
    """False if the preview was ended early, so that there may be more."""

    @property
    def kinds_line(self) -> str:
        """Return 'md 1,902 · pdf 611 · 12 other kinds'."""
        shown = [f"{name} {number:,}" for name, number in self.kinds[:_MOST_KINDS]]
        rest = len(self.kinds) - _MOST_KINDS
        return " · ".join([*shown, f"{rest} other kind{'' if rest == 1 else 's'}"] if rest > 0 else shown)

    @property
    def sentence(self) -> str:
        """Return what will be read and what not, in one sentence."""
        least = "" if self.complete else "at least "
        summary = f"{least}{plural(self.files, 'file')} to read"
        if self.kinds_line:
            summary += f" ({self.kinds_line})"
        if self.left_out:
            summary += f"; {least}{self.left_out.brief}"
        if self.unreadable:
            summary += f"; {self.unreadable:,} may not be opened"
        return summary + "."


def preview(
    folder: Path,
    settings: IndexSettings,
    stop: Callable[[], bool] = document.never,
    report: Callable[[int], None] = lambda _: None,
) -> FolderPreview:
    """Count the files below `folder` by what indexing would do with them; `report` hears how many were seen so far.

    Ends early, with what was seen, once `stop` returns True. Raises ConfigError or UnreadableDocument for a folder
    that cannot be walked.
    """
    check_root(folder)
    kinds, left_out, unreadable = Counter[str](), UnreadCounter(), 0
    size, text, stopped = 0, _LargestText(settings), False
    for seen, file in enumerate(compare([folder], settings, stop=stop), 1):
        if seen % 500 == 0:
            report(seen)
        if stop():
            stopped = True
            break
        if file.kind == UNREADABLE:
            unreadable += 1
        elif file.verdict is Verdict.LEFT_OUT:
            left_out.add(file.kind, folder=file.path if file.is_folder else None)
        else:
            kinds[file.path.suffix.lower().removeprefix(".") or "without suffix"] += 1
            size += file.size
            text.add(file)
    return FolderPreview(
        folder,
        kinds.total(),
        size,
        IndexEstimate(kinds.total(), text.total),
        tuple(kinds.most_common()),
        left_out.done("left out"),
        unreadable,
        text.giant,
        complete=not stopped and not stop(),
    )
