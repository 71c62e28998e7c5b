"""Choose the kernel that places int8 chunks once it agreed with the reference; make random chunk KV to check it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from desk_rag.kv.cache import SlabLayer
from desk_rag.kv.kernels.proof import gpu_index, proven
from desk_rag.kv.quant import dequantize_layer, group_span
from desk_rag.kv.rope import RotaryTables, rotate_into
from desk_rag.kv.types import Int8Layer, QuantizedKV

if TYPE_CHECKING:
    from desk_rag.kv.cache import SlabCache
    from desk_rag.kv.positions import Placement

_TOLERANCE = 1e-5
_LARGE_GPUS = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
"""Compute capabilities of data-centre GPUs."""


class PlaceGroup(Protocol):
    """Type of `kernels.place_chunks.place_group`: writes int8 layers of all chunks in one launch."""

    def __call__(
        self,
        layers: Iterable[int],
        placements: Sequence[Placement],
        chunks: Sequence[QuantizedKV],
        tables: RotaryTables,
        cache: SlabCache,
        shifts: torch.Tensor | None = None,
    ) -> None: ...


def is_large(device: torch.device) -> bool:
    """True for data-centre GPUs, with at least 160 KiB of shared memory per multiprocessor."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in _LARGE_GPUS


def available(device: torch.device, *, shifted: bool = False) -> bool:
    """True if `kernels.place_chunks` can be imported and used for caches on `device`, with or without shifts."""
    return device.type == "cuda" and proven("placing chunks", _agrees, gpu_index(device), shifted)


def place_group(device: torch.device, *, shifted: bool = False) -> PlaceGroup | None:
    """The kernel that places int8 layers on `device`, or None if the torch reference is to be used."""
    if not available(device, shifted=shifted):
        return None
    from desk_rag.kv.kernels import place_chunks

    return place_chunks.place_group


def some_layer(heads: int, tokens: int, dim: int, groups: int, device: torch.device) -> Int8Layer:
    """Create a layer of random int8 chunk KV for a check; equal token counts give equal layers."""
    generator = torch.Generator().manual_seed(tokens)
    return Int8Layer(
        keys=torch.randint(-127, 128, (heads, tokens, dim), dtype=torch.int8, generator=generator).to(device),
        key_scale=torch.rand(heads, groups, dim, generator=generator).to(device, torch.float16),
        key_zero=torch.randn(heads, groups, dim, generator=generator).to(device, torch.float16),
        values=torch.randint(-127, 128, (heads, tokens, dim), dtype=torch.int8, generator=generator).to(device),
        value_scale=torch.rand(heads, tokens, generator=generator).to(device, torch.float16),
    )


def some_tables(positions: int, dim: int, device: torch.device) -> RotaryTables:
    """Create rotary tables without scaling for a check."""
    angle = torch.outer(torch.arange(float(positions)), 0.5 ** torch.arange(dim // 2.0)).to(device)
    return RotaryTables((angle.cos(),), (angle.sin(),), (0,))


def _agrees(device: torch.device, shifted: bool) -> bool:
    from desk_rag.kv.kernels import place_chunks

    heads, tokens, dim, groups = 2, 37, 64, 2
    coded = some_layer(heads, tokens, dim, groups, device)
    assert group_span(tokens, 32) * groups >= tokens
    tables = some_tables(tokens + 1, dim, device)
    slots = SlabLayer(*(torch.zeros(1, heads, tokens, dim, device=device) for _ in range(2)))
    target = place_chunks.Target.of(tables, [slots])
    row = place_chunks.row_of(coded, target, 0, position=1, slot=0)
    shift = torch.randn(2, heads, dim, generator=torch.Generator().manual_seed(1)).to(device)
    shifts = shift[None, None] if shifted else None
    place_chunks.launch(place_chunks.batch_of_rows(row[None, None], target), target, shifts=shifts)
    keys, values = dequantize_layer(coded)
    if shifted:
        keys, values = keys + shift[0, :, None], values + shift[1, :, None]
    rotated = torch.empty_like(keys)
    rotate_into(keys, tables.cos[0][1:], tables.sin[0][1:], rotated)
    largest = max(keys.abs().max().item(), values.abs().max().item())
    errors = [(slots.key_slab[0] - rotated).abs().max().item(), (slots.value_slab[0] - values).abs().max().item()]
    return max(errors) <= _TOLERANCE * largest
