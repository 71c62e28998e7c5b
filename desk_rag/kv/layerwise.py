"""The question's forward pass and the loading of its context at the same time: each layer waits for its own wave.

Knows loads, plans and slabs; knows no file and no question. Right before the first layer of a wave runs, the wave's
layers of all chunks are placed into the slabs: by the kernel in one launch where there is one, else by the reference.
"""

from __future__ import annotations

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


class Placer:
    """Puts a load's chunks where the plan wants them, wave by wave. Made per answer."""

    def __init__(self, load: Load, plan: StitchPlan, tables: RotaryTables, cache: SlabCache) -> None:
        assert len(load.items) == len(plan.placements), "plan and load differ in chunks"
        assert plan.num_slots <= cache.capacity, "slab too small"
        self._load, self._placements, self._tables, self._cache = load, plan.placements, tables, cache
        self._target = _target(tables, cache)
        self._chunks: dict[int, QuantizedKV] = {}
        self._done = 0

    def place_through(self, layer: int) -> None:
        """Have every layer up to and with `layer` in the slabs, in the current stream's order. Raises ChunksLost."""
        while self._done < len(self._load.cuts) and (layers := self._layers_of(self._done)).start <= layer:
            self._load.wait(self._done)
            with torch.inference_mode():
                placed = self._launch(layers, self._target) if self._target is not None else set()
                for each in layers:
                    for index, placement in enumerate(self._placements):
                        if (each, index) not in placed:
                            place_layer(each, placement, self._chunk(index), self._tables, self._cache)
            self._done += 1

    @property
    def begun(self) -> bool:
        """True once something was placed."""
        return self._done > 0

    def place_all(self) -> None:
        """Have everything in the slabs. Raises ChunksLost."""
        self.place_through(len(self._cache.layers) - 1)

    def _layers_of(self, wave: int) -> range:
        """What that wave brings. A load of which nothing was on disk knows of no layers: its only wave is all there is.
        """
        last = wave == len(self._load.cuts) - 1
        return range(self._load.layers_of(wave).start, len(self._cache.layers)) if last else self._load.layers_of(wave)

    def _launch(self, layers: range, target: Target) -> set[tuple[int, int]]:
        """Place what is int8 by the kernel; returns (layer, chunk) of what was placed."""
        from desk_rag.kv import rope_triton

        placed: set[tuple[int, int]] = set()
        parts = []
        for index, (item, place) in enumerate(zip(self._load.items, self._placements, strict=True)):
            if item.given is not None:
                coded = {layer: item.given.layers[layer] for layer in layers}
                for layer, one in coded.items():
                    if isinstance(one, Int8Layer):
                        parts.append(rope_triton.rows_of(one, target, layer, place.position, place.slot))
                        placed.add((layer, index))
                continue
            assert item.layout is not None and item.buffer is not None and item.file is not None
            assert item.file.header.num_tokens == place.num_tokens, "plan and chunk differ in length"
            data = item.buffer.data
            parts.append(rope_triton.rows_of_payload(item.layout, data, target, layers, place.position, place.slot))
            placed.update((layer, index) for layer in layers if item.layout.is_int8[layer])
        if parts:  # none where all chunks were put in by the caller and the wave's layers are kept unquantised
            rope_triton.launch(np.concatenate(parts), target)
        return placed

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
