"""Which kernels this process may use: asked once per device, proven by a small run, never assumed.

Triton is optional, needs a GPU it knows and a C compiler, and a kernel compiled wrongly would give wrong answers in
silence. So the first question costs one small launch whose result is compared with the torch reference; any failure
means that the reference is used from then on, slower and right.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from desk_rag.kv.cache import SlabLayer
from desk_rag.kv.quant import dequantize_layer, group_span
from desk_rag.kv.rope import RotaryTables, rotate_into
from desk_rag.kv.types import Int8Layer, QuantizedKV

if TYPE_CHECKING:
    from desk_rag.kv.cache import SlabCache
    from desk_rag.kv.stitch import Placement

_log = logging.getLogger(__name__)
_TOLERANCE = 1e-5
_LARGE_GPUS = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
"""Compute capabilities."""
_LAZY_TOLERANCE = 2e-2
"""In bf16, over keys so large that one token has nearly all the weight."""


class PlaceGroup(Protocol):
    """Writes int8 layers of all chunks into a cache in one launch; see `rope_triton.place_group`."""

    def __call__(
        self,
        layers: Iterable[int],
        placements: Sequence[Placement],
        chunks: Sequence[QuantizedKV],
        tables: RotaryTables,
        cache: SlabCache,
    ) -> None: ...


def is_large(device: torch.device) -> bool:
    """True for data-centre GPUs, whose multiprocessors have 160 KiB of shared memory and more."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in _LARGE_GPUS


def available(device: torch.device) -> bool:
    """True if `rope_triton` can be imported and used for caches on `device`."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    return _proven(torch.cuda.current_device() if device.index is None else device.index)


def place_group(device: torch.device) -> PlaceGroup | None:
    """The kernel that places int8 layers on `device`, or None where the torch reference has to do it."""
    if not available(device):
        return None
    from desk_rag.kv import rope_triton

    return rope_triton.place_group


def attends(device: torch.device) -> bool:
    """True if `lazy_triton` can be used for queries on `device`."""
    return available(device) and _proven(torch.cuda.current_device() if device.index is None else device.index, True)


@functools.cache
def _proven(index: int, lazy: bool = False) -> bool:
    """True if the kernel (A, or the lazy one) gives on this GPU what the reference gives."""
    try:
        if (_attends_alike if lazy else _agrees)(torch.device("cuda", index)):
            return True
        _log.warning("The Triton kernel disagrees with its reference on this GPU; the reference is used.")
    except Exception as error:  # a missing compiler, an old driver and an unknown GPU each raise a type of their own
        _log.warning("Triton cannot be used here (%s: %s); the reference is used.", type(error).__name__, error)
    return False


def _some_layer(heads: int, tokens: int, dim: int, groups: int, device: torch.device) -> Int8Layer:
    generator = torch.Generator().manual_seed(tokens)
    return Int8Layer(
        keys=torch.randint(-127, 128, (heads, tokens, dim), dtype=torch.int8, generator=generator).to(device),
        key_scale=torch.rand(heads, groups, dim, generator=generator).to(device, torch.float16),
        key_zero=torch.randn(heads, groups, dim, generator=generator).to(device, torch.float16),
        values=torch.randint(-127, 128, (heads, tokens, dim), dtype=torch.int8, generator=generator).to(device),
        value_scale=torch.rand(heads, tokens, generator=generator).to(device, torch.float16),
    )


def _some_tables(positions: int, dim: int, device: torch.device) -> RotaryTables:
    angle = torch.outer(torch.arange(float(positions)), 0.5 ** torch.arange(dim // 2.0)).to(device)
    return RotaryTables((angle.cos(),), (angle.sin(),), (0,))


def _attends_alike(device: torch.device) -> bool:
    """Four launches, so that the count by which the last program knows itself is used again; of the head size that
    needs most of the chip."""
    from desk_rag.kv.lazy_attention import LazyContext, attend
    from desk_rag.kv.lazy_triton import LazyKernel
    from desk_rag.kv.stitch import plan

    heads, dim, sizes = 2, 128, (37, 200, 1)
    chunks = tuple(QuantizedKV((_some_layer(heads, tokens, dim, 1, device),)) for tokens in sizes)
    context = LazyContext(chunks, plan(3, sizes).placements, _some_tables(256, dim, device))
    kernel = LazyKernel.of(context, heads, dim)
    near = []
    for count in (1, 1, 12, 12):
        generator = torch.Generator().manual_seed(count)
        query, keys, values = (
            torch.randn(1, number, tokens, dim, generator=generator).to(device, torch.bfloat16) / 8
            for number, tokens in ((3 * heads, count), (heads, 50), (heads, 50))
        )
        expected = attend(0, query, keys, values, dim**-0.5, context).float()
        got = kernel(0, query, keys, values, dim**-0.5).float()
        near.append(float((got - expected).norm() / expected.norm()))
    return max(near) <= _LAZY_TOLERANCE


def _agrees(device: torch.device) -> bool:
    from desk_rag.kv import rope_triton

    heads, tokens, dim, groups = 2, 37, 64, 2
    coded = _some_layer(heads, tokens, dim, groups, device)
    assert group_span(tokens, 32) * groups >= tokens
    tables = _some_tables(tokens + 1, dim, device)
    slots = SlabLayer(*(torch.zeros(1, heads, tokens, dim, device=device) for _ in range(2)))
    target = rope_triton.Target.of(tables, [slots])
    row = rope_triton.row_of(coded, target, 0, position=1, slot=0)
    rope_triton.launch(rope_triton.batch_of_rows(row[None, None], target), target)
    keys, values = dequantize_layer(coded)
    turned = torch.empty_like(keys)
    rotate_into(keys, tables.cos[0][1:], tables.sin[0][1:], turned)
    largest = max(keys.abs().max().item(), values.abs().max().item())
    near = [(slots.key_slab[0] - turned).abs().max().item(), (slots.value_slab[0] - values).abs().max().item()]
    return max(near) <= _TOLERANCE * largest
