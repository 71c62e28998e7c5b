"""Choose the implementation that attends to int8 chunks: the kernel once it is proven, else the reference."""

from __future__ import annotations

import functools

import torch

from desk_rag.kv.kernels.availability import available, some_layer, some_tables
from desk_rag.kv.kernels.proof import gpu_index, proven
from desk_rag.kv.lazy.reference import Attend, LazyContext, attend
from desk_rag.kv.positions import plan
from desk_rag.kv.types import QuantizedKV
from desk_rag.model.language_model import LanguageModel

_TOLERANCE = 2e-2
"""Tolerance in bf16, over keys so large that one token has nearly all the weight."""


def implementation(context: LazyContext, model: LanguageModel) -> Attend:
    """The kernel where this process may use it, else the reference."""
    if attends(model.device):
        from desk_rag.kv.lazy.launcher import LazyKernel

        return LazyKernel.of(context, model.spec.num_kv_heads, model.spec.head_dim)
    return functools.partial(attend, context=context)


def attends(device: torch.device) -> bool:
    """True if the kernel can be used for queries on `device`."""
    return available(device) and proven("attention over int8 chunks", _attends_alike, gpu_index(device))


def _attends_alike(device: torch.device) -> bool:
    """Four launches, so that the count by which the last program knows itself is used again; of the head size that
    needs most of the chip."""
    from desk_rag.kv.lazy.launcher import LazyKernel

    heads, dim, sizes = 2, 128, (37, 200, 1)
    chunks = tuple(QuantizedKV((some_layer(heads, tokens, dim, 1, device),)) for tokens in sizes)
    context = LazyContext(chunks, plan(3, sizes).placements, some_tables(256, dim, device))
    kernel = LazyKernel.of(context, heads, dim)
    near = []
    for count in (1, 1, 12, 12):
        generator = torch.Generator().manual_seed(count)
        query, keys, values = (
            torch.randn(1, number, tokens, dim, generator=generator).to(device, torch.bfloat16) / 8
            for number, tokens in ((3 * heads, count), (heads, 50), (heads, 50))
        )
        expected = attend(0, query, keys, values, dim**-0.5, context).float()
        actual = kernel(0, query, keys, values, dim**-0.5).float()
        near.append(float((actual - expected).norm() / expected.norm()))
    return max(near) <= _TOLERANCE
