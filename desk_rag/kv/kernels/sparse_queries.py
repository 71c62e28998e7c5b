"""Choose the Triton kernel for attention of selected rows, once it agreed with torch on this GPU.

The kernel is in `kernels.sparse_queries_triton`, the reference in `forward.sparse_attention`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from desk_rag.kv.kernels.proof import gpu_index, proven

FEW = 64
"""Row count up to which the kernel, parallel over rows and heads only, leaves most of a GPU idle."""
_TOLERANCE = 2e-2
"""Absolute tolerance for numbers of size 1 in half precision."""


class AttendRows(Protocol):
    """Type of `kernels.sparse_queries_triton.attend`: attention of selected rows."""

    def __call__(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: torch.Tensor,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor: ...


def attend_for(query: torch.Tensor) -> AttendRows | None:
    """The kernel for query [1, heads, R, D], or None if the reference is as fast or must be used."""
    half = query.dtype in (torch.bfloat16, torch.float16)
    if query.device.type != "cuda" or not half or query.shape[2] <= FEW:
        return None
    if not proven("recomputed rows", _agrees, gpu_index(query.device)):
        return None
    from desk_rag.kv.kernels import sparse_queries_triton

    return sparse_queries_triton.attend


def _agrees(device: torch.device) -> bool:
    from desk_rag.kv.kernels import sparse_queries_triton

    generator = torch.Generator().manual_seed(1)
    heads, kv_heads, total, dim = 4, 2, 500, 64
    slots = torch.arange(3, total, 3, device=device)
    count = len(slots)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, torch.float16)

    query, keys, values = random(1, heads, count, dim), random(1, kv_heads, total, dim), random(1, kv_heads, total, dim)
    behind = slots[:, None] - torch.arange(total, device=device)[None]
    errors = []
    # Everything runs twice, because later launches take another path (see `compiled_launch`).
    for window, visible in ((None, behind >= 0), (64, (behind >= 0) & (behind < 64))) * 2:
        actual = sparse_queries_triton.attend(query, keys, values, slots, dim**-0.5, window).float()
        wide, wide_values = (t.float().repeat_interleave(heads // kv_heads, 1) for t in (keys, values))
        expected = scaled_dot_product_attention(query.float(), wide, wide_values, attn_mask=visible, scale=dim**-0.5)
        errors.append((actual - expected.transpose(1, 2)).abs().max().item())
    return max(errors) <= _TOLERANCE
