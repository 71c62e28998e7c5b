"""One doorway between an answer and the chunk KVs it reads, and the two ways through it.

`MappedLoader` reads whole files through the page cache and stitches them before the question's pass: enough on a CPU,
where nothing has to cross a bus and no second processor is idle. `StreamedLoader` has an asynchronous `Loader`
bring them layer by layer while the pass runs, and keeps them in GPU memory and page-locked memory.
Knows the store, loads and slabs; knows no question and no model output.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import psutil
import torch

from desk_rag.answering import drive_tuning
from desk_rag.config import AnswerSettings, Settings
from desk_rag.errors import OutOfMemory
from desk_rag.kv.forward.runner import ModelPass, ModelRunner, Pass
from desk_rag.kv.lazy.cache import LazyCache, arriving
from desk_rag.kv.lazy.reference import LazyContext
from desk_rag.kv.loading.layerwise import Placer, layerwise
from desk_rag.kv.loading.load import Load
from desk_rag.kv.loading.loader import Loader
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.quant import move_layer
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import KVKey, Namespace, QuantizedKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.store.store import Store

MIB = 1 << 20
_GPU_AT_MOST = 4096 * MIB
_RAM_AT_MOST = 2048 * MIB
_RAM_AT_LEAST = 64 * MIB
_AHEAD_AT_MOST = 256 * MIB
"""Bytes that are asked of the page cache for what may come next."""


Candidates = Callable[[], Sequence[KVKey]]
"""Names the KV of what retrieval has found so far; asked only where reading starts before the answer's chunks are
settled."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where chunk KVs are laid: one engine's model, prefix, tables and slab."""

    model: LanguageModel
    prefix: PrefixKV
    tables: RotaryTables
    slab: ModelRunner | None
    """None: chunks are attended to as they lie, lazily."""
    room: int
    """Most tokens of question and answer together."""

    def lay(self, where: StitchPlan, chunks: Sequence[QuantizedKV]) -> Pass:
        """Whole chunks in the plan's order become what the returned pass runs over."""
        if self.slab is None:
            here = [self.moved(chunk) for chunk in chunks]
            return ModelPass(self.model, self.lazily(where, here, loaded=True))
        stitch(self.model, where, self.prefix, chunks, self.tables, self.slab.cache)
        return self.slab.run()

    def lazily(self, where: StitchPlan, chunks: Sequence[QuantizedKV], *, loaded: bool) -> LazyCache:
        """A cache over chunks on the model's device, which must stay as they are while it is used."""
        context = LazyContext(tuple(chunks), where.placements, self.tables)
        return LazyCache(self.model, self.prefix, context, self.room, loaded=loaded)

    def moved(self, chunk: QuantizedKV) -> QuantizedKV:
        """The chunk on the model's device."""
        return QuantizedKV(tuple(move_layer(layer, self.model.device) for layer in chunk.layers))


