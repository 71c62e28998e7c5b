"""Store: the only object others hold. Thin: it joins catalog, KV files, vectors and budget, and keeps their order.

Loads torch and numpy only when chunk KV or a vector is read or written. Order of writes and deletes: FORMAT.md.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import StoreSettings
from desk_rag.documents.chunking import Chunk, ChunkId
from desk_rag.documents.document import Document
from desk_rag.documents.status import FileState
from desk_rag.errors import StoreError
from desk_rag.store import opening
from desk_rag.store.catalog.catalog import Catalog, Removed
from desk_rag.store.catalog.clock import StoreClock
from desk_rag.store.catalog.coordination import SharedRows
from desk_rag.store.catalog.deletion_rows import DeletionRows
from desk_rag.store.catalog.volume_rows import VolumeRows
from desk_rag.store.catalog.witness import Witness
from desk_rag.store.health import StoreHealth
from desk_rag.store.kv import neighbours
from desk_rag.store.kv.budget import Budget
from desk_rag.store.kv.files import KVCache, key_of
from desk_rag.store.kv.index import KVRows
from desk_rag.store.kv.reconcile import Upkeep
from desk_rag.store.layout import Layout
from desk_rag.store.types import (
    DocumentRow,
    FileStamp,
    Hit,
    Passage,
    PendingChunk,
    PurgeReport,
    VerifyReport,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from desk_rag.kv.payload import ChunkFile
    from desk_rag.kv.types import KVKey, Namespace, QuantizedKV
    from desk_rag.store.types import DocumentRow, FileStamp, Hit, Passage, PendingChunk, PurgeReport
    from desk_rag.store.vectors.search import VectorSearch


class Store(StoreHealth):
    """One data directory, open. A context manager; safe to use from several threads."""

    def __init__(self, opened: opening.Opened) -> None:
        """Use `Store.open`."""
        self.writer = opened.lock is not None
        self._opened = opened
        self._layout: Layout = opened.layout
        self._database = opened.database
        self._catalog = Catalog(self._database)
        self._rows = KVRows(self._database)
        self._shared = SharedRows(self._database)
        self.clock = StoreClock(self._database)
        self.volumes = VolumeRows(self._database)
        self.deletions = DeletionRows(self._database, self.clock)
        self._upkeep = Upkeep(self._layout, self._rows, opened.kv)
        self._witness = Witness(self._layout.home, self._layout.run)
        self.root = self._layout.root
        """The data directory."""
        self.is_lost = False
        """There was a catalog, and this one is empty."""
        self._making = threading.Lock()
        self._vectors_made: VectorSearch | None = None
        self.notices: tuple[str, ...] = opened.notices
        """What opening found odd and mended, as sentences."""
        self._compare_with_witness()
        used = self._rows.total_blocks()
        if self.writer:
            used, notes = self._upkeep.reconcile(self._catalog)
            self.notices += tuple(notes)
        self._budget = Budget(self._layout.cache.root, opened.settings, used)
        self._kv = KVCache(self._layout, self._rows, self._upkeep, self._budget, opened.kv, writer=self.writer)
        if self.writer:
            self.notices += self._upkeep.keep_to_limit(self._budget)
            if opening.BEGUN_ANEW in opened.notices:
                self._shared.begin_run(None, opening.BEGUN_ANEW_REASON)
            if self.notices:
                with suppress(StoreError):  # a full disk; they are told by this process all the same
                    self._shared.note(self.notices)

    @classmethod
    def open(cls, root: Path, settings: StoreSettings, *, writer: bool) -> Store:
        """Open or create the store at `root`; the writer reconciles files and rows first.

        Raises StoreLocked (another writer), UnknownFormat (a newer store), StoreError (unusable directory).
        """
        opened = opening.open_directory(root, settings, writer=writer)
        try:
            return cls(opened)
        except BaseException:
            opened.close()
            raise

    @classmethod
    def begin_anew(cls, root: Path, settings: StoreSettings) -> Store:
        """Put a catalog that cannot be used into quarantine and open the store with an empty one, as the writer.

        KV files that are sound stay and are used again once their texts are back. Raises as `open` does.
        """
        layout = Layout(root.absolute())
        with opening.locked(layout):
            opening.begin_anew(layout)[0].close()
        store = cls.open(root, settings, writer=True)
        store.begin_run(None, opening.BEGUN_ANEW_REASON)
        return store

    def close(self) -> None:
        """Save what is only in memory, tidy up and give the lock back. Closing twice is fine, and so is a full disk."""
        if self._opened.closed:
            return
        steps: list[Callable[[], object]] = [self._kv.close]
        if self.writer:
            steps += [self.checkpoint] if self._vectors_made is None else [self._vectors_made.save, self.checkpoint]
        try:
            for step in steps:
                with suppress(StoreError, OSError):  # use counts and a saved index can be done without
                    step()
        finally:
            self._opened.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def kv_away(self) -> str:
        """Why no stored chunk KV can be used now, as a sentence; empty if it can."""
        return self._upkeep.kv.why_away()

    # documents ------------------------------------------------------------------------------------------------------

    def put_document(self, document: Document, chunks: Sequence[Chunk], found: FileStamp) -> None:
        """Make these chunks the content of the document's path, replacing what it held; one transaction."""
        self._must_write()
        self._finish_removal(self._catalog.put(document, chunks, found))

    def rename_document(self, old: Path, new: Path, found: FileStamp) -> None:
        """Give a document another path (or only another stamp, if both are equal); its chunks stay as they are."""
        self._must_write()
        self._finish_removal(self._catalog.rename(old, new, found))

    def remove_document(self, path: Path, *, keep_kv: bool = False) -> None:
        """Remove a document and everything derived from it that no other needs; `keep_kv`: its KV goes to the bin."""
        self.remove_documents([path], keep_kv=keep_kv)

    def record_outcome(self, path: Path, state: FileState, reason: str, found: FileStamp | None) -> None:
        """Note that a file was skipped or failed; it has no chunks then. INDEXED and UNCHANGED only renew the stamp."""
        self._must_write()
        self._finish_removal(self._catalog.record(path, state, reason, found))

    def document(self, path: Path) -> DocumentRow | None:
        """Return what is known of a path."""
        return self._catalog.document(path)

    def documents(self, under: Path | None = None) -> list[DocumentRow]:
        """Return all known paths at or below `under`, failed and skipped ones included, in path order."""
        return self._catalog.documents(under)

    def unread_reasons(self, under: Sequence[Path] = ()) -> list[tuple[FileState, str, int]]:
        """Return (state, reason, number of files) of the skipped and failed files, grouped by reason."""
        return self._catalog.unread_reasons(under)

    def documents_with_digest(self, digest: str) -> list[DocumentRow]:
        """Return the documents with exactly this content."""
        return self._catalog.with_digest(digest)

    def passage(self, chunk_id: ChunkId, under: Sequence[Path] = ()) -> Passage | None:
        """Return a chunk and the first place where it stands under `under`."""
        return self._catalog.passage(chunk_id, under)

    def passages_of(self, path: Path) -> list[Passage]:
        """Return all chunks of a document in order."""
        return self._catalog.passages_of(path)

    # retrieval ------------------------------------------------------------------------------------------------------

    def search_words(self, query: str, limit: int, under: Sequence[Path] = ()) -> list[Hit]:
        """Return chunks by BM25 over text and file names, best first; any text is a valid query."""
        return self._catalog.search_words(query, limit, under)

    def search_vectors(
        self, embedder: str, vector: NDArray[np.float32], limit: int, under: Sequence[Path] = ()
    ) -> list[Hit]:
        """Return chunks by cosine to `vector` (float32 [dim]), best first."""
        return self._vectors().search(embedder, vector, limit, under)

    def chunks_without_vector(self, embedder: str, limit: int) -> list[PendingChunk]:
        """Return chunks that this embedder has not seen, most recent first."""
        return self._vectors().pending(embedder, limit)

    def put_vectors(self, embedder: str, chunk_ids: Sequence[ChunkId], vectors: NDArray[np.float32]) -> None:
        """Store vectors float32 [N, dim]; those of chunks that are gone by now are dropped."""
        self._must_write()
        self._vectors().put(embedder, chunk_ids, vectors)
        self._witness.write(self._catalog.mark())

    # chunk KV -------------------------------------------------------------------------------------------------------

    def chunks_without_kv(self, namespace: Namespace, limit: int, under: Sequence[Path] = ()) -> list[PendingChunk]:
        """Return chunks that should get KV: wanted, then most used, then most recent first.

        Up to four fifths of the limit that is every chunk without; beyond that those retrieved twice or pinned. A chunk
        that was not admitted or was evicted comes again only after it has been retrieved again.
        """
        if not self._upkeep.kv.in_place():
            return []
        return self._rows.pending(str(namespace), limit, under, demanded_only=not self._kv.is_eager(str(namespace)))

    def has_kv(self, keys: Sequence[KVKey]) -> set[KVKey]:
        """Return those keys whose KV is on disk, going by the catalog."""
        return self._kv.has(keys)

    def get_kv(self, keys: Sequence[KVKey]) -> list[QuantizedKV | None]:
        """Read chunk KVs in parallel, as views of reused buffers; None where there is none that may be used."""
        return self._kv.get(keys)

    def kv_files(self, keys: Sequence[KVKey], *, used: bool = True) -> list[ChunkFile | None]:
        """Find chunk KVs for a `kv.loader.Loader`, headers checked; None and uses as in `get_kv` (no use: a guess)."""
        return self._kv.files(keys, used=used)

    def kv_sample(self, namespace: Namespace, limit: int) -> list[ChunkFile]:
        """Return some KV files of a model, to measure the drive by; counts no use."""
        return self._kv.sample(str(namespace), limit)

    def get_kv_anew(self, keys: Sequence[KVKey]) -> list[QuantizedKV | None]:
        """As `get_kv` for what a Loader could not load: checked again as a whole, put aside if it is unsound."""
        return self._kv.get_anew(keys)

    def read_ahead(self, keys: Sequence[KVKey], most: int) -> int:
        """Ask the system to have about `most` bytes of these KV files in memory soon; returns the bytes."""
        return self._kv.read_ahead(keys, most)

    def kv_keys(self, namespace: Namespace, chunk_ids: Sequence[ChunkId], *, beside: bool = False) -> list[KVKey]:
        """Return the keys of the KV there is for these chunks, or for their neighbours, going by the catalog."""
        return [key_of(name) for name in neighbours.kv_of(self._database, str(namespace), chunk_ids, beside=beside)]

    def put_kv(self, key: KVKey, kv: QuantizedKV, chunk_ids: Sequence[ChunkId], prefill_seconds: float) -> bool:
        """Write a chunk KV for these chunks; True if it is on disk afterwards.

        False: not admitted (not asked for often enough, worth less than what is there, or its chunks are gone).
        Raises StoreFull if the disk has no room for it, whatever the budget; StoreError if it cannot be written.
        """
        self._must_write()
        return self._kv.put(key, kv, chunk_ids, prefill_seconds)

    def hold_together(self, namespaces: Sequence[Namespace]) -> None:
        """These are one model's: they share what it may take, and none gives way to another as a stranger would."""
        if self.writer:
            self._rows.hold_together([str(namespace) for namespace in namespaces])

    def note_use(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Count that these chunks were retrieved for an answer."""
        self._shared.note_use(Counter(chunk_ids))
        self._kv.flush_hits()

    def want_kv(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Ask the writer to warm these chunks before others."""
        self._shared.want(chunk_ids)

    # progress shared between processes ------------------------------------------------------------------------------

    # care -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> bool:
        """Rewrite what deleted text could still be read from and empty the log; False if a reader was in the way."""
        self._must_write()
        return self._catalog.scrub()

    def scrub_owed(self) -> bool:
        """Whether text that was deleted or edited away may still be read from the files, until the next checkpoint."""
        return self._catalog.scrub_owed() is not None

    def verify(self, *, repair: bool = False, subset: tuple[int, int] | None = None) -> VerifyReport:
        """Check catalog, rows, files and every checksum; `subset=(1, 7)` reads the first seventh of the KV files.

        `repair` puts unsound files into quarantine, drops rows without files and rebuilds the word indexes.
        """
        from desk_rag.store.maintenance.verify import Verification

        if repair:
            self._must_write()
        check = Verification(self._layout, self._database, self._rows, self._upkeep, writer=self.writer)
        report = check.run(self._kv.changing, repair=repair, subset=subset)
        if repair and not report.clean and not report.unusable:
            if self._catalog.is_awaiting_texts():
                self._shared.begin_run(None, "what was damaged has been removed")
            with self._kv.changing:
                used, _ = self._upkeep.reconcile(self._catalog)
                self._budget.freed(self._budget.used - used)
        if repair and all(problem.repaired for problem in report.problems):
            self._shared.note(())
            self._database.faults.clear()
        return report

    def purge(self, path: Path) -> PurgeReport:
        """Remove the document at `path`, or all below it, and everything derived; empty the log and the quarantine."""
        return self._purge(path, verify=False)

    def purge_verify(self, path: Path) -> PurgeReport:
        """Purge, then search every file of the store for pieces of the removed text."""
        return self._purge(path, verify=True)

    def _purge(self, path: Path, *, verify: bool) -> PurgeReport:
        from desk_rag.store.maintenance.purge import purge

        if self._catalog.is_awaiting_texts():  # nobody knows whose it is
            self._catalog.drop_lost_texts(all_kv=True)
            self._upkeep.remove_rows(self._rows.unreferenced())
        self._shared.forget_runs(lambda root: root is not None and root.is_relative_to(path))
        return purge(self, self._layout, self._database, path, verify=verify)

    def remove_documents(self, paths: Iterable[Path], *, keep_kv: bool = False) -> tuple[int, int, int, int]:
        """Remove many documents in one transaction; return (documents, chunks, KV files, KV bytes) removed."""
        self._must_write()
        removed = self._catalog.remove(paths, bin_since=self.clock.now() if keep_kv else None)
        return removed.documents, removed.chunks, len(removed.kv), self._finish_removal(removed)

    def empty_quarantine(self) -> int:
        """Remove what was put aside as unsound; return the bytes freed."""
        self._must_write()
        return self._kv.empty_quarantine()

    def empty_bin(self, older_than: float = -1.0) -> int:
        """Remove the chunk KV of documents deleted more than so many seconds ago; return the bytes freed."""
        self._must_write()
        return self._kv.empty_bin(self.clock.now() - older_than)

    def _finish_removal(self, removed: Removed) -> int:
        """Remove what the rows of a committed deletion stood for; return the bytes freed."""
        with self._kv.changing:
            freed = self._upkeep.unlink(removed.kv)
            if removed.chunks:
                freed += self._upkeep.empty_quarantine()
            self._budget.freed(freed)
        if removed.vectors:
            self._vectors().forget_removed()
        self._witness.write(self._catalog.mark())
        self.is_lost = False
        return freed

    def _save_vectors(self) -> None:
        if self._vectors_made is not None:
            self._vectors_made.save()
