"""Chunk KV by key: read, admitted, written, put aside. Knows files, rows and budget together; knows no document.

The order of steps is that of FORMAT.md, "Order of writes". Loads torch only when a chunk KV is read or written.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from desk_rag.documents.chunking import ChunkId
from desk_rag.errors import UNWRITABLE, StoreError, StoreFull, of_system
from desk_rag.owned_folder import proven
from desk_rag.store.catalog.catalog import KVName
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
    from desk_rag.store.kv.reader import KVReader

T = TypeVar("T")
_MEASURED = 32
"""Files read to measure the drive."""


class KVFiles:
    """The KV files of one store. Safe to use from several threads; only the writer's may `put`."""

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
        """Held while files come, go or are compared with their rows."""
        self._guard = threading.Lock()
        self._hits: Counter[KVName] = Counter()
        self._reader_made: KVReader | None = None
        self._headers_made: HeaderCache | None = None

    def has(self, keys: Sequence[KVKey]) -> set[KVKey]:
        """Return those keys whose KV is on disk, going by the catalog."""
        if not self._kv.in_place():
            return set()
        there = {row.name for row in self._rows.find(name_of(key) for key in keys)}
        return {key for key in keys if name_of(key) in there}

    def get(self, keys: Sequence[KVKey]) -> list[QuantizedKV | None]:
        """Read chunk KVs in parallel; None for a miss. An unsound file is put aside and its row dropped.

        The catalog is not asked: the name says where the file must be, and the file says whether it is the right one.
        """
        if not self._kv.in_place():
            return [None] * len(keys)
        files = self._files(keys)
        found = self._sound(files, self._reader().load(files))
        self._count(keys, found)
        return found

    def files(self, keys: Sequence[KVKey], *, used: bool) -> list[ChunkFile | None]:
        """Find chunk KVs and read their headers only; misses and unsound headers as in `get`.

        Not `used`: somebody guesses what may be asked for, and that counts as no use.
        """
        if not self._kv.in_place():
            return [None] * len(keys)
        files = self._files(keys)
        found = self._sound(files, self._headers().look(files))
        if used:
            self._count(keys, found)
        return found

    def sample(self, namespace: str, limit: int) -> list[ChunkFile]:
        """Some sound files of a namespace, those read least recently first."""
        keys = [key_of(name) for name in self._rows.some(namespace, limit)]
        return [file for file in self.files(keys, used=False) if file is not None]

    def reread(self, keys: Sequence[KVKey]) -> list[QuantizedKV | None]:
        """As `get`, believing nothing that was verified before and counting no use: for files that others could not
        load. An unsound one is put aside."""
        files = self._files(keys)
        self._headers().forget(place for place, _ in files)
        reader = self._reader()
        reader.forget_verified()
        return self._sound(files, reader.load(files))

    def read_ahead(self, keys: Sequence[KVKey], most: int) -> int:
        """Ask the system to have these files in memory, in this order and about `most` bytes of them.

        Returns their bytes. Counts no use and reads nothing itself.
        """
        total = 0
        for place, _ in self._files(keys):
            if total < most:
                total += start_readahead([place])
        return total

    def put(self, key: KVKey, kv: QuantizedKV, chunk_ids: Sequence[ChunkId], prefill_seconds: float) -> bool:
        """Write a chunk KV unless it is there already; False if it was not admitted or its chunks are gone.

        Raises StoreFull if the disk has no room for it, StoreError if it cannot be written.
        """
        from desk_rag.store.kv import chunk_file

        with self.changing:
            if not self._kv.in_place():
                return False
            self.flush_hits()
            name = name_of(key)
            if self._layout.kv_file(*name).exists():
                if self._rows.link(name, chunk_ids):
                    return True
                self._budget.freed(self._maintenance.remove_unknown(name))  # a file that no row knows
                if self._layout.kv_file(*name).exists():  # it is not ours
                    self._rows.refuse(name[0], chunk_ids)
                    return False
            image = chunk_file.prepare(key, kv, chunk_ids, prefill_seconds)
            if not self._admit(name, chunk_ids, Cost(image.size, prefill_seconds)):
                self._rows.refuse(name[0], chunk_ids)
                return False
            return self._write(name, image, chunk_ids)

    def empty_bin(self, before: float) -> int:
        """Delete the KV of deleted documents that went to the bin before a store time; return the bytes freed."""
        with self.changing:
            freed = self._maintenance.remove_rows(self._rows.binned(before))
            self._budget.freed(freed)
        return freed

    def empty_quarantine(self) -> int:
        """Delete what was put aside as unsound; return the bytes freed."""
        with self.changing:
            freed = self._maintenance.empty_quarantine()
            self._budget.freed(freed)
        return freed

    def is_eager(self, namespace: str) -> bool:
        """True while this model's files leave room, so that nothing needs to be chosen.

        The last fifth of the limit is for what is used again. A corpus below four fifths is therefore cached whole, a
        larger one from its most recent chunks on; files of other models, and of rungs above this one, give way and do
        not count.
        """
        return self._rows.namespace_blocks(namespace, upper=False) < EAGER_BELOW * self._budget.limit()

    def flush_hits(self) -> None:
        """Write down the uses counted since the last time; on a full or read-only drive they are forgotten."""
        with self._guard:
            hits, self._hits = self._hits, Counter()
        if hits:
            with suppress(*UNWRITABLE):
                self._rows.count_hits(hits)

    def bytes_per_second(self, namespace: str) -> float | None:
        """Return the rate at which KV is read here, checks included; None while there is less than a megabyte of it.

        A process that has read nothing yet reads some files of this namespace, from the drive and not from memory as
        far as the system allows. That counts as no use.
        """
        reader = self._reader()
        if reader.bytes_per_second() is None:
            files = self._files([key_of(name) for name in self._rows.some(namespace, _MEASURED)])
            drop_page_cache(place for place, _ in files)
            reader.load(files)
        return reader.bytes_per_second()

    def close(self) -> None:
        """Write down what is only in memory and end the reading threads."""
        with self._guard:
            reader, self._reader_made = self._reader_made, None
        if reader is not None:
            reader.close()
        self.flush_hits()

    def _admit(self, name: KVName, chunk_ids: Sequence[ChunkId], cost: Cost) -> bool:
        """Decide on admission, evict what has to go, and reserve the bytes."""
        size = allocated_size(cost.size)
        if self._budget.disk_limit() < size:
            raise StoreFull(
                f"The disk of {self._layout.root} has no room for a chunk cache of {size:,} bytes.",
                remedy="Free some space, or lower `reserve_gib` under [store].",
            )
        score = self._rows.admission_score(chunk_ids, cost)
        if not (score.pinned or score.demand >= ADMIT_FROM or self.is_eager(name[0])):
            return False
        newcomer = Newcomer(name[0], size, score.rank, score.pinned)
        return self._maintenance.make_room(self._budget, size, newcomer) and self._budget.reserve(size)

    def _write(self, name: KVName, image: KVImage, chunk_ids: Sequence[ChunkId]) -> bool:
        from desk_rag.store.kv import chunk_file

        place = self._layout.kv_file(*name)
        added = False
        try:
            chunk_file.write(place, image, self._layout.cache)
            header = image.header
            added = self._rows.add(name, image.size, header.num_tokens, header.prefill_seconds, chunk_ids)
        except OSError as error:
            raise _explained(error, place) from error
        finally:
            if added:
                self._budget.written(allocated_size(image.size))
            else:
                with suppress(OSError):
                    self._layout.cache.remove(place, proven)
                self._budget.release(allocated_size(image.size))
        return added

    def _forget_missing(self, key: KVKey, place: Path) -> None:
        if not self._writer or not self._rows.find([name_of(key)]):
            return
        with self.changing:
            rows = self._rows.find([name_of(key)])
            if rows and not place.exists() and self._kv.in_place():
                with suppress(*UNWRITABLE):  # the next start drops the row
                    self._rows.drop([rows[0].name])
                    self._budget.freed(allocated_size(rows[0].size))

    def _put_aside(self, key: KVKey, place: Path) -> None:
        with self.changing:
            if self._maintenance.quarantine(place):
                with suppress(*UNWRITABLE):
                    self._rows.drop([name_of(key)])

    def _files(self, keys: Sequence[KVKey]) -> list[tuple[Path, KVKey]]:
        return [(self._layout.kv_file(*name_of(key)), key) for key in keys]

    def _sound(
        self, files: Sequence[tuple[Path, KVKey]], outcomes: Sequence[T | StoreError | OSError | None]
    ) -> list[T | None]:
        """What can be used of the outcomes; the rest is forgotten or put aside."""
        found: list[T | None] = []
        for (place, key), outcome in zip(files, outcomes, strict=True):
            if outcome is None:
                self._forget_missing(key, place)
            elif isinstance(outcome, StoreError):
                self._put_aside(key, place)
            found.append(None if outcome is None or isinstance(outcome, (StoreError, OSError)) else outcome)
        return found

    def _count(self, keys: Sequence[KVKey], found: Sequence[object]) -> None:
        with self._guard:
            # Written down later: the way to the first token waits for no disk.
            self._hits.update(name_of(key) for key, one in zip(keys, found, strict=True) if one is not None)

    def _headers(self) -> HeaderCache:
        with self._guard:
            if self._headers_made is None:
                from desk_rag.store.kv.header_cache import HeaderCache

                self._headers_made = HeaderCache()
            return self._headers_made

    def _reader(self) -> KVReader:
        with self._guard:
            if self._reader_made is None:
                from desk_rag.store.kv.reader import KVReader

                self._reader_made = KVReader()
            return self._reader_made


def name_of(key: KVKey) -> KVName:
    """Return a key as the two strings that rows and paths are made of."""
    return str(key.namespace), str(key.tokens)


def key_of(name: KVName) -> KVKey:
    """Return the key that `name_of` made two strings of."""
    from desk_rag.kv.types import KVKey, Namespace, TokenHash

    return KVKey(Namespace(name[0]), TokenHash(name[1]))


def _explained(error: OSError, place: Path) -> StoreError:
    return of_system(error, place) or StoreError(
        f"{place} could not be written: {error.strerror}.", remedy="Check its permissions and the drive."
    )
