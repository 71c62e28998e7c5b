"""Bring the index up to date with a folder: compare it with the catalog, read what changed, embed, prefill.

When this runs is decided in `indexer`. Each function can be ended between two items, or killed at any moment, and
loses at most the item in progress:

    sync_folder    files on disk  -> documents and chunks in the catalog       (findable by words)
    index_path     the same for one path
    embed_pending  chunks without a vector -> vectors                          (findable by meaning)
    add_token_vectors  chunks with only a vector -> token vectors              (ranked by their words' meanings)
    warm_pending   chunks without a chunk KV -> chunk KV on disk               (fast)

A file has changed if its size, mtime, ctime, inode or parser version *differs* from the catalog's ("is newer" would
miss restored files and clock changes). Only then is the content hashed; the same hash as at a path that is gone means a
rename, which costs nothing. Documents are not removed because a folder or a drive in it is absent (store/presence.py),
nor many at once (deletions.py), and a file that failed is not read again before it or the parsers change.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import IndexSettings
from desk_rag.documents import discovery as walking
from desk_rag.documents.chunking import ChunkId, ChunkSize
from desk_rag.documents.discovery import FoundFile, LeftOut
from desk_rag.documents.document import never
from desk_rag.documents.status import FileState, IndexStage
from desk_rag.errors import Cancelled, ModelError, StoreFull
from desk_rag.ingest.deletions import DeletionGuard
from desk_rag.ingest.events import DeletionsWaiting, FileEvent, IndexEvent, RootAbsent, StageProgress
from desk_rag.ingest.file_update import (
    CHANGED_MEANWHILE,
    FileReader,
    as_known,
    gone_twin,
    is_behind_link,
    is_gone,
    not_opened,
    settings_for,
    stamp_of,
    take_gone,
)
from desk_rag.ingest.progress import ProgressRate, Tally
from desk_rag.store.presence import AbsentFolder, Presence, covers
from desk_rag.store.types import DocumentRow, PendingChunk

if TYPE_CHECKING:
    from desk_rag.documents.token_counter import PortableCounter
    from desk_rag.retrieval.embedding import Embedder
    from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

EMBED_BATCH = 8
"""Maximum chunks per call of the embedder."""
_EMBED_SECONDS = 0.15
"""Longest that a batch should take: an answer or a stop waits for it."""
_COUNT_SECONDS = 2.0
"""Seconds between two counts of the chunks that are left."""
_DISK_FULL = "the disk is full"
_WAIT_POLL = 0.25
"""Seconds between two checks whether work in idle time may go on."""
_REMOVE_BATCH = 64
"""Documents removed in one transaction, between two checks that their folder is still present."""
_COMPARE_BATCH = 200
"""Files that are looked up in the catalog with one statement."""
_SCAN_EVERY = 0.25
"""Seconds between progress events of a scan."""


# Files ------------------------------------------------------------------------------------------------------


def sync_folder(
    store: Store,
    root: Path,
    counter: PortableCounter,
    size: ChunkSize,
    settings: IndexSettings,
    stop: Callable[[], bool],
    *,
    defer: Callable[[FoundFile], bool] | None = None,
) -> Iterator[IndexEvent]:
    """Make the catalog agree with the files under `root`; yields one FileEvent per file, then IndexFinished.

    An absent root, or an absent drive mounted inside it, yields RootAbsent and is left as it is. Many removals at once
    are postponed and yield DeletionsWaiting. Ends without IndexFinished if `stop` returns True.

    Args:
        defer: returns True for a changed file that should not be read yet, because it is still being written; the
            caller must return to that file.

    Raises StoreError if the catalog cannot be written.
    """
    root = root.absolute()
    presence = Presence(store, root)
    absent = presence.absent()
    for folder in absent:
        yield RootAbsent(folder.path, folder.sentence)
    if any(folder.path == root for folder in absent):
        return
    store.check_some()  # damaged documents count as changed from here on
    store.clock.advance()
    presence.remember(absent)
    sync = _FolderSync(store, root, counter, size, settings, stop, presence, absent)
    tally = Tally()
    try:
        for event in sync.run(defer or (lambda _found: False)):
            tally.add(event)
            yield event
    except StoreFull:
        store.begin_run(root, _DISK_FULL)
        raise
    if not stop():
        store.end_run(root)
        store.note_rules(root, settings.exclude)
        presence.forget_unused()
        store.empty_bin(older_than=settings.deletion_grace_hours * 3600)
        yield tally.finished()


def index_path(
    store: Store,
    path: Path,
    root: Path,
    counter: PortableCounter,
    size: ChunkSize,
    settings: IndexSettings,
    stop: Callable[[], bool] = never,
    *,
    by_name: bool = False,
) -> FileEvent:
    """Bring one path up to date: index it, record why not, or remove it if it is gone and `root` is not.

    `by_name`: somebody asked for this file.

    Problems with the file itself are in the event. Raises StoreError if the catalog cannot be written; Cancelled soon
    after `stop` returns True.
    """
    path, root = path.absolute(), root.absolute()
    reader = FileReader(store, counter, size, settings, stop, by_name=by_name)
    presence, row = Presence(store, root), store.document(path)
    absent = presence.absent()
    reason = next((folder.reason for folder in absent if covers([folder], path)), "")
    if reason:
        return FileEvent(path, FileState.UNCHANGED, row.num_chunks if row else 0, reason)
    examined = walking.examine(root, path, settings)
    if isinstance(examined, FoundFile):
        presence.remember_mount_of(path)
        return reader.bring_up_to_date(examined, row, lambda digest: gone_twin(store, digest, path, root, absent))
    if isinstance(examined, LeftOut):
        return reader.leave_out(path, examined, row)
    if row is None:
        return FileEvent(path, FileState.UNCHANGED)
    if not (is_gone(path, root) or is_behind_link(path, root)):
        return FileEvent(path, FileState.UNCHANGED, row.num_chunks, "it cannot be accessed now")
    store.remove_document(path, keep_kv=True)
    return FileEvent(path, FileState.REMOVED)


class _FolderSync:
    """One comparison of a folder with the catalog."""

    def __init__(
        self,
        store: Store,
        root: Path,
        counter: PortableCounter,
        size: ChunkSize,
        settings: IndexSettings,
        stop: Callable[[], bool],
        presence: Presence,
        absent: Sequence[AbsentFolder],
    ) -> None:
        self._store = store
        self._root = root
        self._settings = settings
        self._stop = stop
        self._presence, self._absent = presence, absent
        self._reader = FileReader(store, counter, size, settings, stop)
        self._documents = store.listing.matching(root)
        """All documents of the folder as numbers: with a row for each, the memory would grow with the folder."""
        self._is_met = bytearray(max(self._documents, default=0) + 1)
        """One byte per document number: 1 if the walk met the document."""
        self._rows: dict[Path, DocumentRow] = {}
        """Rows of the others: gone, moved, or in a folder that is now excluded."""
        away = sum(store.listing.count(folder.path).indexed for folder in absent)
        self._known = store.listing.count(root).indexed - away
        self._left_out: dict[Path, str] = {}
        """Paths that the walk left out, with the reasons."""
        self._changed, self._changed_rows = list[FoundFile](), dict[Path, DocumentRow]()

    def run(self, defer: Callable[[FoundFile], bool]) -> Iterator[IndexEvent]:
        yield from self._compare(defer)
        if self._stop():
            return
        unmet = [number for number in self._documents if not self._is_met[number]]
        rows = (entry.row for entry in self._store.listing.rows(unmet) if entry is not None)
        self._rows = {row.path: row for row in rows if not covers(self._absent, row.path)}
        yield from self._look_again()
        yield from self._read_changed()
        if not self._stop():
            yield from self._remove()

    def _look_again(self) -> Iterator[RootAbsent]:
        """Check for absent folders again, because a drive may be unplugged at any moment, and drop their rows."""
        absent = self._presence.absent()
        before = {folder.path for folder in self._absent}
        yield from (RootAbsent(folder.path, folder.sentence) for folder in absent if folder.path not in before)
        self._absent = absent
        self._rows = {path: row for path, row in self._rows.items() if not covers(absent, path)}

    def _compare(self, defer: Callable[[FoundFile], bool]) -> Iterator[IndexEvent]:
        meter, shown, seen, known = ProgressRate(), time.monotonic(), 0, len(self._documents)
        entries = walking.walk(self._root, self._settings, self._stop)
        while batch := list(itertools.islice(entries, _COMPARE_BATCH)):
            rows = self._store.listing.at([entry.path for entry in batch])
            for entry in batch:
                if self._stop():
                    return
                number, row = rows.get(entry.path, (0, None))
                if number < len(self._is_met):
                    self._is_met[number] = True
                if (event := self._compare_one(entry, row, defer)) is not None:
                    yield event
            seen += len(batch)
            if time.monotonic() - shown >= _SCAN_EVERY:
                shown = time.monotonic()
                yield meter.progress(IndexStage.SCAN, seen, max(seen, known), "files")
        if not self._stop():
            yield meter.progress(IndexStage.SCAN, seen, seen, "files")

    def _compare_one(
        self, entry: FoundFile | LeftOut, row: DocumentRow | None, defer: Callable[[FoundFile], bool]
    ) -> FileEvent | None:
        if covers(self._absent, entry.path):
            return None
        if isinstance(entry, LeftOut):
            self._left_out[entry.path] = entry.reason
            return self._reader.leave_out(entry.path, entry, row)
        settings = settings_for(entry.path, row, self._settings)
        if row is not None and row.stamp == stamp_of(entry, settings):
            return as_known(row)
        if not_opened(entry, settings):
            return self._reader.bring_up_to_date(entry, row, lambda _: None)
        if defer(entry):
            return FileEvent(entry.path, FileState.SKIPPED, reason=CHANGED_MEANWHILE)
        self._changed.append(entry)
        if row is not None:
            self._changed_rows[entry.path] = row
        return None

    def _read_changed(self) -> Iterator[IndexEvent]:
        # Newest first: people ask about what they are working on.
        if self._changed:
            self._store.begin_run(self._root)
        self._changed.sort(key=lambda entry: entry.mtime_ns, reverse=True)
        gone_by_digest: dict[str, list[DocumentRow]] = {}
        for gone in self._rows.values():
            if gone.state is FileState.INDEXED and gone.digest:
                gone_by_digest.setdefault(gone.digest, []).append(gone)
        meter = ProgressRate()
        for done, entry in enumerate(self._changed, 1):
            if self._stop():
                return
            row = self._changed_rows.pop(entry.path, None)
            try:
                twin = partial(take_gone, gone_by_digest, root=self._root)
                event = self._reader.bring_up_to_date(entry, row, twin)
            except Cancelled:
                return
            if event.state is FileState.RENAMED and self._reader.renamed_from is not None:
                self._rows.pop(self._reader.renamed_from, None)
            yield event
            yield meter.progress(IndexStage.WORDS, done, len(self._changed), "files")

    def _remove(self) -> Iterator[IndexEvent]:
        missing, ruled_out = list[Path](), dict[Path, str]()
        for path, row in self._rows.items():
            gone = is_gone(path, self._root)
            reason = "" if gone else self._reason_now(path)
            is_read_again = row.state is FileState.SKIPPED and path.is_dir()  # a folder that was left out as a whole
            if not (gone or reason or is_read_again):
                continue
            if row.state is FileState.INDEXED and gone:
                missing.append(path)
            elif row.state is FileState.INDEXED:
                ruled_out[path] = reason
            else:
                self._store.remove_document(path)
        removals = DeletionGuard(self._store, self._root, self._settings.deletion_grace_hours)
        due = [*ruled_out, *removals.due(missing, self._known)]
        for start in range(0, len(due), _REMOVE_BATCH):
            yield from self._look_again()
            if self._stop():
                return
            batch = [path for path in due[start : start + _REMOVE_BATCH] if path in self._rows]
            self._store.remove_documents(batch, keep_kv=True)
            yield from (FileEvent(path, FileState.REMOVED, reason=ruled_out.get(path, "")) for path in batch)
        waiting = set(missing) - set(due)
        if waiting:
            yield DeletionsWaiting(self._root, len(waiting), self._known)

    def _reason_now(self, path: Path) -> str:
        """Return why a folder above an existing file is left out now, so that the file was not met; '' if none is."""
        folder = next((parent for parent in path.parents if parent in self._left_out), None)
        return self._left_out[folder] if folder is not None and os.access(folder, os.R_OK | os.X_OK) else ""


# Vectors and chunk KV ---------------------------------------------------------------------------------------


def embed_pending(
    store: Store, embedder: Embedder, stop: Callable[[], bool], under: Sequence[Path] = ()
) -> Iterator[StageProgress]:
    """Embed every chunk in scope that has no vector; yields one event per batch of at most EMBED_BATCH chunks.

    Token vectors are made by the same forward passes, in batches of about 0.15 s, because `stop` is asked between them.
    A chunk that the embedder rejects is skipped until the next call. Ends with a reason in `waiting` if the disk is
    full. Raises ModelError if the embedder fails, StoreError if it cannot write.
    """
    missing = partial(store.missing_vectors, embedder.fingerprint, under=under)
    yield from _embed_all(store, embedder, stop, partial(store.chunks_without_vector, under=under), missing)


def add_token_vectors(
    store: Store, embedder: Embedder, stop: Callable[[], bool], may_run: Callable[[], str] = lambda: "",
    under: Sequence[Path] = (),
) -> Iterator[StageProgress]:  # fmt: skip
    """Make the token vectors of chunks that have only a vector, as `embed_pending` makes both.

    They are missing where an earlier version made the vectors, or where `verify` removed damaged ones. Before every
    batch `may_run` returns '' or the reason to wait. Ends early when the drive has no room to spare.
    """
    waiting = partial(store.chunks_without_token_vectors, under=under)
    missing = partial(store.missing_vectors, embedder.fingerprint, "token_vectors", under)
    if embedder.gives_tokens:
        yield from _embed_all(store, embedder, lambda: stop() or not store.has_spare_room(), waiting, missing, may_run)


def _embed_all(
    store: Store,
    embedder: Embedder,
    stop: Callable[[], bool],
    waiting: Callable[[str, int], list[PendingChunk]],
    missing: Callable[[], int],
    may_run: Callable[[], str] = lambda: "",
) -> Iterator[StageProgress]:
    done, meter, refused = 0, ProgressRate(), set[ChunkId]()
    total, counted_at, batch_size = missing(), time.monotonic(), 1
    while not stop():
        pending = waiting(embedder.fingerprint, batch_size + len(refused))
        pending = [chunk for chunk in pending if chunk.chunk_id not in refused][:batch_size]
        if not pending:
            return
        while reason := may_run():
            yield meter.progress(IndexStage.VECTORS, done, total, "chunks", reason)
            if stop():
                return
            time.sleep(_WAIT_POLL)
        started = time.monotonic()
        try:
            refused.update(_embed(store, embedder, pending))
        except StoreFull as error:
            store.begin_run(None, _DISK_FULL)
            yield replace(meter.progress(IndexStage.VECTORS, done, total, "chunks", error.message), disk_full=True)
            return
        seconds_per_chunk = (time.monotonic() - started) / len(pending)
        batch_size = max(1, min(EMBED_BATCH, int(_EMBED_SECONDS / max(seconds_per_chunk, 1e-6))))
        done += len(pending)
        if time.monotonic() > counted_at + _COUNT_SECONDS:  # files came, or went
            total, counted_at = done - len(refused) + missing(), time.monotonic()
        total = max(total, done)
        yield meter.progress(IndexStage.VECTORS, done, total, "chunks")


def _embed(store: Store, embedder: Embedder, pending: list[PendingChunk]) -> list[ChunkId]:
    """Embed and store a batch; return the chunks that cannot be embedded."""
    try:
        encodings = embedder.encode_chunks([chunk.text for chunk in pending])
    except ModelError:
        raise
    except Exception as error:
        if len(pending) > 1:  # find the chunk that fails the batch
            return [chunk_id for chunk in pending for chunk_id in _embed(store, embedder, [chunk])]
        _log.warning("chunk %s cannot be embedded (%s)", pending[0].chunk_id, type(error).__name__)
        return [pending[0].chunk_id]
    signs = encodings.signs if store.has_spare_room() else None
    store.put_vectors(embedder.fingerprint, [chunk.chunk_id for chunk in pending], encodings.vectors, signs)
    return []
