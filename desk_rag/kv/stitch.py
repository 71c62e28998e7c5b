"""Stitch the shared prefix and chunk KVs into one cache: dequantize, rotate, write in place.

Slots and positions come from a `StitchPlan`, so the torch path, the kernel and the tests follow the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import Placement, Positions, StitchPlan
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.quant import dequantize_into, move_layer
from desk_rag.kv.rope import RotaryTables, rotate_into
from desk_rag.kv.types import Int8Layer, LayerKV, QuantizedKV
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
) -> StitchedCache:
    """Write prefix and chunks into `cache` as `stitch_plan` says.

    Works layer by layer, so that temporaries stay in the processor's cache. Raises UnsupportedModel for ablation
    positions on models with sliding-window layers, whose masks require slot and position to be equal.
    """
    if stitch_plan.positions is not Positions.REORDERED and has_sliding_layers(model):
        raise UnsupportedModel(
            f"Position scheme '{stitch_plan.positions.value}' is not exact for models with sliding-window layers."
        )
    assert stitch_plan.num_slots <= cache.capacity, "slab too small"
    prefix.write_to(cache)
    with torch.inference_mode():
        remaining_layers = _place_by_kernel(stitch_plan, chunks, tables, cache)
        for layer in remaining_layers:
            place_layers(layer, stitch_plan.placements, [chunk.layers[layer] for chunk in chunks], tables, cache)
    cache.set_length(stitch_plan.num_slots)
    return StitchedCache(cache, stitch_plan)


def _place_by_kernel(
    stitch_plan: StitchPlan, chunks: Sequence[QuantizedKV], tables: RotaryTables, cache: SlabCache
) -> list[int]:
    """Place all int8 layers of all chunks in one kernel launch; returns the layers that remain."""
    # Imported here because it checks the kernel against the reference in `quant` and `rope` before first use.
    from desk_rag.kv.kernels.availability import place_group

    layers = list(range(len(cache.layers)))
    place = place_group(cache.device)
    if place is None or not chunks or tables.interleaved:
        return layers
    int8_layers = [layer for layer in layers if all(isinstance(chunk.layers[layer], Int8Layer) for chunk in chunks)]
    on_device = [QuantizedKV(tuple(move_layer(layer, cache.device) for layer in chunk.layers)) for chunk in chunks]
    place(int8_layers, stitch_plan.placements, on_device, tables, cache)
    return sorted(set(layers) - set(int8_layers))


def place_layer(layer: int, placement: Placement, chunk: QuantizedKV, tables: RotaryTables, cache: SlabCache) -> None:
    """Dequantize one layer of one chunk, rotate its keys to their positions, write both into the cache."""
    place_layers(layer, [placement], [chunk.layers[layer]], tables, cache)


def place_layers(
    layer: int, placements: Sequence[Placement], chunk_layers: Sequence[LayerKV], tables: RotaryTables, cache: SlabCache
) -> None:
    """Place the same layer of several chunks; contiguous chunks are rotated together.

    A rotation is ten torch calls whatever its length; for a dozen chunks the calls would cost more than the arithmetic.
    """
    for run in _contiguous_runs(placements):
        first = placements[run.start]
        length = sum(placements[index].num_tokens for index in run)
        key_slots, value_slots = cache.write(layer, first.slot, length)
        # Dequantized in fp32 and rotated with one rounding at the end, as the kernel does it.
        keys = torch.empty(key_slots.shape, dtype=torch.float32, device=key_slots.device)
        start = 0
        for index in run:
            chunk_layer, count = chunk_layers[index], placements[index].num_tokens
            assert chunk_layer.keys.shape[1] == count, "plan and chunk differ in length"
            tokens = slice(start, start + count)
            dequantize_into(move_layer(chunk_layer, key_slots.device), keys[:, tokens], value_slots[:, tokens])
            start += count
        table = tables.table_of_layer[layer]
        positions = slice(first.position, first.position + length)
        cos, sin = tables.cos[table][positions], tables.sin[table][positions]
        rotate_into(keys, cos, sin, key_slots, interleaved=tables.interleaved)


def _contiguous_runs(placements: Sequence[Placement]) -> list[range]:
    """Ranges of placements whose slots and positions both continue without a gap."""
    starts = [0]
    for index in range(1, len(placements)):
        previous, current = placements[index - 1], placements[index]
        ends = (previous.slot + previous.num_tokens, previous.position + previous.num_tokens)
        if ends != (current.slot, current.position):
            starts.append(index)
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(placements)], strict=True)]


def has_sliding_layers(model: LanguageModel) -> bool:
    """True if any layer of `model` uses sliding-window attention."""
    config = model.module.config
    types = getattr(config, "layer_types", None)
    if types:
        return "sliding_attention" in types
    return getattr(config, "sliding_window", None) is not None
