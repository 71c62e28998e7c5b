"""The question's forward pass and the loading of its context at the same time: each layer waits for its own wave.

Knows loads, plans and slabs; knows no file and no question. Right before the first layer of a wave runs, the wave's
layers of all chunks are placed into the slabs: by the kernel in one launch where there is one, else by the reference.
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
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import place_layer
from desk_rag.kv.types import Int8Layer, QuantizedKV
from desk_rag.model.language_model import LanguageModel

if TYPE_CHECKING:
    from desk_rag.kv.kernels.place_chunks import Batch, Target


@dataclass(frozen=True, slots=True)
class Slots:
    """Where chunks may be placed: a cache, its rotary tables, what the kernel knows of both. Made once per cache."""

    tables: RotaryTables
    cache: SlabCache
    target: Target | None
    """None where the reference has to do the work."""

    @classmethod
    def of(cls, tables: RotaryTables, cache: SlabCache) -> Slots:
        """Looks up every slab's address, and proves the kernel if this process has not used it yet."""
        if not availability.available(cache.layers[0].key_slab.device):
            return cls(tables, cache, None)
        from desk_rag.kv.kernels import place_chunks

        return cls(tables, cache, place_chunks.Target.of(tables, cache.layers))


class Placer:
    """Puts a load's chunks where the plan wants them, wave by wave. Made per answer."""

    def __init__(self, load: Load, plan: StitchPlan, slots: Slots) -> None:
        assert len(load.items) == len(plan.placements), "plan and load differ in chunks"
        assert plan.num_slots <= slots.cache.capacity, "slab too small"
        self._load, self._placements, self._slots = load, plan.placements, slots
        self._batch: Batch | None = None
        self._chunks: dict[int, QuantizedKV] = {}
        self._placed = 0
        """Layers."""

    def place_through(self, layer: int) -> None:
        """Have every layer up to and with `layer` in the slabs, in the current stream's order. Raises ChunksLost."""
        while self._placed <= layer:
            self._look_up()
            wave = bisect_right(self._load.cuts, self._placed, hi=len(self._load.cuts) - 1)
            try:
                self._load.wait(wave)
            except ChunksLost:
                # What will stand in for them lies elsewhere, and the layers placed so far are theirs, too.
                self._batch, self._placed = None, 0
                raise
            self._place(range(self._placed, self._end_of(wave)))

    def place_resident(self) -> None:
        """Place everything now if nothing has to be loaded: a GPU then has work while the pass is being issued."""
        if self._load.resident:
            self.place_all()

    @property
    def begun(self) -> bool:
        """True once something was placed."""
        return self._placed > 0

    def place_all(self) -> None:
        """Have everything in the slabs. Raises ChunksLost."""
        self.place_through(len(self._slots.cache.layers) - 1)

    def _end_of(self, wave: int) -> int:
        """The layer behind what that wave brings. A load of which nothing was on disk knows of no layers: its only wave
        is all there is.
        """
        return len(self._slots.cache.layers) if wave == len(self._load.cuts) - 1 else self._load.cuts[wave]

    def _place(self, layers: range) -> None:
        with torch.inference_mode():
            if self._slots.target is not None:
                self._launch(layers, self._slots.target)
            for index, place in enumerate(self._placements):
                for layer in self._by_reference(index, layers):
                    place_layer(layer, place, self._chunk(index), self._slots.tables, self._slots.cache)
        self._placed = layers.stop

    def _look_up(self) -> None:
        """Work out where everything is, once, for all layers, and send it while chunks are still on their way.

        A chunk that has no place yet is lost: waiting says so.
        """
        target = self._slots.target
        known = all(item.given is not None or item.buffer is not None for item in self._load.items)
        if self._batch is None and target is not None and self._placements and known:
            with torch.inference_mode():
                self._batch = self._whereabouts(target)

    def _launch(self, layers: range, target: Target) -> None:
        """Place what is int8 by the kernel."""
        from desk_rag.kv.kernels import place_chunks

        if not self._placements:
            return
        assert self._batch is not None, "looked up before waiting, and nothing was missing since"
        place_chunks.launch(self._batch, target, slice(layers.start, layers.stop))

    def _whereabouts(self, target: Target) -> Batch:
        from desk_rag.kv.kernels import place_chunks

        loaded, given = [], []
        for index, (item, place) in enumerate(zip(self._load.items, self._placements, strict=True)):
            if item.given is not None:
                given.append(index)
                continue
            assert item.layout is not None and item.buffer is not None
            assert item.layout.num_tokens == place.num_tokens, "plan and chunk differ in length"
            loaded.append(place_chunks.Loaded(item.layout, item.buffer.data, place.position, place.slot))
        if not given:
            return place_chunks.batch_of_payloads(loaded, target)
        rows = np.zeros((len(target.places), len(self._placements), place_chunks.NUM_FIELDS), dtype=np.int64)
        if loaded:
            others = [index for index in range(len(self._placements)) if index not in given]
            rows[:, others] = place_chunks.rows_of_payloads(loaded, target)
        for index in given:
            place, chunk = self._placements[index], self._chunk(index)
            assert chunk.num_tokens == place.num_tokens, "plan and chunk differ in length"
            for layer, coded in enumerate(chunk.layers):
                if isinstance(coded, Int8Layer):
                    rows[layer, index] = place_chunks.row_of(coded, target, layer, place.position, place.slot)
        return place_chunks.batch_of_rows(rows, target)

    def _by_reference(self, index: int, layers: range) -> Sequence[int]:
        """What the kernel leaves of a chunk."""
        item = self._load.items[index]
        if self._slots.target is None:
            return layers
        if item.given is not None:
            return [layer for layer in layers if not isinstance(item.given.layers[layer], Int8Layer)]
        assert item.layout is not None
        return () if item.layout.all_int8 else [layer for layer in layers if not item.layout.is_int8[layer]]

    def _chunk(self, index: int) -> QuantizedKV:
        given = self._load.items[index].given
        if given is not None:
            return given
        if index not in self._chunks:
            self._chunks[index] = self._load.quantized(index)
        return self._chunks[index]


@contextmanager
def layerwise(
    model: LanguageModel, load: Load, plan: StitchPlan, prefix: PrefixKV | None, slots: Slots
) -> Iterator[None]:
    """While open, a forward pass over the slots' cache finds prefix and chunks in it, each layer once it is loaded.

    None for `prefix` says that it lies there already. The pass raises ChunksLost if a chunk is; the cache must then be
    filled again. Open it for the question's first pass only: when it is left, everything has been placed.
    """
    if prefix is not None:
        prefix.write_to(slots.cache)
    slots.cache.set_length(plan.num_slots)
    placer = Placer(load, plan, slots)

    def before(layer: int) -> Any:
        def place(_module: torch.nn.Module, _inputs: Any) -> None:
            placer.place_through(layer)

        return place

    with ExitStack() as stack:
        for index, module in enumerate(model.decoder_layers):
            stack.callback(module.register_forward_pre_hook(before(index)).remove)
        yield
        # Were a pass to go round the layers' modules, it would have read slabs that nobody had filled.
        assert placer.begun, "the forward pass did not call the decoder's layers"
        placer.place_all()
