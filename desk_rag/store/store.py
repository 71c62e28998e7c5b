"""Store: the doorway to catalog, KV files, vectors and budget, and the order of their changes.

torch and numpy are imported only when chunk KV or a vector is used. Order of writes and deletes: FORMAT.md.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
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
from desk_rag.store.kv.files import KVFiles, key_of
from desk_rag.store.kv.index import KVIndex
from desk_rag.store.kv.reconcile import KVMaintenance
from desk_rag.store.layout import Layout
from desk_rag.store.listing import Listing
from desk_rag.store.maintenance.sweep import Sweep
from desk_rag.store.maintenance.transfer import Transfer
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
    from desk_rag.store.vectors.search import VectorSearch


class Store(StoreHealth):
    """An open data directory. A context manager; safe to use from several threads."""

    def __init__(self, opened: opening.Opened) -> None:
        """Use `Store.open`."""
        self.writer = opened.lock is not None
        self._opened = opened
        self._layout: Layout = opened.layout
        self._database = opened.database
        self._catalog = Catalog(self._database)
        self._rows = KVIndex(self._database)
        self._sweep = Sweep(self._database, self._catalog)
        self._shared = SharedRows(self._database)
        self.clock = StoreClock(self._database)
        self.volumes = VolumeRows(self._database)
        self.deletions = DeletionRows(self._database, self.clock)
        self.listing = Listing(self._database)
        self._maintenance = KVMaintenance(self._layout, self._rows, opened.kv)
        self._witness = Witness(self._layout.home, self._layout.run)
        self.root = self._layout.root
        """The data directory."""
        self.is_lost = False
        """The catalog is empty although there was one before."""
        self._vectors_guard = threading.Lock()
        self._lazy_vectors: VectorSearch | None = None
        self.notices: tuple[str, ...] = opened.notices
        """Faults that opening found and repaired, as sentences."""
        self._compare_with_witness()
        used = self._rows.total_blocks()
        if self.writer:
            used, notes = self._maintenance.reconcile(self._catalog)
            self.notices += tuple(notes)
        self._budget = Budget(self._layout.cache.root, opened.settings, used)
        self._kv = KVFiles(self._layout, self._rows, self._maintenance, self._budget, opened.kv, writer=self.writer)
        self.transfer = Transfer(self._layout, self._database, self._kv, self._shared)
        if self.writer:
            self.notices += self._maintenance.keep_to_limit(self._budget)
            if opening.CATALOG_RESET in opened.notices:
                self._shared.begin_run(None, opening.CATALOG_RESET_REASON)
            if self.notices:
                with suppress(StoreError):  # a full disk; this process reports them anyway
                    self._shared.note(self.notices)

    @classmethod
    def open(cls, root: Path, settings: StoreSettings, *, writer: bool) -> Store:
        """Open or create the store at `root`; the writer first reconciles files and rows.

        Raises StoreLocked (another writer), UnknownFormat (a newer store), StoreError (unusable directory).
        """
        opened = opening.open_directory(root, settings, writer=writer)
        try:
            return cls(opened)
        except BaseException:
            opened.close()
            raise

    @classmethod
    def reset_catalog(cls, root: Path, settings: StoreSettings) -> Store:
        """Move an unusable catalog to quarantine and open the store with an empty one, as the writer.

        Sound KV files stay and are used again once their texts are indexed. Raises as `open` does.
        """
        layout = Layout(root.absolute())
        with opening.locked(layout):
            opening.reset_catalog(layout)[0].close()
        store = cls.open(root, settings, writer=True)
        store.begin_run(None, opening.CATALOG_RESET_REASON)
        return store

    def close(self) -> None:
        """Save what is only in memory and release the lock; may be called twice and on a full disk."""
        if self._opened.closed:
            return
        steps: list[Callable[[], object]] = [self._kv.close]
        if self.writer:
            steps += [self.checkpoint] if self._lazy_vectors is None else [self._lazy_vectors.save, self.checkpoint]
        try:
            for step in steps:
                with suppress(StoreError, OSError):  # use counts and a saved index may be lost
                    step()
        finally:
            self._opened.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def kv_away(self) -> str:
        """Reason why stored chunk KV is unavailable now, as a sentence; "" if it is available."""
        return self._maintenance.kv.why_away()

    # documents ------------------------------------------------------------------------------------------------------

    def put_document(self, document: Document, chunks: Sequence[Chunk], stamp: FileStamp) -> None:
        """Replace the content of the document's path by these chunks, in one transaction."""
        self._must_write()
        self._finish_removal(self._catalog.put(document, chunks, stamp))

    def rename_document(self, old: Path, new: Path, stamp: FileStamp) -> None:
        """Change the path of a document, or only its stamp if both paths are equal; its chunks stay."""
        self._must_write()
        self._finish_removal(self._catalog.rename(old, new, stamp))

    def remove_document(self, path: Path, *, keep_kv: bool = False) -> None:
        """Remove a document and what only it needs; with `keep_kv` its chunk KV goes to the bin."""
        self.remove_documents([path], keep_kv=keep_kv)

    def record_outcome(self, path: Path, state: FileState, reason: str, stamp: FileStamp | None) -> None:
        """Record that a file was skipped or failed, dropping its chunks; INDEXED and UNCHANGED only renew the stamp."""
        self._must_write()
        self._finish_removal(self._catalog.record(path, state, reason, stamp))

    def document(self, path: Path) -> DocumentRow | None:
        """Return the row of a path."""
        return self._catalog.document(path)

    def documents(self, under: Path | None = None) -> list[DocumentRow]:
        """Return all known paths at or below `under`, failed and skipped ones included, in path order."""
        return self._catalog.documents(under)

    def single_files(self) -> list[DocumentRow]:
        """Return the known paths in no indexed folder: files that were indexed by themselves."""
        return self._catalog.documents_outside(self.volumes.roots())

    def text_characters(self, under: Path | None = None) -> int:
        """Return the characters of all chunks at or below `under`, each chunk once."""
        return self._catalog.text_characters(under)

    def stamps(self, under: Sequence[Path], limit: int) -> dict[bytes, tuple[int, int, int, int, str]]:
        """Return (size, mtime_ns, inode, ctime_ns, state) by path of at most `limit` known paths, newest row first."""
        return self._catalog.stamps(under, limit)

    def documents_with_digest(self, digest: str) -> list[DocumentRow]:
        """Return the documents with exactly this content."""
        return self._catalog.with_digest(digest)

    def passage(self, chunk_id: ChunkId, under: Sequence[Path] = ()) -> Passage | None:
        """Return a chunk with the first place where it occurs under `under`."""
        return self._catalog.passage(chunk_id, under)

    def passages_of(self, path: Path) -> list[Passage]:
        """Return all chunks of a document in order."""
        return self._catalog.passages_of(path)

    # retrieval ------------------------------------------------------------------------------------------------------

    def search_words(self, query: str, limit: int, under: Sequence[Path] = ()) -> list[Hit]:
        """Return chunks by BM25 over text and file names, best first; any text is a valid query."""
        return self._catalog.search_words(query, limit, under)

    def spellings(self, typed: Collection[str], is_known: Callable[[str], bool]) -> dict[str, list[str]]:
        """Return words of the documents spelled like those that no document has and `is_known` does not accept."""
        return self._catalog.spellings(typed, is_known)

    def check_words(self, question: str, chunk_ids: Sequence[ChunkId]) -> None:
        """Compare the word index with these chunks, which another search has returned; see `faults`."""
        self._catalog.check_words(question, chunk_ids)

    def search_vectors(
        self, embedder: str, vector: NDArray[np.float32], limit: int, under: Sequence[Path] = ()
    ) -> list[Hit]:
        """Return chunks by cosine to `vector` (float32 [dim]), best first."""
        return self._vectors().search(embedder, vector, limit, under)

    def chunks_without_vector(self, embedder: str, limit: int, under: Sequence[Path] = ()) -> list[PendingChunk]:
        """Return chunks without a vector of this embedder, most recent first."""
        return self._vectors().pending(embedder, limit, under)

    def put_vectors(
        self,
        embedder: str,
        chunk_ids: Sequence[ChunkId],
        vectors: NDArray[np.float32],
        signs: Sequence[NDArray[np.uint8]] | None = None,
    ) -> None:
        """Store vectors float32 [N, dim] and token vectors; those of chunks that no longer exist are dropped."""
        self._must_write()
        self._vectors().put(embedder, chunk_ids, vectors, signs)
        self._witness.write(self._catalog.mark())

    def chunks_without_token_vectors(self, embedder: str, limit: int, under: Sequence[Path] = ()) -> list[PendingChunk]:
        """Return chunks without token vectors of this embedder, most recent first."""
        return self._vectors().tokens.pending(embedder, limit, under)

    def token_vectors(self, embedder: str, chunk_ids: Sequence[ChunkId]) -> dict[ChunkId, NDArray[np.uint8]]:
        """Return the token vectors of those chunks that have them, as signs [word pieces, dim / 8]."""
        return self._vectors().tokens.get(embedder, chunk_ids)

    # chunk KV -------------------------------------------------------------------------------------------------------

    def chunks_without_kv(self, namespace: Namespace, limit: int, under: Sequence[Path] = ()) -> list[PendingChunk]:
        """Return chunks that should get KV: requested ones first, then most used, then most recent.

        Below four fifths of the limit these are all chunks without KV; above it, those retrieved twice or pinned. A
        chunk that was refused or evicted is returned again only after another retrieval.
        """
        if not self._maintenance.kv.in_place():
            return []
        return self._rows.pending(str(namespace), limit, under, demanded_only=not self._kv.is_eager(str(namespace)))

    def has_kv(self, keys: Sequence[KVKey]) -> set[KVKey]:
        """Return the keys whose KV is on disk according to the catalog."""
        return self._kv.has(keys)

    def get_kv(self, keys: Sequence[KVKey]) -> list[QuantizedKV | None]:
        """Read whole chunk KVs; None if there is no usable one."""
        return self._kv.get(keys)

    def kv_files(self, keys: Sequence[KVKey], *, used: bool = True) -> list[ChunkFile | None]:
        """Return KV files with checked headers for a `Loader`; None as in `get_kv`. `used=False` counts no use."""
        return self._kv.files(keys, used=used)

    def reread_kv(self, keys: Sequence[KVKey]) -> list[QuantizedKV | None]:
        """Read as `get_kv` does what a `Loader` rejected; quarantines unsound files and counts no use."""
        return self._kv.reread(keys)

    def kv_keys(self, namespace: Namespace, chunk_ids: Sequence[ChunkId], *, beside: bool = False) -> list[KVKey]:
        """Return the keys of stored KV for these chunks, or for the chunks next to them, from the catalog."""
        return [key_of(name) for name in neighbours.kv_of(self._database, str(namespace), chunk_ids, beside=beside)]

    def put_kv(self, key: KVKey, kv: QuantizedKV, chunk_ids: Sequence[ChunkId], prefill_seconds: float) -> bool:
        """Write a chunk KV for these chunks; True if it is on disk afterwards.

        False if it was not admitted: used too rarely, worth less than what is stored, or its chunks are gone. Raises
        StoreFull if the drive has no room for it, whatever the budget; StoreError if it cannot be written.
        """
        self._must_write()
        before = self._kv.written_bytes
        is_on_disk = self._kv.put(key, kv, chunk_ids, prefill_seconds)
        self._shared.add_written(self._kv.written_bytes - before)
        return is_on_disk

    def register_model(self, namespaces: Sequence[Namespace], auxiliary: Namespace | None = None) -> None:
        """Record that these namespaces belong to one model and share its room in the budget.

        `auxiliary` is that of the model that selects tokens beside it; its chunk KV takes only what room is left.
        """
        if self.writer:
            self._rows.register_model([str(namespace) for namespace in namespaces], str(auxiliary or ""))

    def note_use(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Count a retrieval of these chunks for an answer."""
        self._shared.note_use(Counter(chunk_ids))
        self._kv.flush_hits()

    def want_kv(self, chunk_ids: Sequence[ChunkId]) -> None:
        """Ask the writer to prefill these chunks before others."""
        self._shared.want(chunk_ids)

    # care -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> bool:
        """Remove deleted text from the catalog's files and empty the log; False if a reader prevented it."""
        self._must_write()
        return self._catalog.scrub()

    def scrub_owed(self) -> bool:
        """Return whether deleted text may still be in the files until the next checkpoint."""
        return self._catalog.scrub_owed() is not None

    def verify(
        self,
        *,
        repair: bool = False,
        subset: tuple[int, int] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> VerifyReport:
        """Check catalog, rows, files and all checksums; `subset=(1, 7)` reads the first seventh of the KV files.

        `progress` hears (files read, files to read), and may raise to end the check. `repair` quarantines unsound
        files, drops rows without files and rebuilds the word indexes.
        """
        from desk_rag.store.maintenance.verify import Verification

        if repair:
            self._must_write()
        check = Verification(self._layout, self._database, self._rows, self._maintenance, writer=self.writer)
        report = check.run(self._kv.changing, repair=repair, subset=subset, progress=progress)
        if repair and not report.clean and not report.unusable:
            if self._catalog.is_awaiting_texts():
                self._shared.begin_run(None, "what was damaged has been removed")
            with self._kv.changing:
                used, _ = self._maintenance.reconcile(self._catalog)
                self._budget.freed(self._budget.used - used)
        if repair and all(problem.repaired for problem in report.problems):
            self._shared.note(())
            self._database.faults.clear()
        return report

    def purge(self, path: Path, *, verify: bool = False) -> PurgeReport:
        """Remove the documents at or below `path` and all that is derived; empty log and quarantine.

        With `verify`, every file of the store is then searched for pieces of the removed text.
        """
        from desk_rag.store.maintenance.purge import purge

        if self._catalog.is_awaiting_texts():  # it may belong to the purged documents
            self._catalog.drop_lost_texts(all_kv=True)
            self._maintenance.remove_rows(self._rows.unreferenced())
        self._shared.forget_runs(lambda root: root is not None and root.is_relative_to(path))
        return purge(self, self._layout, self._database, path, verify=verify)

    def remove_documents(self, paths: Iterable[Path], *, keep_kv: bool = False) -> tuple[int, int, int, int]:
        """Remove many documents in one transaction; return (documents, chunks, KV files, KV bytes) removed."""
        self._must_write()
        removed = self._catalog.remove(paths, bin_since=self.clock.now() if keep_kv else None)
        return removed.documents, removed.chunks, len(removed.kv), self._finish_removal(removed)

    def empty_quarantine(self) -> int:
        """Remove the quarantined files; return the bytes freed."""
        self._must_write()
        return self._kv.empty_quarantine()

    def empty_bin(self, older_than: float = -1.0) -> int:
        """Remove the chunk KV of documents deleted more than `older_than` seconds ago; return the bytes freed."""
        self._must_write()
        return self._kv.empty_bin(self.clock.now() - older_than)

    def _finish_removal(self, removed: Removed) -> int:
        """Remove the files and vectors of a committed deletion; return the bytes freed."""
        with self._kv.changing:
            freed = self._maintenance.unlink(removed.kv)
            if removed.chunks:
                freed += self._maintenance.empty_quarantine()
            self._budget.freed(freed)
        if removed.vectors:
            self._vectors().forget_removed()
        self._witness.write(self._catalog.mark())
        self.is_lost = False
        return freed
