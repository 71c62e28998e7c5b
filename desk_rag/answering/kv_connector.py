"""Load the chunk KV of an answer and put it into the model's cache, layer by layer while the question's pass runs.

An asynchronous `Loader` reads the files. It keeps them between answers in GPU memory and page-locked memory, or in host
memory without a GPU.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil
import torch

from desk_rag.config import AnswerSettings
from desk_rag.errors import OutOfMemory
from desk_rag.kv.forward.arriving_chunks import placed
from desk_rag.kv.forward.runner import ModelPass, Pass, Slab
from desk_rag.kv.kernels.availability import is_large
from desk_rag.kv.lazy.cache import LazyCache, arriving
from desk_rag.kv.lazy.reference import LazyContext
from desk_rag.kv.loading.costs import Rates, StoredChunk, never_loads, to_prefill, whole_is_faster
from desk_rag.kv.loading.load import Load
from desk_rag.kv.loading.load_part import LoadPart, SharedLoad, distinct
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.quant import move_layer
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import KVKey, QuantizedKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory import device as device_memory
from desk_rag.store.store import Store

MIB = 1 << 20
_GPU_AT_MOST = 4096 * MIB
_RAM_AT_MOST = 2048 * MIB
_RAM_AT_LEAST = 64 * MIB
_CPU_AT_MOST = 256 * MIB
_CPU_THREADS = 4
_WAVES_LARGE_GPU = 1
_WAVES_SMALL_GPU = 2
"""Waves in which a file is read: computation starts earlier, and reads are shorter (bench/LOG.md, "Waves of the
loader")."""

Candidates = Callable[[], Sequence[KVKey]]
"""Returns keys of retrieved chunks; called only if loading starts before the answer's chunks are settled."""


@dataclass(frozen=True, slots=True)
class CacheTarget:
    """Destination of loaded chunk KV: one engine's model, shared prefix, rotary tables and slab."""

    model: LanguageModel
    prefix: PrefixKV
    tables: RotaryTables
    slab: Slab | None
    """None with lazy attention, which reads the chunks where they are."""
    room: int
    """Maximum tokens of question and answer together."""

    def fill(self, plan: StitchPlan, chunks: Sequence[QuantizedKV]) -> Pass:
        """Fill the cache with whole chunks, in the plan's order; return a pass over it."""
        if self.slab is None:
            on_device = [self.to_device(chunk) for chunk in chunks]
            return ModelPass(self.model, self.lazy_cache(plan, on_device, loaded=True))
        stitch(self.model, plan, self.prefix, chunks, self.tables, self.slab.cache, self.slab.slots.shift)
        return self.slab.run()

    def over(self, slab: Slab) -> CacheTarget:
        """The same over another slab."""
        return replace(self, slab=slab)

    def lazy_cache(self, plan: StitchPlan, chunks: Sequence[QuantizedKV], *, loaded: bool) -> LazyCache:
        """Build a cache over chunks on the model's device, which must not change while it is used."""
        context = LazyContext(tuple(chunks), plan.placements, self.tables)
        return LazyCache(self.model, self.prefix, context, self.room, loaded=loaded)

    def to_device(self, chunk: QuantizedKV) -> QuantizedKV:
        """Copy a chunk to the model's device."""
        return QuantizedKV(tuple(move_layer(layer, self.model.device) for layer in chunk.layers))


class KVConnector:
    """Loads chunk KV for one engine, layer by layer, through an asynchronous loader."""

    def __init__(self, store: Store, target: CacheTarget, loader: Loader) -> None:
        self._store, self._target, self.loader = store, target, loader
        self.rates: Rates | None = None
        """Rates by which an answer prefills some chunks instead of loading them; None loads whatever is on disk."""
        self._lock = threading.Lock()
        self._prefetch: tuple[list[KVKey], Load] | None = None

    def start_load(self, candidates: Candidates) -> KVLoadHandle:
        """Start loading; the candidates may be more than the answer will use, or others."""
        keys = candidates()
        loaded_keys, load = self._take_prefetch(keys) or self._start_likely(keys)
        return KVLoadHandle(self._store, self._target, self.loader, loaded_keys, load, self.rates)

    def prefers_full(self, lengths: Sequence[int]) -> bool:
        """Return whether full prefill is faster than loading chunks of these lengths, wherever their KV is."""
        return self.rates is not None and never_loads(lengths, self.rates)

    def start_settled(self, keys: Sequence[KVKey], lengths: Sequence[int]) -> KVLoadHandle:
        """Start loading the chunks that are on disk of an answer whose chunks have these lengths.

        Where full prefill is faster wherever their KV is, no file is looked up.
        """
        if len(keys) < len(lengths) or not self.prefers_full(lengths):
            return self.start_load(lambda: keys)
        handle = KVLoadHandle(self._store, self._target, self.loader, [], self.loader.start([]), self.rates)
        handle.whole_is_faster = True
        return handle

    def _start_likely(self, keys: Sequence[KVKey]) -> tuple[list[KVKey], Load]:
        """Start loading what will be loaded if the answer reads just these chunks.

        A read that has begun cannot be taken back, and holds up the pass that takes its place.
        """
        files: Sequence[ChunkFile | None] = self._store.kv_files(keys, used=False)
        if _whole_is_faster(files, self.loader, self.rates):
            return [], _start(self.loader, [])
        _, anew = _worth_loading(files, self.loader, self.rates)
        kept = [index for index in range(len(keys)) if index not in anew]
        return [keys[index] for index in kept], _start(self.loader, [files[index] for index in kept])

    def start_shared(self, wanted: Sequence[Sequence[KVKey]]) -> list[tuple[LoadPart, frozenset[int]]]:
        """Start one load for several answers, whose keys are settled; a chunk that several want is read once.

        Returns each one's part, and the indices of its chunks that are prefilled all the same.
        """
        self.cancel_prefetch()
        keys, parts = distinct(wanted)
        files, anew = _worth_loading(self._store.kv_files(keys), self.loader, self.rates)
        shared = SharedLoad(_start(self.loader, files), parts)
        faster = [frozenset(own for own, index in enumerate(part) if index in anew) for part in parts]
        return list(zip(shared.parts, faster, strict=True))

    def prefetch(self, keys: Sequence[KVKey]) -> None:
        """Load what may be needed next, the likeliest first.

        Replaces an earlier prefetch, never delays an answer.
        """
        fitting_keys, files, room = [], [], self.loader.settings.resident_bytes // 2
        for key, file in zip(keys, self._store.kv_files(keys, used=False), strict=True):
            if file is not None and file.payload <= room:
                room -= file.payload
                fitting_keys.append(key)
                files.append(file)
        with self._lock:
            self._cancel()
            if files:
                load = self.loader.start(files, urgent=False)
                load.leave()
                self._prefetch = fitting_keys, load

    def cancel_prefetch(self) -> None:
        """Stop prefetching."""
        with self._lock:
            self._cancel()

    def forget(self) -> None:
        """Drop what this process holds in memory, as after a restart."""
        self.cancel_prefetch()
        self.loader.forget()

    def close(self) -> None:
        """Release all memory."""
        self.cancel_prefetch()
        self.loader.close()

    def _take_prefetch(self, keys: Sequence[KVKey]) -> tuple[list[KVKey], Load] | None:
        """Take over the running prefetch if it covers `keys`; cancel it otherwise."""
        with self._lock:
            prefetch = self._prefetch
            if prefetch is not None and set(keys) <= set(prefetch[0]) and prefetch[1].take_back():
                self._prefetch = None
                return prefetch
            self._cancel()
        return None

    def _cancel(self) -> None:
        if self._prefetch is not None:
            self._prefetch[1].close()
            self._prefetch = None


class KVLoadHandle:
    """Loading of one answer's chunks.

    Chunk indices follow the keys given to `select`, which are in the plan's order.
    """

    faster_anew: frozenset[int] = frozenset()
    """Indices of chunks whose KV is on disk and that are prefilled all the same, because that is faster."""
    whole_is_faster = False
    """True if full prefill of all chunks begins the answer sooner; nothing is loaded then."""

    def __init__(
        self,
        store: Store,
        target: CacheTarget,
        loader: Loader,
        keys: list[KVKey],
        load: Load | LoadPart,
        rates: Rates | None,
    ) -> None:
        self._store, self._target, self._loader = store, target, loader
        self._keys, self._load, self._rates = keys, load, rates
        self._verified: set[int] = set()

    def select(self, keys: Sequence[KVKey]) -> None:
        """Settle the answer's chunks; nothing else is loaded from now on."""
        assert isinstance(self._load, Load), "of a shared load they are settled before it starts"
        files: Sequence[ChunkFile | None] = self._store.kv_files(keys)
        self.whole_is_faster = _whole_is_faster(files, self._loader, self._rates)
        if self.whole_is_faster:
            self._load.close()
            return
        files, self.faster_anew = _worth_loading(files, self._loader, self._rates)
        loading = {key: index for index, key in enumerate(self._keys)}
        if all(key in loading or file is None for key, file in zip(keys, files, strict=True)):
            loaded_indices = [loading[key] if file is not None else None for key, file in zip(keys, files, strict=True)]
            self._load.keep(loaded_indices)
        else:  # a file was written since the candidates were named, or they were a guess
            early, self._load = self._load, _start(self._loader, files)
            early.close()
        self._keys = list(keys)

    def missing(self) -> list[int]:
        """Indices of chunks to be prefilled live, as far as known now.

        Call it again after ChunksLost.
        """
        while True:
            lost, items = self._load.missing(), self._load.items
            doubtful = [index for index in lost if index not in self._verified and items[index].file is not None]
            if not doubtful:
                return lost
            # Verify the whole file: a damaged one is quarantined, so that a new one can be written. Other files may
            # turn out to be damaged meanwhile, hence the loop.
            self._verified.update(doubtful)
            for index, chunk in zip(doubtful, self._read_verified(doubtful), strict=True):
                if chunk is not None:
                    self.replace(index, self._target.to_device(chunk))

    def replace(self, index: int, chunk: QuantizedKV) -> None:
        """Use this chunk KV, on the model's device, for a missing chunk."""
        self._load.replace(index, chunk)

    @contextmanager
    def attach(self, plan: StitchPlan, *, by_layers: bool = False) -> Iterator[Pass]:
        """Context for the question's first pass; yields the pass to run it and to decode with.

        With `by_layers` the caller runs the first pass itself, through the model's own layers and over the target's
        slab. The first pass may raise ChunksLost; then `missing` has grown.
        """
        target, load = self._target, self._load
        if target.slab is None:
            chunks = [load.quantized(position) for position in range(len(load.items))]
            lazy = target.lazy_cache(plan, chunks, loaded=False)
            last = len(load.wave_ends) - 1  # if nothing was on disk there is a single wave without layers
            with arriving(target.model, lazy, lambda layer: load.wait(min(bisect_right(load.wave_ends, layer), last))):
                yield ModelPass(target.model, lazy)
            return
        with placed(target.model, target.slab, load, plan, by_layers=by_layers) as run:
            yield run

    def release(self) -> None:
        """Give back what later passes do not read; call it after the first pass."""
        if self._target.slab is not None:
            self.close()

    def waited(self) -> float:
        """Seconds that passes waited for loading; synchronize the device first."""
        return self._load.waited()

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks that were not prefilled live."""
        return self._load.nbytes

    def close(self) -> None:
        """End the load. May be called twice."""
        self._load.close()

    def _read_verified(self, indices: Sequence[int]) -> list[QuantizedKV | None]:
        return self._store.reread_kv([self._keys[index] for index in indices]) if indices else []


def _worth_loading(
    files: Sequence[ChunkFile | None], loader: Loader, rates: Rates | None
) -> tuple[Sequence[ChunkFile | None], frozenset[int]]:
    """Return the files, with None for those whose chunks are prefilled sooner than loaded, and these indices."""
    if rates is None:
        return files, frozenset()
    stored = _stored(files, loader)
    anew = frozenset(stored[number][0] for number in to_prefill([chunk for _, chunk in stored], rates))
    return [None if index in anew else file for index, file in enumerate(files)], anew


def _whole_is_faster(files: Sequence[ChunkFile | None], loader: Loader, rates: Rates | None) -> bool:
    """Return whether full prefill of these chunks is faster than loading them, which all of them could be."""
    if rates is None or not rates.whole or None in files:
        return False
    return whole_is_faster([chunk for _, chunk in _stored(files, loader)], rates)


def _stored(files: Sequence[ChunkFile | None], loader: Loader) -> list[tuple[int, StoredChunk]]:
    """Return each chunk that is on disk, with its index."""
    return [
        (index, StoredChunk(file.header.num_tokens, file.payload, loader.tier_of(file)))
        for index, file in enumerate(files)
        if file is not None
    ]


def _start(loader: Loader, files: Sequence[ChunkFile | None]) -> Load:
    try:
        return loader.start(files)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            "The GPU has no room for the chunk KV of this answer.",
            remedy="Close other programs on the GPU, or lower `top_k` or `context_tokens` under [answer].",
        ) from error


def open_connector(settings: AnswerSettings, store: Store, target: CacheTarget) -> KVConnector:
    """Open a connector with as much memory as the settings say, or as is free now."""
    device = target.model.device
    if device.type != "cuda":
        loader = Loader(device, LoaderSettings(threads=_CPU_THREADS, resident_bytes=host_bytes(settings)))
        return KVConnector(store, target, loader)
    resident, staging = tier_bytes(settings, device)
    waves = _WAVES_LARGE_GPU if is_large(device) else _WAVES_SMALL_GPU
    loader = Loader(device, LoaderSettings(waves=waves, resident_bytes=resident, staging_bytes=staging))
    return KVConnector(store, target, loader)


def host_bytes(settings: AnswerSettings) -> int:
    """Bytes of chunk KV kept in memory between answers without a GPU; the page cache holds the files besides."""
    return settings.ram_cache_mib * MIB or min(psutil.virtual_memory().available // 8, _CPU_AT_MOST)


def tier_bytes(settings: AnswerSettings, device: torch.device) -> tuple[int, int]:
    """Return (`resident_bytes`, `staging_bytes`) for a GPU's loader, as set or by free memory.

    Without page-locked memory loading is slow, so some is always taken.
    """
    free = device_memory.free_gpu_bytes(device)
    memory = psutil.virtual_memory()
    resident = settings.gpu_cache_mib * MIB or min(free // 4, _GPU_AT_MOST)
    staging = settings.ram_cache_mib * MIB or min(memory.total // 16, memory.available // 4, _RAM_AT_MOST)
    return resident, max(staging, _RAM_AT_LEAST)