class Reading(Protocol):
    """The chunks of one answer on their way into its cache. Indices follow the keys given to `keep`, best first."""

    def keep(self, keys: Sequence[KVKey]) -> None:
        """These are the chunks; nothing else is read any more."""

    def missing(self) -> list[int]:
        """The chunks to be prefilled live, as far as that is known now; asked again after ChunksLost."""

    def replace(self, index: int, chunk: QuantizedKV) -> None:
        """Use this chunk KV (on the model's device) for one that is missing."""

    def lay(self, where: StitchPlan, *, by_layers: bool = False) -> AbstractContextManager[Pass]:
        """The question's first pass runs inside of what is returned, over prefix and chunks, by the pass it yields.

        That pass goes on to decode. With `by_layers` the first one is somebody else's, through the model's own layers
        and over the site's slab. The best chunk goes last: `where` counts from the other end than `keep`. The first
        pass may raise ChunksLost; then `missing` says more than before.
        """

    def laid(self) -> None:
        """The first pass is over: what no later one reads is given back."""

    def waited(self) -> float:
        """Seconds for which passes stood still for loading; let the device finish first."""

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks that were not prefilled live."""

    def close(self) -> None:
        """The answer is over, or the chunks are not wanted any more. Closing twice is fine."""


class ContextLoader(Protocol):
    """Brings chunk KVs for one engine."""

    def begin(self, candidates: Candidates) -> Reading:
        """Candidates are known: reading may start. They may be more than the answer will use, or others."""

    def ahead(self, keys: Sequence[KVKey]) -> None:
        """These may be wanted next, the likeliest first; replaces what was said before. Never delays a Reading."""

    def call_off(self) -> None:
        """Stop reading ahead."""

    def forget(self) -> None:
        """Empty the tiers that belong to this process, as after a restart."""

    def close(self) -> None:
        """Give all memory back."""


# Through the page cache ---------------------------------------------------------------------------------------


class MappedLoader:
    """Whole files, read when they are asked for."""

    def __init__(self, store: Store, site: Site) -> None:
        self._store, self._site = store, site

    def begin(self, candidates: Candidates) -> MappedReading:
        return MappedReading(self._store, self._site)

    def ahead(self, keys: Sequence[KVKey]) -> None:
        self._store.read_ahead(keys, _AHEAD_AT_MOST)

    def call_off(self) -> None:
        pass  # what the system was told cannot be taken back, and costs the answer next to nothing

    def forget(self) -> None:
        pass  # the page cache belongs to the system

    def close(self) -> None:
        pass


class MappedReading:
    """See `Reading`."""

    def __init__(self, store: Store, site: Site) -> None:
        self._store, self._site = store, site
        self._keys: tuple[KVKey, ...] = ()
        self._chunks: list[QuantizedKV | None] | None = None
        self._fresh: set[int] = set()

    def keep(self, keys: Sequence[KVKey]) -> None:
        self._keys = tuple(keys)

    def missing(self) -> list[int]:
        if self._chunks is None:
            self._chunks = self._store.get_kv(self._keys)
        return [index for index, chunk in enumerate(self._chunks) if chunk is None]

    def replace(self, index: int, chunk: QuantizedKV) -> None:
        assert self._chunks is not None, "ask what is missing first"
        self._chunks[index] = chunk
        self._fresh.add(index)

    def lay(self, where: StitchPlan, *, by_layers: bool = False) -> AbstractContextManager[Pass]:
        chunks = [chunk for chunk in reversed(self._chunks or []) if chunk is not None]
        return nullcontext(self._site.lay(where, chunks))

    def laid(self) -> None:
        if self._site.slab is not None:
            self.close()

    def waited(self) -> float:
        return 0.0

    @property
    def nbytes(self) -> int:
        chunks = enumerate(self._chunks or [])
        return sum(chunk.nbytes for index, chunk in chunks if chunk is not None and index not in self._fresh)

    def close(self) -> None:
        self._chunks = []


# Layer by layer -----------------------------------------------------------------------------------------------


class StreamedLoader:
    """An asynchronous loader and its tiers, and what it reads ahead."""

    def __init__(self, store: Store, site: Site, loader: Loader) -> None:
        self._store, self._site, self.loader = store, site, loader
        self._lock = threading.Lock()
        self._ahead: tuple[list[KVKey], Load] | None = None

    def begin(self, candidates: Candidates) -> StreamedReading:
        keys = candidates()
        taken = self._take_ahead(keys)
        if taken is None:
            taken = list(keys), _start(self.loader, self._store.kv_files(keys, used=False))
        return StreamedReading(self._store, self._site, self.loader, *taken)

    def ahead(self, keys: Sequence[KVKey]) -> None:
        wanted, files, room = [], [], self.loader.settings.resident_bytes // 2
        for key, file in zip(keys, self._store.kv_files(keys, used=False), strict=True):
            if file is not None and file.payload <= room:
                room -= file.payload
                wanted.append(key)
                files.append(file)
        with self._lock:
            self._call_off()
            if files:
                load = self.loader.start(files, urgent=False)
                load.leave()
                self._ahead = wanted, load

    def call_off(self) -> None:
        with self._lock:
            self._call_off()

    def forget(self) -> None:
        self.call_off()
        self.loader.forget()

    def close(self) -> None:
        self.call_off()
        self.loader.close()

    def _take_ahead(self, keys: Sequence[KVKey]) -> tuple[list[KVKey], Load] | None:
        """The load under way that was meant for these keys, if it is still under way; any other one is called off."""
        with self._lock:
            taken = self._ahead
            if taken is not None and set(keys) <= set(taken[0]) and taken[1].take_back():
                self._ahead = None
                return taken
            self._call_off()
        return None

    def _call_off(self) -> None:
        if self._ahead is not None:
            self._ahead[1].close()
            self._ahead = None


class StreamedReading:
    """See `Reading`. The load holds the chunks as they are laid: the best one last."""

    def __init__(self, store: Store, site: Site, loader: Loader, keys: list[KVKey], load: Load) -> None:
        self._store, self._site, self._loader = store, site, loader
        self._keys, self._load = keys, load
        self._looked_again: set[int] = set()

    def keep(self, keys: Sequence[KVKey]) -> None:
        files = self._store.kv_files(keys)
        place = {key: index for index, key in enumerate(self._keys)}
        if all(key in place or file is None for key, file in zip(keys, files, strict=True)):
            found = [place[key] if file is not None else None for key, file in zip(keys, files, strict=True)]
            self._load.keep(found[::-1])
        else:  # a file came since the candidates were named, or they were guesses
            early, self._load = self._load, _start(self._loader, files[::-1])
            early.close()
        self._keys = list(keys)

    def missing(self) -> list[int]:
        while True:
            lost = [self._flip(at) for at in self._load.missing()]
            doubtful = [index for index in lost if index not in self._looked_again and self._file(index) is not None]
            if not doubtful:
                return sorted(lost)
            # A file that could not be loaded is checked once more as a whole, which puts it aside where it is unsound;
            # meanwhile another one may be found out. One that stayed in its place would never be written anew.
            self._looked_again.update(doubtful)
            for index, chunk in zip(doubtful, self._anew(doubtful), strict=True):
                if chunk is not None:
                    self.replace(index, self._site.moved(chunk))

    def replace(self, index: int, chunk: QuantizedKV) -> None:
        self._load.replace(self._flip(index), chunk)

    @contextmanager
    def lay(self, where: StitchPlan, *, by_layers: bool = False) -> Iterator[Pass]:
        site, load = self._site, self._load
        if site.slab is None:
            chunks = [load.quantized(at) for at in range(len(load.items))]
            lazy = site.lazily(where, chunks, loaded=False)
            last = len(load.wave_ends) - 1  # of one wave that knows of no layers, where nothing was on disk
            with arriving(site.model, lazy, lambda layer: load.wait(min(bisect_right(load.wave_ends, layer), last))):
                yield ModelPass(site.model, lazy)
            return
        site.slab.lay_prefix()
        cache = site.slab.cache
        if by_layers or site.slab.fused is None:
            with layerwise(site.model, load, where, None, site.slab.slots):
                yield site.slab.run()
        else:
            cache.set_length(where.num_slots)
            placer = Placer(load, where, site.slab.slots)
            placer.place_resident()
            yield site.slab.run(placer.place_through)
            assert placer.begun, "the first pass was not run by what was yielded"
            placer.place_all()

    def laid(self) -> None:
        if self._site.slab is not None:
            self.close()

    def waited(self) -> float:
        return self._load.waited()

    @property
    def nbytes(self) -> int:
        return self._load.nbytes

    def close(self) -> None:
        self._load.close()

    def _flip(self, index: int) -> int:
        return len(self._load.items) - 1 - index

    def _file(self, index: int) -> ChunkFile | None:
        return self._load.items[self._flip(index)].file

    def _anew(self, indices: Sequence[int]) -> list[QuantizedKV | None]:
        return self._store.get_kv_anew([self._keys[index] for index in indices]) if indices else []


def _start(loader: Loader, files: Sequence[ChunkFile | None]) -> Load:
    try:
        return loader.start(files)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            "The GPU has no room for the chunk KVs of this answer.",
            remedy="Close other programs on the GPU, or lower `top_k` or `context_tokens` under [answer].",
        ) from error


# Which way ----------------------------------------------------------------------------------------------------


def load_as_fits(settings: Settings, store: Store, site: Site, namespace: Namespace) -> ContextLoader:
    """The way that is fastest on the model's device, its memory sized by what is free now.

    On a CPU both are level (81 and 79 ms of load, stitch and first pass at 3 chunks, 129 and 131 at 8; medians of 56 on
    a busy machine with two cores), so the mapped way stays, which needs no threads and no second copy of the files.
    """
    device = site.model.device
    if device.type != "cuda":
        return MappedLoader(store, site)
    resident, staging = tier_bytes(settings.answer, device)
    sample = store.kv_sample(namespace, drive_tuning.SAMPLE)
    chosen = drive_tuning.settle(settings.data_dir, sample, device, settings.store.kv_place)
    return StreamedLoader(store, site, Loader(device, replace(chosen, resident_bytes=resident, staging_bytes=staging)))


def tier_bytes(settings: AnswerSettings, device: torch.device) -> tuple[int, int]:
    """(`resident_bytes`, `staging_bytes`) of a GPU's loader, by the settings or by what is free now.

    On a card of 6 GB with a 4-bit model of 3B about 3 GB are free: 750 MB hold 40,000 tokens at 18 KB each, and 2 GB
    stay for the pass and the desktop. Without page-locked memory loading is slow, so some is always taken.
    """
    free, _ = torch.cuda.mem_get_info(device)
    memory = psutil.virtual_memory()
    resident = settings.gpu_cache_mib * MIB or min(free // 4, _GPU_AT_MOST)
    staging = settings.ram_cache_mib * MIB or min(memory.total // 16, memory.available // 4, _RAM_AT_MOST)
    return resident, max(staging, _RAM_AT_LEAST)
