"""Read, admit and write chunk KV by key, keeping files, rows and budget in step.

The order of steps is that of FORMAT.md, "Order of writes". torch is imported only when chunk KV is read or written.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from desk_rag.documents.chunking import ChunkId
from desk_rag.errors import UNWRITABLE, CorruptKV, StoreError, StoreFull, UnknownFormat, of_system
from desk_rag.owned_folder import proven
from desk_rag.store.catalog.catalog import KVName
from desk_rag.store.kv import rates
from desk_rag.store.kv.budget import EAGER_BELOW, Budget
from desk_rag.store.kv.index import KVIndex
from desk_rag.store.kv.policy import ADMIT_FROM, Cost
from desk_rag.store.kv.reconcile import KVMaintenance, Newcomer
from desk_rag.store.kv_directory import KVDirectory
from desk_rag.store.layout import Layout, allocated_size, drop_page_cache, start_readahead

if TYPE_CHECKING:
    from desk_rag.kv.payload import ChunkFile
    from desk_rag.kv.types import KVKey, QuantizedKV
    from desk_rag.store.kv.chunk_file import KVImage
    from desk_rag.store.kv.header_cache import HeaderCache

T = TypeVar("T")
_SAMPLE_FILES = 32
"""Files read to measure the drive."""


class KVFiles:
    """The KV files of a store. Safe to use from several threads; only the writer may `put`."""

    def __init__(
        self,
        layout: Layout,
        rows: KVIndex,
        maintenance: KVMaintenance,
        budget: Budget,
        kv: KVDirectory,
        *,
        writer: bool,
    ) -> None:
        self._layout = layout
        self._kv = kv
        self._rows = rows
        self._maintenance = maintenance
        self._budget = budget
        self._writer = writer
        self.changing = threading.Lock()
        """Lock for adding or removing files and for comparing them with their rows."""
        self._guard = threading.Lock()
        self._hits: Counter[KVName] = Counter()
        self.written_bytes = 0
        """Bytes of the files that this process has written."""
        self._lazy_headers: HeaderCache | None = None

    def has(self, keys: Sequence[KVKey]) -> set[KVKey]:
        """Return the keys whose KV is on disk according to the catalog."""
        if not self._kv.in_place():
            return set()
        stored = {row.name for row in self._rows.find(name_of(key) for key in keys)}
        return {key for key in keys if name_of(key) in stored}

    def get(self, keys: Sequence[KVKey]) -> list[QuantizedKV | None]:
        """Read whole chunk KVs; None for a miss. An unsound file goes to quarantine and loses its row.

        The catalog is not consulted: the key gives the path, and the header confirms the key.
        """
        if not self._kv.in_place():
            return [None] * len(keys)
        files = self._files(keys)
        kvs = self._usable(files, _read(files))
        self._count(keys, kvs)
        return kvs

    def files(self, keys: Sequence[KVKey], *, used: bool) -> list[ChunkFile | None]:
        """Return KV files with their headers; misses and unsound headers as in `get`.

        With `used` False, for prefetching, no use is counted.
        """
        if not self._kv.in_place():
            return [None] * len(keys)
        files = self._files(keys)
        chunk_files = self._usable(files, self._headers().look(files))
        if used:
            self._count(keys, chunk_files)
        return chunk_files

    def reread(self, keys: Sequence[KVKey]) -> list[QuantizedKV | None]:
        """Read as `get` does, but count no use; for files that a loader rejected."""
        files = self._files(keys)
        self._headers().forget(path for path, _ in files)
        return self._usable(files, _read(files))

    def put(self, key: KVKey, kv: QuantizedKV, chunk_ids: Sequence[ChunkId], prefill_seconds: float) -> bool:
        """Write a chunk KV unless it exists; False if it was not admitted or its chunks are gone.

        Raises StoreFull if the disk has no room for it, StoreError if it cannot be written.
        """
        from desk_rag.store.kv import chunk_file

        return self._add(name_of(key), chunk_ids, lambda: chunk_file.prepare(key, kv, chunk_ids, prefill_seconds))

    def copy(self, name: KVName, file: Path, chunk_ids: Sequence[ChunkId], *, always: bool) -> bool:
        """Write a copy of another store's file as `put` does; with `always`, whatever its use.

        Raises CorruptKV, UnknownFormat or OSError for a file that must not be copied, and as `put` does.
        """
        from desk_rag.store.kv import chunk_file

        return self._add(name, chunk_ids, lambda: chunk_file.image_of(file, name, chunk_ids), always=always)

    def _add(
        self, name: KVName, chunk_ids: Sequence[ChunkId], prepare: Callable[[], KVImage], *, always: bool = False
    ) -> bool:
        with self.changing:
            if not self._kv.in_place():
                return False
            self.flush_hits()
            if self._layout.kv_file(*name).exists():
                if self._rows.link(name, chunk_ids):
                    return True
                self._budget.freed(self._maintenance.remove_unknown(name))  # a file without a row
                if self._layout.kv_file(*name).exists():  # a foreign file
                    self._rows.refuse(name[0], chunk_ids)
                    return False
            image = prepare()
            if not self._admit(name, chunk_ids, Cost(image.size, image.header.prefill_seconds), always=always):
                self._rows.refuse(name[0], chunk_ids)
                return False
            return self._write(name, image, chunk_ids)

    def empty_bin(self, before: float) -> int:
        """Delete the KV that was put into the bin before a store time; return the bytes freed."""
        with self.changing:
            freed = self._maintenance.remove_rows(self._rows.binned(before))
            self._budget.freed(freed)
        return freed

    def empty_quarantine(self) -> int:
        """Delete the quarantined files; return the bytes freed."""
        with self.changing:
            freed = self._maintenance.empty_quarantine()
            self._budget.freed(freed)
        return freed

    def is_eager(self, namespace: str) -> bool:
        """Return whether this model's files leave so much room that every chunk is cached.

        The last fifth of the limit is for chunks that are used repeatedly. Files of other models and of higher prefix
        variants do not count, because they are evicted first.
        """
        return self._rows.namespace_blocks(namespace, upper=False) < EAGER_BELOW * self._budget.limit()

    def flush_hits(self) -> None:
        """Write the uses counted since the last call; on a full or read-only drive they are dropped."""
        with self._guard:
            hits, self._hits = self._hits, Counter()
        if hits:
            with suppress(*UNWRITABLE):
                self._rows.count_hits(hits)

    def sample(self, namespace: str, limit: int) -> list[ChunkFile]:
        """Return up to `limit` sound files of a namespace, least recently read first; no use is counted."""
        keys = [key_of(name) for name in self._rows.least_recently_read(namespace, limit)]
        return [file for file in self.files(keys, used=False) if file is not None]

    def bytes_per_second(self, namespace: str) -> float | None:
        """Measure the rate of reading and checking KV on some files of the namespace; None below a megabyte of it.

        They are read from the drive if the system allows. No use is counted.
        """
        files = self._files([key_of(name) for name in self._rows.least_recently_read(namespace, _SAMPLE_FILES)])
        drop_page_cache(path for path, _ in files)
        began = time.perf_counter()
        outcomes = _read(files)
        seconds = time.perf_counter() - began
        nbytes = sum(kv.nbytes for kv in outcomes if kv is not None and not isinstance(kv, Exception))
        return nbytes / seconds if nbytes >= 1 << 20 else None

    def close(self) -> None:
        """Write the counted uses."""
        self.flush_hits()

    def _admit(self, name: KVName, chunk_ids: Sequence[ChunkId], cost: Cost, *, always: bool) -> bool:
        """Decide on admission, evict what is needed, and reserve the bytes."""
        size = allocated_size(cost.size)
        if self._budget.disk_limit() < size:
            raise StoreFull(
                f"The drive of {self._layout.root} has no room for a chunk cache of {size:,} bytes.",
                remedy="Free some space, or lower `reserve_gib` under [store].",
            )
        score = self._rows.admission_score(chunk_ids, cost)
        demanded = always or score.pinned or score.demand >= ADMIT_FROM
        if not demanded and not (self.is_eager(name[0]) and rates.pays(self._layout.root, name[0], *astuple(cost))):
            return False
        newcomer = Newcomer(name[0], size, score.rank, score.pinned)
        return self._maintenance.make_room(self._budget, size, newcomer) and self._budget.reserve(size)

    def _write(self, name: KVName, image: KVImage, chunk_ids: Sequence[ChunkId]) -> bool:
        from desk_rag.store.kv import chunk_file

        path = self._layout.kv_file(*name)
        added = False
        try:
            chunk_file.write(path, image, self._layout.cache)
            header = image.header
            added = self._rows.add(name, image.size, header.num_tokens, header.prefill_seconds, chunk_ids)
        except OSError as error:
            raise _explained(error, path) from error
        finally:
            if added:
                self._budget.written(allocated_size(image.size))
                self.written_bytes += image.size
            else:
                with suppress(OSError):
                    self._layout.cache.remove(path, proven)
                self._budget.release(allocated_size(image.size))
        return added

    def _forget_missing(self, key: KVKey, path: Path) -> None:
        if not self._writer or not self._rows.find([name_of(key)]):
            return
        with self.changing:
            rows = self._rows.find([name_of(key)])
            if rows and not path.exists() and self._kv.in_place():
                with suppress(*UNWRITABLE):  # otherwise the next start drops the row
                    self._rows.drop([rows[0].name])
                    self._budget.freed(allocated_size(rows[0].size))

    def _quarantine(self, key: KVKey, path: Path) -> None:
        with self.changing:
            if self._maintenance.quarantine(path):
                with suppress(*UNWRITABLE):
                    self._rows.drop([name_of(key)])

    def _files(self, keys: Sequence[KVKey]) -> list[tuple[Path, KVKey]]:
        return [(self._layout.kv_file(*name_of(key)), key) for key in keys]

    def _usable(
        self, files: Sequence[tuple[Path, KVKey]], outcomes: Sequence[T | StoreError | OSError | None]
    ) -> list[T | None]:
        """Return the usable outcomes; drop rows of missing files and quarantine unsound ones."""
        usable: list[T | None] = []
        for (path, key), outcome in zip(files, outcomes, strict=True):
            if outcome is None:
                self._forget_missing(key, path)
            elif isinstance(outcome, StoreError):
                self._quarantine(key, path)
            usable.append(None if outcome is None or isinstance(outcome, (StoreError, OSError)) else outcome)
        return usable

    def _count(self, keys: Sequence[KVKey], results: Sequence[object]) -> None:
        with self._guard:
            # Written later, so that the first token does not wait for the disk.
            self._hits.update(name_of(key) for key, result in zip(keys, results, strict=True) if result is not None)

    def _headers(self) -> HeaderCache:
        with self._guard:
            if self._lazy_headers is None:
                from desk_rag.store.kv.header_cache import HeaderCache

                self._lazy_headers = HeaderCache()
            return self._lazy_headers


def _read(files: Sequence[tuple[Path, KVKey]]) -> list[QuantizedKV | CorruptKV | UnknownFormat | OSError | None]:
    """Read and check whole files: the chunk KV, why it cannot be used, or None if there is no file."""
    from desk_rag.store.kv import chunk_file

    start_readahead(path for path, _ in files)
    outcomes: list[QuantizedKV | CorruptKV | UnknownFormat | OSError | None] = []
    for path, key in files:
        try:
            outcomes.append(chunk_file.read(path, key))
        except FileNotFoundError:
            outcomes.append(None)
        except (CorruptKV, UnknownFormat, OSError) as error:
            outcomes.append(error)
    return outcomes


def name_of(key: KVKey) -> KVName:
    """Return a key as the two strings used in rows and paths."""
    return str(key.namespace), str(key.tokens)


def key_of(name: KVName) -> KVKey:
    """Return the key of the two strings that `name_of` returns."""
    from desk_rag.kv.types import KVKey, Namespace, TokenHash

    return KVKey(Namespace(name[0]), TokenHash(name[1]))


def _explained(error: OSError, path: Path) -> StoreError:
    return of_system(error, path) or StoreError(
        f"{path} could not be written: {error.strerror}.", remedy="Check its permissions and the drive."
    )
