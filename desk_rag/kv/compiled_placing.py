"""Place a layer of a chunk by the compiled kernels; the reference is `stitch.place_layer`."""

from __future__ import annotations

import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import Placement
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.types import Int8Layer, LayerKV
from desk_rag.model.embedded import kernels

_WIDTH = 32
"""Heads are as wide as a multiple of this."""


def place(layer: int, placement: Placement, chunk: LayerKV, tables: RotaryTables, cache: SlabCache) -> bool:
    """Write an int8 layer into its slots of a cache in fp32 on the CPU; False, with nothing written, for others."""
    library = kernels.library()
    slab = cache.layers[layer]
    keys = slab.key_slab
    if library is None or not isinstance(chunk, Int8Layer) or keys.dtype is not torch.float32 or not _is_here(keys):
        return False
    heads, tokens, width = chunk.keys.shape
    parts = chunk.keys, chunk.key_scale, chunk.key_zero, chunk.values, chunk.value_scale
    table = tables.table_of_layer[layer]
    cos, sin = tables.cos[table], tables.sin[table]
    whole = width % _WIDTH == 0 and 2 * cos.shape[1] == width and not tables.interleaved
    if not whole or not all(map(_is_here, (*parts, slab.value_slab, cos, sin))):
        return False
    assert placement.slot + tokens <= keys.shape[2], "slab too small: the engine plans its capacity"
    assert placement.position + tokens <= tables.num_positions
    groups, first = chunk.key_scale.shape[1], 4 * width * placement.slot
    angles = slice(placement.position, placement.position + tokens)
    library.place_chunk(
        *(part.data_ptr() for part in parts), heads, tokens, width, groups, -(-tokens // groups),
        cos[angles].data_ptr(), sin[angles].data_ptr(), keys.data_ptr() + first, slab.value_slab.data_ptr() + first,
        keys.shape[2],
    )  # fmt: skip
    return True


def _is_here(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()
