"""Copy documents, vectors and chunk KV between two stores: to an export, and from one on another machine.

An export is a store of its own, so that what holds for a data directory holds for it: whole files or none, checksums,
nothing foreign touched. Each document and each file is complete by itself; a run that was cut off goes on when it is
started again, because what is there already is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from desk_rag.config import IndexSettings
from desk_rag.documents import document as documents
from desk_rag.documents.chunking import ChunkId
from desk_rag.documents.document import Document, SourceFile
from desk_rag.documents.status import FileState
from desk_rag.errors import CorruptKV, DocumentError, UnknownFormat
from desk_rag.store.maintenance.transfer import StoredKV
from desk_rag.store.presence import Presence
from desk_rag.store.store import Store
from desk_rag.store.types import DocumentRow, FileStamp

_CHUNKS_AT_ONCE = 256
"""Chunks whose vectors are copied in one transaction."""

Progress = Callable[[int, int], None]
"""Receives the KV files that are done and all of them; may raise to end the copy."""


@dataclass(slots=True)
class Copied:
    """Counts of a copy between two stores."""

    documents: int = 0
    """Documents that were written."""
    documents_present: int = 0
    """Documents that the target had already."""
    documents_elsewhere: int = 0
    """Documents whose file is not at the mapped path, or has other content there."""
    chunks: int = 0
    """Chunks of the documents that were written."""
    caches: int = 0
    """KV files that were copied."""
    caches_present: int = 0
    caches_without_room: int = 0
    """KV files for which the budget has no room beside what is worth more."""
    caches_of_other_models: int = 0
    caches_without_text: int = 0
    """KV files whose chunks are in no document of the target."""
    damaged: tuple[str, ...] = ()
    """Sentences that say why a KV file was not copied."""
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PathMap:
    """Paths of another machine and where the same folders lie here."""

    pairs: tuple[tuple[Path, Path], ...] = ()

    def here(self, path: Path) -> Path:
        """Return the path on this machine: by the longest folder that is named, else the same path."""
        fitting = [(old, new) for old, new in self.pairs if old == path or old in path.parents]
        if not fitting:
            return path
        old, new = max(fitting, key=lambda pair: len(pair[0].parts))
        return new / path.relative_to(old)


@dataclass(slots=True)
class Copy:
    """A copy from one store to another."""

    source: Store
    target: Store
    """A writer."""
    under: tuple[Path, ...] = ()
    """Folders of the source; empty for all of it."""
    counts: Copied = field(default_factory=Copied)

    def export(self, progress: Progress) -> Copied:
        """Copy into an export; documents that the source no longer has in this scope are removed from it."""
        rows = self._indexed()
        wanted = {row.path for row in rows}
        former = [row.path for folder in self.under or (None,) for row in self.target.documents(folder)]
        self.target.remove_documents([path for path in former if path not in wanted])
        known = self.target.transfer.chunks_in()
        for row in rows:
            self._put(row, row.path, row.stamp)
        self._put_what_belongs_to_chunks(known)
        for root in self.source.volumes.roots():
            for folder in [one for one in self.under if root in one.parents] or [root]:
                if self.target.documents(folder):
                    self.target.volumes.put(folder, [replace(self.source.volumes.of(root)[0], path=folder)])
        for record in self.source.transfer.model_records():
            self.target.transfer.take_model_record(record)
        self._take(self.source.transfer.stored(self.under), None, progress, always=True)
        return self.counts

    def import_(
        self, paths: PathMap, namespaces: Collection[str], settings: IndexSettings, progress: Progress
    ) -> Copied:
        """Copy out of an export: documents whose files lie here unchanged, and chunk KV of every chunk known here.

        Only KV of `namespaces`, those of this machine's model, is copied.
        """
        known = self.target.transfer.chunks_in()
        for row in self._indexed():
            stamp = _stamp_here(row, paths.here(row.path), settings)
            if stamp is None:
                self.counts.documents_elsewhere += 1
            else:
                self._put(row, paths.here(row.path), stamp)
        self._put_what_belongs_to_chunks(known)
        for root in self.source.volumes.roots():
            folder = paths.here(root)
            if folder.is_dir() and self.target.documents(folder):
                Presence(self.target, folder).remember(())
        self._take(self.source.transfer.stored(), namespaces, progress)
        return self.counts

    def _indexed(self) -> list[DocumentRow]:
        rows = [row for folder in self.under or (None,) for row in self.source.documents(folder)]
        return [row for row in rows if row.state is FileState.INDEXED]

    def _put(self, row: DocumentRow, path: Path, stamp: FileStamp) -> None:
        """Write a document of the source under `path` unless the target has it."""
        known = self.target.document(path)
        if known is not None and (known.digest, known.stamp, known.num_chunks) == (row.digest, stamp, row.num_chunks):
            self.counts.documents_present += 1
            return
        chunks = [passage.chunk for passage in self.source.passages_of(row.path)]
        if len(chunks) != row.num_chunks:
            self.counts.damaged += (f"The entry of {row.path} is damaged; it has to be read from its file.",)
            return
        origin = SourceFile(path, stamp.size, stamp.mtime_ns, row.digest)
        self.target.put_document(Document(origin, row.title, (), stamp.parser, row.reason), chunks, stamp)
        self.counts.documents += 1
        self.counts.chunks += len(chunks)

    def _put_what_belongs_to_chunks(self, known_before: Collection[ChunkId]) -> None:
        """Copy vectors and token vectors of all chunks that both stores have, and the uses of those that are new."""
        common = self.source.transfer.chunks_in(self.under) & self.target.transfer.chunks_in()
        self.target.transfer.take_uses(self.source.transfer, common.difference(known_before))
        for some in _batches(sorted(common)):
            for block in self.source.transfer.vectors_of(some):
                signs = self.source.token_vectors(block.embedder, block.chunk_ids)
                for with_signs in (True, False):
                    numbers = [n for n, chunk_id in enumerate(block.chunk_ids) if (chunk_id in signs) is with_signs]
                    ids = [block.chunk_ids[number] for number in numbers]
                    if ids:
                        own_signs = [signs[chunk_id] for chunk_id in ids] if with_signs else None
                        self.target.put_vectors(block.embedder, ids, block.vectors[numbers], own_signs)

    def _take(
        self, files: Sequence[StoredKV], namespaces: Collection[str] | None, progress: Progress, *, always: bool = False
    ) -> None:
        """Copy KV files of `namespaces` (None: all) whose chunks the target has."""
        known = self.target.transfer.chunks_in()
        for done, file in enumerate(files):
            progress(done, len(files))
            chunk_ids = [chunk_id for chunk_id in file.chunk_ids if chunk_id in known]
            if namespaces is not None and file.name[0] not in namespaces:
                self.counts.caches_of_other_models += 1
            elif not chunk_ids:
                self.counts.caches_without_text += 1
            else:
                self._take_one(file, chunk_ids, always=always)
        progress(len(files), len(files))

    def _take_one(self, file: StoredKV, chunk_ids: Sequence[ChunkId], *, always: bool) -> None:
        try:
            written = self.target.transfer.take(file, chunk_ids, always=always)
        except (CorruptKV, UnknownFormat) as error:
            self.counts.damaged += (error.message,)
        except FileNotFoundError:
            self.counts.damaged += (f"{file.file} is missing.",)
        else:
            if written is None:
                self.counts.caches_without_room += 1
            elif written:
                self.counts.caches += 1
                self.counts.copied_bytes += written
            else:
                self.counts.caches_present += 1


def _stamp_here(row: DocumentRow, path: Path, settings: IndexSettings) -> FileStamp | None:
    """Return the stamp of the file at `path`; None unless reading it here would give the chunks of `row`."""
    parser = documents.reader_version(path.name, settings)
    try:
        now = path.lstat()
        stamp = FileStamp(now.st_size, now.st_mtime_ns, now.st_ino, parser, now.st_ctime_ns)
        alike = row.stamp.parser == parser and row.stamp.size == now.st_size and path.suffix == row.path.suffix
        if not alike or not path.is_file() or path.is_symlink():
            return None
        if documents.digest_file(path, settings).digest != row.digest:
            return None
        again = path.lstat()
    except (OSError, ValueError, DocumentError):
        return None
    is_still = (again.st_size, again.st_mtime_ns, again.st_ctime_ns) == (now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    return stamp if is_still else None


def _batches(chunk_ids: Sequence[ChunkId]) -> Iterator[Sequence[ChunkId]]:
    for start in range(0, len(chunk_ids), _CHUNKS_AT_ONCE):
        yield chunk_ids[start : start + _CHUNKS_AT_ONCE]
