"""Stitch the shared prefix and chunk KVs into one cache: dequantize, rotate, write in place.

Slots and positions come from a `StitchPlan`, so the torch path, the kernel and the tests follow the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from desk_rag.kv import compiled_placing
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import Placement, StitchPlan
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.quant import dequantize_into, move_layer
from desk_rag.kv.rope import RotaryTables, rotate_into
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.types import Int8Layer, QuantizedKV
from desk_rag.model.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class StitchedCache:
    """A filled cache and its plan: the question can be prefilled behind it."""

    cache: SlabCache
    plan: StitchPlan


def stitch(
    model: LanguageModel,
    stitch_plan: StitchPlan,
    prefix: PrefixKV,
    chunks: Sequence[QuantizedKV],
    tables: RotaryTables,
    cache: SlabCache,
    shift: PlaceShift | None = None,
) -> StitchedCache:
    """Write prefix and chunks into `cache` as `stitch_plan` says, and add `shift` to the chunks.

    Works layer by layer, so that temporaries stay in the processor's cache.
    """
    assert stitch_plan.num_slots <= cache.capacity, "slab too small"
    prefix.write_to(cache)
    with torch.inference_mode():
        shifts = None if shift is None else shift.of_chunks(stitch_plan)
        remaining_layers = _place_by_kernel(stitch_plan, chunks, tables, cache, shifts)
        for layer in remaining_layers:
            for index, (placement, chunk) in enumerate(zip(stitch_plan.placements, chunks, strict=True)):
                place_layer(layer, placement, chunk, tables, cache, None if shifts is None else shifts[layer, index])
    cache.set_length(stitch_plan.num_slots)
    return StitchedCache(cache, stitch_plan)


def _place_by_kernel(
    stitch_plan: StitchPlan, chunks: Sequence[QuantizedKV], tables: RotaryTables, cache: SlabCache,
    shifts: torch.Tensor | None,
) -> list[int]:  # fmt: skip
    """Place all int8 layers of all chunks in one kernel launch; returns the layers that remain."""
    # Imported here because it checks the kernel against the reference in `quant` and `rope` before first use.
    from desk_rag.kv.kernels.availability import place_group

    layers = list(range(len(cache.layers)))
    place = place_group(cache.device, shifted=shifts is not None)
    if place is None or not chunks or tables.interleaved:
        return layers
    int8_layers = [layer for layer in layers if all(isinstance(chunk.layers[layer], Int8Layer) for chunk in chunks)]
    on_device = [QuantizedKV(tuple(move_layer(layer, cache.device) for layer in chunk.layers)) for chunk in chunks]
    place(int8_layers, stitch_plan.placements, on_device, tables, cache, shifts)
    return sorted(set(layers) - set(int8_layers))


def place_layer(
    layer: int, placement: Placement, chunk: QuantizedKV, tables: RotaryTables, cache: SlabCache,
    shift: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Dequantize one layer of one chunk, rotate its keys to their positions, write both into the cache.

    `shift` [2, H, D] is added to keys (before rotation) and values. Chunk by chunk: small products stay on the calling
    thread, which other programs cannot hold up (bench/LOG.md, "Placing chunks on a CPU").
    """
    chunk_layer = chunk.layers[layer]
    assert chunk_layer.keys.shape[1] == placement.num_tokens, "plan and chunk differ in length"
    if shift is None and compiled_placing.place(layer, placement, chunk_layer, tables, cache):
        return
    key_slots, value_slots = cache.write(layer, placement.slot, placement.num_tokens)
    # Dequantized in fp32 and rotated with one rounding at the end, as the kernel does it.
    keys = torch.empty(key_slots.shape, dtype=torch.float32, device=key_slots.device)
    values = value_slots if shift is None else torch.empty_like(keys)
    dequantize_into(move_layer(chunk_layer, key_slots.device), keys, values)
    if shift is not None:
        keys += shift[0, :, None]
        value_slots.copy_(values.add_(shift[1, :, None]))
    table = tables.table_of_layer[layer]
    positions = slice(placement.position, placement.position + placement.num_tokens)
    cos, sin = tables.cos[table][positions], tables.sin[table][positions]
    rotate_into(keys, cos, sin, key_slots, interleaved=tables.interleaved)


def has_sliding_layers(model: LanguageModel) -> bool:
    """True if any layer of `model` uses sliding-window attention."""
    config = model.module.config
    types = getattr(config, "layer_types", None)
    if types:
        return "sliding_attention" in types
    return getattr(config, "sliding_window", None) is not None
