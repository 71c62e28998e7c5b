"""Overlap the question's forward pass with loading: each layer waits for its own wave.

Right before the first layer of a wave runs, the wave's layers of all chunks are placed into the cache: by the kernel in
one launch where it is available, else by the torch reference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.kernels import availability
from desk_rag.kv.loading.load import ChunksLost, Load
from desk_rag.kv.loading.load_part import LoadPart
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.stitch import place_layer
from desk_rag.kv.types import Int8Layer, QuantizedKV
from desk_rag.model.language_model import LanguageModel

if TYPE_CHECKING:
    from desk_rag.kv.kernels.place_chunks import Batch, Target


@dataclass(frozen=True, slots=True)
class CacheTarget:
    """A cache that chunks are placed into, its rotary tables, and the kernel's view of both; one per cache."""

    tables: RotaryTables
    cache: SlabCache
    kernel_target: Target | None
    """None if the torch reference does the placing."""
    shift: PlaceShift | None = None
    """Added to chunks while they are placed; None for a model that has none."""

    @classmethod
    def of(cls, tables: RotaryTables, cache: SlabCache, shift: PlaceShift | None = None) -> CacheTarget:
        """Look up every slab's address; checks the kernel at its first use in this process."""
        device = cache.layers[0].key_slab.device
        if tables.interleaved or not availability.available(device, shifted=shift is not None):
            return cls(tables, cache, None, shift)
        from desk_rag.kv.kernels import place_chunks

        return cls(tables, cache, place_chunks.Target.of(tables, cache.layers), shift)


