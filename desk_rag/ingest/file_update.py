"""Record the outcome of one file in the catalog: indexed, unchanged, renamed, skipped or failed.

Problems with a file are not raised. They are recorded and stay valid until the file or the parsers change, so that a
broken file is read once and not at every sweep.
"""

from __future__ import annotations

import logging
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import IndexSettings
from desk_rag.documents import archives, file_chunks
from desk_rag.documents import document as documents
from desk_rag.documents.chunking import ChunkSize
from desk_rag.documents.discovery import FoundFile, LeftOut, is_other_spelling
from desk_rag.documents.formats import KIND_NOT_READ, format_of_name, readable_in_part
from desk_rag.documents.status import FileState
from desk_rag.errors import (
    Cancelled,
    DeskRagError,
    DocumentError,
    EmptyDocument,
    SecretDocument,
    StoreError,
    UnreadableDocument,
    UnsupportedDocument,
)
from desk_rag.ingest.events import FileEvent
from desk_rag.store.presence import AbsentFolder, covers
from desk_rag.store.types import FOLDER, DocumentRow, FileStamp

if TYPE_CHECKING:
    from desk_rag.documents.token_counter import PortableCounter
    from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

CHANGED_MEANWHILE = "it changed while it was being read; it is read again once it stands still"
_TICK, _COARSE_TICK = 0.05, 2.0
"""Seconds within which two writes may get the same time: usually, and on file systems that keep whole seconds (FAT)."""


