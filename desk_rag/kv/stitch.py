"""Shared prefix + chunk KVs become one cache: positions decided once as data, then dequantised and rotated in place.

Knows positions and slabs; knows no store and no question. The plan is pure data, so that the torch path, the kernel and
the tests all read the same decision.
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
    """A cache that is ready for the question."""

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
    """Fill `cache` by the plan, layer by layer so that temporaries stay in the processor's cache.

    Raises UnsupportedModel for the ablation positions on models with sliding layers, whose masks count slots.
    """
    if stitch_plan.positions is not Positions.REORDERED and has_sliding_layers(model):
        raise UnsupportedModel(
            f"'{stitch_plan.positions.value}' positions are not exact for models with sliding layers."
        )
    assert stitch_plan.num_slots <= cache.capacity, "slab too small"
    prefix.write_to(cache)
    with torch.inference_mode():
        left = _place_by_kernel(stitch_plan, chunks, tables, cache)
        for layer in left:
            place_layers(layer, stitch_plan.placements, [chunk.layers[layer] for chunk in chunks], tables, cache)
    cache.set_length(stitch_plan.num_slots)
    return StitchedCache(cache, stitch_plan)


def _place_by_kernel(
    stitch_plan: StitchPlan, chunks: Sequence[QuantizedKV], tables: RotaryTables, cache: SlabCache
) -> list[int]:
    """Place what the kernel can do, every int8 layer of every chunk in one launch; returns the layers that are left."""
    # Imported here: `kernels` compares itself with the reference in this module's neighbours before it is used.
    from desk_rag.kv.kernels.availability import place_group

    layers = list(range(len(cache.layers)))
    place = place_group(cache.device)
    if place is None or not chunks:
        return layers
    coded = [layer for layer in layers if all(isinstance(chunk.layers[layer], Int8Layer) for chunk in chunks)]
    here = [QuantizedKV(tuple(move_layer(layer, cache.device) for layer in chunk.layers)) for chunk in chunks]
    place(coded, stitch_plan.placements, here, tables, cache)
    return sorted(set(layers) - set(coded))


def place_layer(layer: int, placement: Placement, chunk: QuantizedKV, tables: RotaryTables, cache: SlabCache) -> None:
    """Dequantise one layer of one chunk, give its keys their positions, write both into the slab."""
    place_layers(layer, [placement], [chunk.layers[layer]], tables, cache)


def place_layers(
    layer: int, placements: Sequence[Placement], coded: Sequence[LayerKV], tables: RotaryTables, cache: SlabCache
) -> None:
    """As `place_layer` for the same layer of several chunks; chunks that lie one after the other are turned together.

    A turn is ten torch calls however many tokens it has; over a dozen chunks the calls cost more than the sums.
    """
    runs = _runs(placements)
    for run in runs:
        first = placements[run.start]
        length = sum(placements[index].num_tokens for index in run)
        key_slots, value_slots = cache.write(layer, first.slot, length)
        # Dequantised in fp32 and rotated with one rounding at the end, as the kernel does it.
        keys = torch.empty(key_slots.shape, dtype=torch.float32, device=key_slots.device)
        at = 0
        for index in run:
            one, count = coded[index], placements[index].num_tokens
            assert one.keys.shape[1] == count, "plan and chunk differ in length"
            here = slice(at, at + count)
            dequantize_into(move_layer(one, key_slots.device), keys[:, here], value_slots[:, here])
            at += count
        table = tables.table_of_layer[layer]
        positions = slice(first.position, first.position + length)
        rotate_into(keys, tables.cos[table][positions], tables.sin[table][positions], key_slots)


def _runs(placements: Sequence[Placement]) -> list[range]:
    """The placements in stretches whose slots and positions both go on without a gap."""
    starts = [0]
    for index in range(1, len(placements)):
        before, now = placements[index - 1], placements[index]
        ends = (before.slot + before.num_tokens, before.position + before.num_tokens)
        if ends != (now.slot, now.position):
            starts.append(index)
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(placements)], strict=True)]


def has_sliding_layers(model: LanguageModel) -> bool:
    config = model.module.config
    types = getattr(config, "layer_types", None)
    if types:
        return "sliding_attention" in types
    return getattr(config, "sliding_window", None) is not None
