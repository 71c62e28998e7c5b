"""The kernel for scattered rows against plain masked attention: in Triton's interpreter, or compiled on a GPU."""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from desk_rag.kv.kernels import sparse_queries_triton
from desk_rag.kv.kernels.sparse_queries_triton import RowsTuning

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = RowsTuning(block=32, tile=32, warps=4, stages=1)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def expected(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    groups = query.shape[1] // keys.shape[1]
    keys, values = (t.float().repeat_interleave(groups, 1) for t in (keys, values))
    behind = slots[:, None] - torch.arange(keys.shape[2], device=slots.device)[None]
    visible = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    out = scaled_dot_product_attention(query.float(), keys, values, attn_mask=visible, scale=scale)
    return out.transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rows", "total", "window"),
    [
        (4, 2, 64, 45, 150, None),
        (3, 1, 48, 1, 70, None),
        (2, 2, 16, 70, 70, None),
        (4, 2, 32, 40, 150, 24),
        (2, 1, 96, 33, 97, 1000),
    ],
)
def test_kernel_equals_masked_attention(
    heads: int, kv_heads: int, dim: int, rows: int, total: int, window: int | None, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(rows + dim)
    slots = torch.randperm(total, generator=generator)[:rows].sort().values
    slots[-1] = total - 1
    query = torch.randn(1, rows, heads, dim, generator=generator).to(DEVICE, dtype).transpose(1, 2)
    # Slots past the last row hold whatever was there; a slab is longer than what is in use.
    slab = torch.full((2, 1, kv_heads, total + 50, dim), float("nan"))
    slab[:, :, :, :total] = torch.randn(2, 1, kv_heads, total, dim, generator=generator) * 2
    keys, values = slab.to(DEVICE, dtype)[:, :, :, :total]
    slots = slots.to(DEVICE)
    got = sparse_queries_triton.attend(query, keys, values, slots, 0.3, window, SMALL).float()
    wanted = expected(query, keys, values, slots, 0.3, window)
    assert got.shape == wanted.shape == (1, rows, heads, dim)
    assert (got - wanted).abs().max().item() < TOLERANCE[dtype] * max(wanted.abs().max().item(), 1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernel_as_it_ships(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(4000, generator=generator)[:900].sort().values.to(DEVICE)
    query = torch.randn(1, 900, 28, 128, generator=generator).to(DEVICE, dtype).transpose(1, 2)
    keys, values = torch.randn(2, 1, 4, 4096, 128, generator=generator).to(DEVICE, dtype)[:, :, :, :4000]
    got = sparse_queries_triton.attend(query, keys, values, slots, 128**-0.5).float()
    wanted = expected(query, keys, values, slots, 128**-0.5, None)
    assert (got - wanted).abs().max().item() < TOLERANCE[dtype]