class FileReader:
    """Reads single files and records their outcome in the catalog."""

    def __init__(
        self,
        store: Store,
        counter: PortableCounter,
        size: ChunkSize,
        settings: IndexSettings,
        stop: Callable[[], bool] = documents.never,
        *,
        by_name: bool = False,
    ) -> None:
        """`stop` is asked many times a second while a file is read, parsed and cut.

        `by_name`: somebody named the file, which asks for what is in an archive.
        """
        self._by_name = by_name
        self._store = store
        self._stop = stop
        self._counter = counter
        self._size = size
        self._settings = settings
        self._plain_settings = settings
        self.renamed_from: Path | None = None
        """Former path of the last renamed file."""

    def bring_up_to_date(
        self, file: FoundFile, row: DocumentRow | None, gone_twin: Callable[[str], DocumentRow | None]
    ) -> FileEvent:
        """Index a file unless nothing changed; `gone_twin` finds a vanished document with the same content.

        Raises Cancelled, with nothing recorded, if `stop` asked for it; StoreError if the catalog cannot be written.
        """
        self._settings = settings_for(file.path, row, self._plain_settings, by_name=self._by_name)
        stamp = stamp_of(file, self._settings)
        if row is not None and row.stamp == stamp:
            return as_known(row)
        if reason := not_opened(file, self._settings):
            return self._left_out(file, stamp, reason)
        self._wait_for_next_tick(file)
        try:
            return self._same_content(file, stamp, row, gone_twin) or self._read(file, stamp)
        except (StoreError, Cancelled):
            raise
        except EmptyDocument:
            return self._left_out(file, stamp, "empty")
        except SecretDocument as error:
            return self._left_out(file, stamp, error.message.removeprefix(f"{file.path} ").removesuffix("."))
        except DocumentError as error:
            if isinstance(error, UnsupportedDocument) and format_of_name(file.path.name) is None:
                return self._left_out(file, stamp, f"{KIND_NOT_READ} (binary)")  # nothing promised text
            return self._failed(file, stamp, row, error)
        except Exception as error:
            # One odd file must not end the run. The message may quote its text, so only the kind of error is kept.
            _log.exception("unexpected %s while reading a file", type(error).__name__, exc_info=False)
            problem = DocumentError(f"reading it failed unexpectedly ({type(error).__name__})")
            return self._failed(file, stamp, row, problem)

    def reread(self, path: Path) -> FileEvent | None:
        """Read a file whose catalog entry is damaged, even if it is unchanged; None if it does not exist."""
        try:
            now = path.lstat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(now.st_mode):
            return None
        file = FoundFile(path, now.st_size, now.st_mtime_ns, now.st_ino, now.st_ctime_ns)
        return self.bring_up_to_date(file, None, lambda _: None)

    def leave_out(self, path: Path, left_out: LeftOut, row: DocumentRow | None) -> FileEvent:
        """Record why a path is not indexed, and remove its document unless the path is only inaccessible now."""
        skipped = FileState.SKIPPED, left_out.reason
        event = FileEvent(path, FileState.SKIPPED, reason=left_out.reason, is_folder=left_out.is_folder)
        try:
            path.lstat()
        except OSError:
            return event
        if left_out.path != path:  # left out with its folder, which has the one line in the catalog that tells so
            if row is not None:
                self._store.remove_document(path)
        elif row is None or (row.state, row.reason, row.is_folder) != (*skipped, left_out.is_folder):
            self._store.record_outcome(path, *skipped, FOLDER if left_out.is_folder else None)
        return event

    def _wait_for_next_tick(self, file: FoundFile) -> None:
        """Wait until a later write cannot leave the time as it is: of the same size, it would not be noticed."""
        tick = _TICK if file.mtime_ns % 1_000_000_000 else _COARSE_TICK
        while 0 <= (age := time.time() - file.mtime_ns / 1e9) < tick and not self._stop():
            time.sleep(min(_TICK, tick - age))

    def _same_content(
        self,
        file: FoundFile,
        stamp: FileStamp,
        row: DocumentRow | None,
        gone_twin: Callable[[str], DocumentRow | None],
    ) -> FileEvent | None:
        digest = documents.digest_file(file.path, self._settings, self._stop).digest
        if not _still(file):
            return FileEvent(file.path, FileState.SKIPPED, reason=CHANGED_MEANWHILE)
        if row is not None and _holds(row, digest, stamp):
            self._store.rename_document(file.path, file.path, stamp)
            return FileEvent(file.path, FileState.UNCHANGED, row.num_chunks)
        twin = gone_twin(digest)
        # Queried again: a single changed file may have been handled since the folder's rows were read.
        twin = None if twin is None else self._store.document(twin.path)
        if twin is None or not _holds(twin, digest, stamp) or not _read_alike(twin.path, file.path):
            return None
        self._store.rename_document(twin.path, file.path, stamp)
        self.renamed_from = twin.path
        return FileEvent(file.path, FileState.RENAMED, twin.num_chunks)

    def _read(self, file: FoundFile, stamp: FileStamp) -> FileEvent:
        document, chunks = file_chunks.read(
            file.path, self._settings, self._counter, self._size, self._stop, allow_secrets=file.allowed
        )
        source = document.source
        is_same = (source.size, source.mtime_ns) == (file.size, file.mtime_ns)
        if not (is_same or (source.size > file.size and readable_in_part(file.path.name))) or not _still(file):
            return FileEvent(file.path, FileState.SKIPPED, reason=CHANGED_MEANWHILE)
        self._store.put_document(document, chunks, replace(stamp, size=source.size, mtime_ns=source.mtime_ns))
        return FileEvent(file.path, FileState.INDEXED, len(chunks), document.note)

    def _left_out(self, file: FoundFile, stamp: FileStamp, reason: str) -> FileEvent:
        self._store.record_outcome(file.path, FileState.SKIPPED, reason, stamp)
        return FileEvent(file.path, FileState.SKIPPED, reason=reason)

    def _failed(self, file: FoundFile, stamp: FileStamp, row: DocumentRow | None, error: DeskRagError) -> FileEvent:
        reason = f"{error.message} {error.remedy}".strip()
        passing = isinstance(error, UnreadableDocument) or not _still(file)
        if not passing:
            self._store.record_outcome(file.path, FileState.FAILED, reason, stamp)
        elif row is None or row.state is not FileState.INDEXED:
            # Permissions and drives come back without the file changing: no stamp, so that it is tried again.
            self._store.record_outcome(file.path, FileState.FAILED, reason, None)
        return FileEvent(file.path, FileState.FAILED, reason=reason)


