"""Say what indexing a folder would do, without reading a document or writing anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents import discovery, document
from desk_rag.documents.discovery import FoundFile, LeftOut
from desk_rag.documents.formats import KIND_NOT_READ
from desk_rag.documents.status import FileState
from desk_rag.ingest.file_update import as_known, is_gone, stamp_of
from desk_rag.ingest.unread import UnreadFiles, kind_of

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow


@dataclass(frozen=True, slots=True)
class Preview:
    """Files that a run over some folders would find."""

    new: tuple[Path, ...]
    changed: tuple[Path, ...]
    """Files to be read again, because they or the parsers have changed."""
    gone: tuple[Path, ...]
    """Documents whose files are not there any more."""
    unchanged: int
    failed: int
    """Files that could not be read and have not changed since."""
    bytes_to_read: int
    left_out: UnreadFiles

    @property
    def files(self) -> int:
        """Return the number of files that were found."""
        return len(self.new) + len(self.changed) + self.unchanged + self.failed + self.left_out.files


def preview(
    store: Store | None, roots: Sequence[Path], settings: IndexSettings, stop: Callable[[], bool] = lambda: False
) -> Preview:
    """Compare the folders with the catalog, if there is one. Raises StoreError."""
    new, changed, gone = list[Path](), list[Path](), list[Path]()
    unchanged = failed = size = 0
    kinds: Counter[str] = Counter()
    for root in roots:
        rows = {} if store is None else {row.path: row for row in store.documents(root)}
        for found in discovery.walk(root, settings, stop):
            row = rows.pop(found.path, None)
            reason = _left_out(found, row, settings)
            if reason:
                kinds[kind_of(reason)] += 1
            elif isinstance(found, LeftOut) or (row is not None and row.stamp == stamp_of(found, settings)):
                failed += row is not None and row.state is FileState.FAILED
                unchanged += row is not None and row.state is not FileState.FAILED
            else:
                (new if row is None or not row.num_chunks else changed).append(found.path)
                size += found.size
        gone += [path for path, row in rows.items() if row.state is FileState.INDEXED and is_gone(path)]
    left_out = UnreadFiles(kinds.total(), tuple(kinds.most_common()))
    return Preview(tuple(new), tuple(changed), tuple(gone), unchanged, failed, size, left_out)


def _left_out(found: FoundFile | LeftOut, row: DocumentRow | None, settings: IndexSettings) -> str:
    """Return why a file would not be read, as far as its name and the catalog tell; '' if it would be."""
    if isinstance(found, LeftOut):
        return found.reason
    if not document.supported(found.path):
        return f"{KIND_NOT_READ} ('{found.path.suffix}')"
    if not found.size:
        return "empty"
    known = row is not None and row.stamp == stamp_of(found, settings)
    return as_known(row).reason if known and row is not None and row.state is FileState.SKIPPED else ""