class Placer:
    """Places a load's chunks as the plan says, wave by wave; one per answer."""

    def __init__(self, load: Load | LoadPart, plan: StitchPlan, target: CacheTarget) -> None:
        assert len(load.items) == len(plan.placements), "plan and load differ in chunks"
        assert plan.num_slots <= target.cache.capacity, "slab too small"
        self._load, self._placements, self._target = load, plan.placements, target
        self._shifts: torch.Tensor | None = None if target.shift is None else target.shift.of_chunks(plan)
        self._batch: Batch | None = None
        self._chunks: dict[int, QuantizedKV] = {}
        self._placed = 0
        """Number of layers placed."""

    def place_through(self, layer: int) -> None:
        """Place every layer up to and including `layer`, in stream order. Raises ChunksLost."""
        while self._placed <= layer:
            self._prepare_batch()
            wave = bisect_right(self._load.wave_ends, self._placed, hi=len(self._load.wave_ends) - 1)
            try:
                self._load.wait(wave)
            except ChunksLost:
                # The replacements lie elsewhere in memory, and layers placed so far contain the lost chunks.
                self._batch, self._placed = None, 0
                raise
            self._place(range(self._placed, self._end_of(wave)))

    def place_resident(self) -> None:
        """Place everything now if nothing has to be loaded: the GPU works while the pass is being issued."""
        if self._load.resident:
            self.place_all()

    @property
    def begun(self) -> bool:
        """True once a layer has been placed."""
        return self._placed > 0

    def place_all(self) -> None:
        """Place every layer. Raises ChunksLost."""
        self.place_through(len(self._target.cache.layers) - 1)

    def _end_of(self, wave: int) -> int:
        """First layer after `wave`. A load without any file does not know the layers: its only wave is all of them."""
        return len(self._target.cache.layers) if wave == len(self._load.wave_ends) - 1 else self._load.wave_ends[wave]

    def _place(self, layers: range) -> None:
        tables, cache = self._target.tables, self._target.cache
        with torch.inference_mode():
            if self._target.kernel_target is not None:
                self._launch(layers, self._target.kernel_target)
            for index, placement in enumerate(self._placements):
                for layer in self._reference_layers(index, layers):
                    shift = None if self._shifts is None else self._shifts[layer, index]
                    place_layer(layer, placement, self._chunk(index), tables, cache, shift)
        self._placed = layers.stop

    def _prepare_batch(self) -> None:
        """Compute and upload the kernel's table for all layers, once, while chunks are still being loaded.

        A chunk without a buffer is lost; waiting for it raises ChunksLost.
        """
        target = self._target.kernel_target
        has_addresses = all(item.replacement is not None or item.buffer is not None for item in self._load.items)
        if self._batch is None and target is not None and self._placements and has_addresses:
            with torch.inference_mode():
                self._batch = self._batch_of(target)

    def _launch(self, layers: range, target: Target) -> None:
        """Place the int8 layers by the kernel."""
        from desk_rag.kv.kernels import place_chunks

        if not self._placements:
            return
        assert self._batch is not None, "prepared before waiting, and no chunk was lost since"
        place_chunks.launch(self._batch, target, slice(layers.start, layers.stop), shifts=self._shifts)

    def _batch_of(self, target: Target) -> Batch:
        from desk_rag.kv.kernels import place_chunks

        loaded, replaced = [], []
        for index, (item, placement) in enumerate(zip(self._load.items, self._placements, strict=True)):
            if item.replacement is not None:
                replaced.append(index)
                continue
            assert item.layout is not None and item.buffer is not None
            assert item.layout.num_tokens == placement.num_tokens, "plan and chunk differ in length"
            loaded.append(place_chunks.Loaded(item.layout, item.buffer.data, placement.position, placement.slot))
        if not replaced:
            return place_chunks.batch_of_payloads(loaded, target)
        rows = np.zeros((len(target.places), len(self._placements), place_chunks.NUM_FIELDS), dtype=np.int64)
        if loaded:
            others = [index for index in range(len(self._placements)) if index not in replaced]
            rows[:, others] = place_chunks.rows_of_payloads(loaded, target)
        for index in replaced:
            placement, chunk = self._placements[index], self._chunk(index)
            assert chunk.num_tokens == placement.num_tokens, "plan and chunk differ in length"
            for layer, coded in enumerate(chunk.layers):
                if isinstance(coded, Int8Layer):
                    rows[layer, index] = place_chunks.row_of(coded, target, layer, placement.position, placement.slot)
        return place_chunks.batch_of_rows(rows, target)

    def _reference_layers(self, index: int, layers: range) -> Sequence[int]:
        """Layers of a chunk that the kernel does not place."""
        item = self._load.items[index]
        if self._target.kernel_target is None:
            return layers
        if item.replacement is not None:
            return [layer for layer in layers if not isinstance(item.replacement.layers[layer], Int8Layer)]
        assert item.layout is not None
        return () if item.layout.all_int8 else [layer for layer in layers if not item.layout.is_int8[layer]]

    def _chunk(self, index: int) -> QuantizedKV:
        replacement = self._load.items[index].replacement
        if replacement is not None:
            return replacement
        if index not in self._chunks:
            self._chunks[index] = self._load.quantized(index)
        return self._chunks[index]


@contextmanager
def layerwise(
    model: LanguageModel, load: Load | LoadPart, plan: StitchPlan, prefix: PrefixKV | None, target: CacheTarget
) -> Iterator[None]:
    """While open, a forward pass over the target's cache waits at each layer until its chunks are placed.

    `prefix` is None if it is in the cache already. The pass raises ChunksLost if a chunk is lost; the cache must then
    be filled again. Open it for the question's first pass only: on exit everything has been placed.
    """
    if prefix is not None:
        prefix.write_to(target.cache)
    target.cache.set_length(plan.num_slots)
    placer = Placer(load, plan, target)

    def before(layer: int) -> Any:
        def place(_module: torch.nn.Module, _inputs: Any) -> None:
            placer.place_through(layer)

        return place

    with ExitStack() as stack:
        for index, module in enumerate(model.decoder_layers):
            stack.callback(module.register_forward_pre_hook(before(index)).remove)
        yield
        # A pass that bypasses the layer modules would have read slots that were never filled.
        assert placer.begun, "the forward pass did not call the decoder's layers"
        placer.place_all()