def not_opened(file: FoundFile, settings: IndexSettings) -> str:
    """Return why a file is left out without being opened: its kind, or that it is empty; '' if it is to be read."""
    if not documents.supported(file.path, settings):
        return f"{KIND_NOT_READ} ('{file.path.suffix}')"
    return "" if file.size else "empty"  # as a package's __init__.py or a lock file: nothing is wrong with it


def settings_for(
    path: Path, row: DocumentRow | None, settings: IndexSettings, *, by_name: bool = False
) -> IndexSettings:
    """Return settings for one file: what is in an archive is read once somebody asked for it, and then on."""
    return archives.asked(path.name, settings, "" if row is None else row.stamp.parser, by_name=by_name)


def stamp_of(file: FoundFile, settings: IndexSettings) -> FileStamp:
    """Return what the catalog compares: size, mtime, ctime, inode, and the version of the reader."""
    version = documents.reader_version(file.path.name, settings) + ("/allowed" if file.allowed else "")
    return FileStamp(file.size, file.mtime_ns, file.inode, version, file.ctime_ns)


def as_known(row: DocumentRow) -> FileEvent:
    """Return the event of an unchanged file; a failure or a skip stays one, without another attempt."""
    if row.state in (FileState.FAILED, FileState.SKIPPED):
        return FileEvent(row.path, row.state, reason=row.reason)
    return FileEvent(row.path, FileState.UNCHANGED, row.num_chunks)


def is_gone(path: Path, root: Path | None = None) -> bool:
    """Return True only if the system reports no file at `path`; any other error means that it cannot be known.

    With `root`, a file whose name is now spelled otherwise below it is gone, too ("A.md" where there is "a.md").
    """
    try:
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
        return is_directory or (root is not None and is_other_spelling(root, path))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def is_behind_link(path: Path, root: Path) -> bool:
    """Return whether a folder between `root` and `path` is a link, which no look follows."""
    return any(parent.is_symlink() for parent in path.parents if root in parent.parents)


def _still(file: FoundFile) -> bool:
    """Return whether a file is as it was found, or a text that has only grown, as a log does."""
    try:
        now = file.path.stat()
    except OSError:
        return False
    has_grown = now.st_size > file.size and readable_in_part(file.path.name)
    return now.st_ino == file.inode and (has_grown or (now.st_size, now.st_mtime_ns) == (file.size, file.mtime_ns))


def _read_alike(one: Path, other: Path) -> bool:
    """Return whether the same parser reads both: it is chosen by suffix, or by the whole name if there is none."""
    return one.suffix.lower() == other.suffix.lower() and bool(one.suffix or one.name == other.name)


def _holds(row: DocumentRow, digest: str, stamp: FileStamp) -> bool:
    """Return whether the row's chunks are what the present parsers would make of content with this digest."""
    return row.state is FileState.INDEXED and row.digest == digest and row.stamp.parser == stamp.parser


def take_gone(gone: dict[str, list[DocumentRow]], digest: str, root: Path) -> DocumentRow | None:
    """Take the next vanished document with this content, so that each is used once."""
    rows = gone.get(digest, [])
    while rows:
        row = rows.pop()
        if is_gone(row.path, root):
            return row
    return None


def gone_twin(store: Store, digest: str, path: Path, root: Path, absent: Sequence[AbsentFolder]) -> DocumentRow | None:
    """Return a vanished document with this content, of which `path` is the new place."""
    for row in store.documents_with_digest(digest):
        # A file missing outside this root may be on a drive that is not connected.
        if row.path != path and root in row.path.parents and is_gone(row.path, root) and not covers(absent, row.path):
            return row
    return None
