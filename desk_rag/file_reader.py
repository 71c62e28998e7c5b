"""One found file becomes an outcome in the catalog: indexed, unchanged, renamed, skipped or failed.

Knows parsing, chunking and the store; knows no folders and no schedule. Nothing that is wrong with a file is
raised: it is noted as final until the file or the parsers change, so that a broken file costs its reading once and
not at every look.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag import documents
from desk_rag.chunking import ChunkSize, TokenCounter, split
from desk_rag.config import IndexSettings
from desk_rag.errors import (
    DeskRagError,
    DocumentError,
    EmptyDocument,
    StoreError,
    UnreadableDocument,
    UnsupportedDocument,
)
from desk_rag.index_events import FileEvent, FileState
from desk_rag.parsers.formats import format_of_name, unread_kind
from desk_rag.store.types import DocumentRow, FileStamp
from desk_rag.walk import FoundFile, LeftOut

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

CHANGED_MEANWHILE = "it changed while it was being read; it is read again once it stands still"


class FileReader:
    """Turns one found file into an outcome in the catalog."""

    def __init__(self, store: Store, counter: TokenCounter, size: ChunkSize, settings: IndexSettings) -> None:
        self._store = store
        self._counter = counter
        self._size = size
        self._settings = settings
        self.renamed_from: Path | None = None
        """Where the last renamed file was before."""

    def bring_up_to_date(
        self, found: FoundFile, row: DocumentRow | None, gone_twin: Callable[[str], DocumentRow | None]
    ) -> FileEvent:
        """Index `found` unless nothing changed; `gone_twin` finds a vanished document with the same content."""
        stamp = stamp_of(found)
        if row is not None and row.stamp == stamp:
            return as_known(row)
        if not documents.supported(found.path):
            kind = f"{unread_kind(found.path.name)} ('{found.path.suffix}')"
            return self._left_out(found, stamp, f"kind of file that is not read: {kind}")
        if not found.size:
            # A package's __init__.py, a lock: nothing is wrong with it and nothing is in it.
            return self._left_out(found, stamp, "empty")
        try:
            return self._same_content(found, stamp, row, gone_twin) or self._read(found, stamp)
        except StoreError:
            raise
        except EmptyDocument:
            return self._left_out(found, stamp, "empty")
        except UnsupportedDocument as error:
            if format_of_name(found.path.name) is None:  # nothing promised text, and there is none
                return self._left_out(found, stamp, f"kind of file that is not read: {_suffix_kind(found.path)}")
            return self._failed(found, stamp, row, error)
        except DocumentError as error:
            return self._failed(found, stamp, row, error)
        except Exception as error:
            # One file that no parser author thought of must not end the run. Its text may be in the message, so only
            # the kind of error is kept.
            _log.exception("unexpected %s while reading a file", type(error).__name__, exc_info=False)
            problem = DocumentError(f"reading it failed unexpectedly ({type(error).__name__})")
            return self._failed(found, stamp, row, problem)

    def leave_out(self, path: Path, left_out: LeftOut, row: DocumentRow | None) -> FileEvent:
        """Note why a path is not indexed; what was indexed of it goes, unless it only cannot be looked at now."""
        event = FileEvent(path, FileState.SKIPPED, reason=left_out.reason)
        try:
            path.lstat()
        except OSError:
            return event
        if left_out.path != path:  # left out with its folder, which has the one line in the catalog that tells so
            if row is not None:
                self._store.remove_document(path)
        elif row is None or row.state is not FileState.SKIPPED or row.reason != left_out.reason:
            self._store.record_outcome(path, FileState.SKIPPED, left_out.reason, None)
        return event

    def _same_content(
        self,
        found: FoundFile,
        stamp: FileStamp,
        row: DocumentRow | None,
        gone_twin: Callable[[str], DocumentRow | None],
    ) -> FileEvent | None:
        digest = documents.digest_file(found.path).digest
        if not _still(found):
            return FileEvent(found.path, FileState.SKIPPED, reason=CHANGED_MEANWHILE)
        if row is not None and _holds(row, digest):
            self._store.rename_document(found.path, found.path, stamp)
            return FileEvent(found.path, FileState.UNCHANGED, row.num_chunks)
        twin = gone_twin(digest)
        # Asked anew: a single changed file may have been dealt with since the folder's rows were read.
        twin = None if twin is None else self._store.document(twin.path)
        if twin is None or not _holds(twin, digest) or not _read_alike(twin.path, found.path):
            return None
        self._store.rename_document(twin.path, found.path, stamp)
        self.renamed_from = twin.path
        return FileEvent(found.path, FileState.RENAMED, twin.num_chunks)

    def _read(self, found: FoundFile, stamp: FileStamp) -> FileEvent:
        document = documents.parse(found.path, self._settings)
        source = document.source
        if (source.size, source.mtime_ns) != (found.size, found.mtime_ns) or not _still(found):
            return FileEvent(found.path, FileState.SKIPPED, reason=CHANGED_MEANWHILE)
        chunks = split(document, self._counter, self._size)
        self._store.put_document(document, chunks, stamp)
        return FileEvent(found.path, FileState.INDEXED, len(chunks), document.note)

    def _left_out(self, found: FoundFile, stamp: FileStamp, reason: str) -> FileEvent:
        self._store.record_outcome(found.path, FileState.SKIPPED, reason, stamp)
        return FileEvent(found.path, FileState.SKIPPED, reason=reason)

    def _failed(self, found: FoundFile, stamp: FileStamp, row: DocumentRow | None, error: DeskRagError) -> FileEvent:
        reason = f"{error.message} {error.remedy}".strip()
        passing = isinstance(error, UnreadableDocument) or not _still(found)
        if not passing:
            self._store.record_outcome(found.path, FileState.FAILED, reason, stamp)
        elif row is None or row.state is not FileState.INDEXED:
            # Permissions and drives come back without the file changing: no stamp, so that it is tried again.
            self._store.record_outcome(found.path, FileState.FAILED, reason, None)
        return FileEvent(found.path, FileState.FAILED, reason=reason)


def stamp_of(found: FoundFile) -> FileStamp:
    """What the catalog compares: size, mtime, inode, and the version of the parsers."""
    return FileStamp(found.size, found.mtime_ns, found.inode, documents.PARSER_VERSION)


def _suffix_kind(path: Path) -> str:
    return f"binary file ('{path.suffix}')" if path.suffix else "binary file without a suffix"


def as_known(row: DocumentRow) -> FileEvent:
    """The event of a file that is as the catalog knows it: a failure or a skip stays one, without another try."""
    if row.state in (FileState.FAILED, FileState.SKIPPED):
        return FileEvent(row.path, row.state, reason=row.reason)
    return FileEvent(row.path, FileState.UNCHANGED, row.num_chunks)


def is_gone(path: Path) -> bool:
    """True only if the system says that no file is at `path`; any other error means that it cannot be known."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _still(found: FoundFile) -> bool:
    try:
        now = found.path.stat()
    except OSError:
        return False
    return (now.st_size, now.st_mtime_ns, now.st_ino) == (found.size, found.mtime_ns, found.inode)


def _read_alike(one: Path, other: Path) -> bool:
    """True if the same parser reads both: it is chosen by the suffix, or by the whole name where there is none."""
    return one.suffix.lower() == other.suffix.lower() and bool(one.suffix or one.name == other.name)


def _holds(row: DocumentRow, digest: str) -> bool:
    """True if the row's chunks are those that today's parsers would make of content with this digest."""
    return row.state is FileState.INDEXED and row.digest == digest and row.stamp.parser == documents.PARSER_VERSION
