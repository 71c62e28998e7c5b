"""The question's forward pass and the loading of its context at the same time: each layer waits for its own wave.

Knows loads, plans and slabs; knows no file and no question. Right before the first layer of a wave runs, the wave's
layers of all chunks are placed into the slabs: by the kernel in one launch where there is one, else by the reference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from desk_rag.kv import kernels
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.load import Load
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import StitchPlan, place_layer
from desk_rag.kv.types import Int8Layer, QuantizedKV
from desk_rag.model import LanguageModel

if TYPE_CHECKING:
    from desk_rag.kv.rope_triton import Target

_AT_FIRST = 2
"""Layers: enough work for a GPU until the other layers' rows are known."""


class Placer:
    """Puts a load's chunks where the plan wants them, wave by wave. Made per answer."""

    def __init__(self, load: Load, plan: StitchPlan, tables: RotaryTables, cache: SlabCache) -> None:
        assert len(load.items) == len(plan.placements), "plan and load differ in chunks"
        assert plan.num_slots <= cache.capacity, "slab too small"
        self._load, self._placements, self._tables, self._cache = load, plan.placements, tables, cache
        self._target = _target(tables, cache)
        self._chunks: dict[int, QuantizedKV] = {}
        self._placed = 0
        """Layers."""

    def place_through(self, layer: int) -> None:
        """Have every layer up to and with `layer` in the slabs, in the current stream's order. Raises ChunksLost.

        Of what has come already only the first layers are placed at first: the rest is worked out while a GPU computes.
        """
        while self._placed <= layer:
            wave = bisect_right(self._load.cuts, self._placed, hi=len(self._load.cuts) - 1)
            self._load.wait(wave)
            end = self._end_of(wave)
            if self._target is not None and not self._placed:
                end = min(end, max(_AT_FIRST, layer + 1))
            layers = range(self._placed, end)
            with torch.inference_mode():
                left = self._launch(layers, self._target) if self._target is not None else self._every(layers)
                for each, index in left:
                    place_layer(each, self._placements[index], self._chunk(index), self._tables, self._cache)
            self._placed = end

    @property
    def begun(self) -> bool:
        """True once something was placed."""
        return self._placed > 0

    def place_all(self) -> None:
        """Have everything in the slabs. Raises ChunksLost."""
        self.place_through(len(self._cache.layers) - 1)

    def _end_of(self, wave: int) -> int:
        """The layer behind what that wave brings. A load of which nothing was on disk knows of no layers: its only wave
        is all there is.
        """
        return len(self._cache.layers) if wave == len(self._load.cuts) - 1 else self._load.cuts[wave]

    def _every(self, layers: range) -> list[tuple[int, int]]:
        return [(layer, index) for layer in layers for index in range(len(self._placements))]

    def _launch(self, layers: range, target: Target) -> list[tuple[int, int]]:
        """Place what is int8 by the kernel; returns the (layer, chunk)s that are not."""
        from desk_rag.kv import rope_triton

        left: list[tuple[int, int]] = []
        loaded, parts = [], []
        for index, (item, place) in enumerate(zip(self._load.items, self._placements, strict=True)):
            if item.given is not None:
                for layer in layers:
                    one = item.given.layers[layer]
                    if isinstance(one, Int8Layer):
                        parts.append(rope_triton.rows_of(one, target, layer, place.position, place.slot))
                    else:
                        left.append((layer, index))
                continue
            assert item.layout is not None and item.buffer is not None and item.file is not None
            assert item.file.header.num_tokens == place.num_tokens, "plan and chunk differ in length"
            loaded.append(rope_triton.Loaded(item.layout, item.buffer.data, place.position, place.slot))
            if not item.layout.all_int8:
                left.extend((layer, index) for layer in layers if not item.layout.is_int8[layer])
        if loaded:
            parts.append(rope_triton.rows_of_payloads(loaded, target, layers))
        if parts:
            rope_triton.launch(parts[0] if len(parts) == 1 else np.concatenate(parts), target)
        return left

    def _chunk(self, index: int) -> QuantizedKV:
        given = self._load.items[index].given
        if given is not None:
            return given
        if index not in self._chunks:
            self._chunks[index] = self._load.quantized(index)
        return self._chunks[index]


@contextmanager
def layerwise(
    model: LanguageModel, load: Load, plan: StitchPlan, prefix: PrefixKV | None, tables: RotaryTables, cache: SlabCache
) -> Iterator[None]:
    """While open, a forward pass over `cache` finds prefix and chunks in it, each layer as soon as it is loaded.

    None for `prefix` says that it lies there already. The pass raises ChunksLost if a chunk is; the cache must then be
    filled again. Open it for the question's first pass only: when it is left, everything has been placed.
    """
    if prefix is not None:
        prefix.write_to(cache)
    cache.set_length(plan.num_slots)
    placer = Placer(load, plan, tables, cache)

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


def _target(tables: RotaryTables, cache: SlabCache) -> Target | None:
    """What the kernel needs to know of `cache`, or None where the reference has to do the work."""
    if not kernels.available(cache.layers[0].key_slab.device):
        return None
    from desk_rag.kv import rope_triton

    return rope_triton.Target.of(tables, cache.layers)
