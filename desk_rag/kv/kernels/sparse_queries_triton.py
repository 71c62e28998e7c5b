"""Triton kernel for causal attention of selected rows, without a mask in memory.

The reference is in `forward.sparse_attention`; `kernels.sparse_queries` imports this module where Triton can be used.

Rows ascend: tiles of keys before a block's first row need no comparison, tiles past its last row are not read. Blocks
with the most keys are started first. Each query head reads the key head of its group, which the L2 cache then holds for
the group's other heads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from desk_rag.kv.kernels.availability import is_large
from desk_rag.kv.kernels.compiled_launch import CompiledLaunch, alike


@dataclass(frozen=True, slots=True)
class RowsTuning:
    """Parameters that may be chosen freely."""

    block: int = 128
    """Query rows per program."""
    tile: int = 64
    """Keys per step."""
    warps: int = 8
    stages: int = 2


LARGE = RowsTuning()
SMALL = RowsTuning(block=64, tile=32, warps=4, stages=3)
"""For GPUs with about 100 KiB of shared memory and 64K registers per multiprocessor: nothing spills on an RTX 3060."""


def tuning_for(device: torch.device) -> RowsTuning:
    """Return the parameters for this GPU."""
    return LARGE if is_large(device) else SMALL


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
    window: int | None = None,
    tuning: RowsTuning | None = None,
) -> torch.Tensor:
    """query [1, heads, R, D] of rows at ascending `slots` int64 [R]; keys, values [1, H, T, D] -> [1, R, heads, D].

    A row sees the keys at slots up to its own, with a window only the last `window` of them.
    """
    _, heads, count, dim = query.shape
    assert query.stride(3) == keys.stride(3) == values.stride(3) == 1 and keys.stride() == values.stride()
    assert heads % keys.shape[1] == 0 and slots.shape == (count,) and slots.is_contiguous()
    out = torch.empty((1, count, heads, dim), dtype=query.dtype, device=query.device)
    fp32 = query.dtype == torch.float32
    tuning = tuning or tuning_for(query.device)
    # With 4-byte numbers the same tiles would need twice the shared memory.
    block, tile = (tuning.block // 2, tuning.tile // 2) if fp32 else (tuning.block, tuning.tile)
    strides = (query.stride(1), query.stride(2), keys.stride(1), keys.stride(2))
    sizes = (heads // keys.shape[1], heads, dim, block, tile)
    how = (sizes, query.dtype, window is not None, tuning.warps, tuning.stages)
    # Strides are compiled in as far as they are multiples of 16, as those of a slab are.
    launch = _known(*how) if alike(*strides) else _launch(*how)
    launch(
        (heads, -(-count // block), 1), (query, keys, values, slots, out), count, *strides,
        scale * 1.4426950408889634, 0 if window is None else window,
    )  # fmt: skip
    return out


def _launch(
    sizes: tuple[int, int, int, int, int], dtype: torch.dtype, sliding: bool, warps: int, stages: int
) -> CompiledLaunch:
    constants_by_name = constants(*sizes, dtype, sliding)
    return CompiledLaunch(_rows, constants_by_name, {"num_warps": warps, "num_stages": stages})


_known = functools.lru_cache(maxsize=256)(_launch)
"""The same one for the same kernel, so that it knows the compiled form."""


def constants(
    groups: int, heads: int, dim: int, block: int, tile: int, dtype: torch.dtype, sliding: bool = False
) -> dict[str, object]:
    """Constants the kernel is compiled for."""
    return {
        "GROUPS": groups, "HEADS": heads, "DIM": dim, "DIM_PADDED": max(16, triton.next_power_of_2(dim)),
        "BLOCK": block, "TILE": tile, "SLIDING": sliding, "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
    }  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _step(  # type: ignore[no-untyped-def]
    first, q, keys, values, at, end, largest, total, summed, exponent, window, row_stride, in_dim,
    MASKED: tl.constexpr, SLIDING: tl.constexpr, DIM_PADDED: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold the keys first..first + TILE - 1 into the running softmax."""
    dims = tl.arange(0, DIM_PADDED)
    positions = first + tl.arange(0, TILE)
    offsets = positions[:, None].to(tl.int64) * row_stride + dims[None, :]
    readable = (positions[:, None] < (end if MASKED else first + TILE)) & in_dim[None, :]
    k = tl.load(keys + offsets, mask=readable, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * exponent
    if MASKED:
        visible = positions[None, :] <= at[:, None]
        if SLIDING:
            visible = visible & (positions[None, :] > at[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    new = tl.maximum(largest, tl.max(scores, 1))
    # A row that has seen nothing yet keeps -inf; the difference of two of them must not become NaN.
    base = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(scores - base[:, None])
    keep = tl.exp2(largest - base)
    v = tl.load(values + offsets, mask=readable, other=0.0)
    summed = summed * keep[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new, total * keep + tl.sum(weights, 1), summed


@triton.jit(do_not_specialize=["num_rows", "window"])  # type: ignore[untyped-decorator]
def _rows(  # type: ignore[no-untyped-def]
    query, keys, values, slots, result, num_rows, query_head, query_row, key_head, key_row, exponent, window,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, SLIDING: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of rows of one query head; grid (heads, blocks). One compilation serves every number of rows."""
    head = tl.program_id(0)
    start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK
    rows = start + tl.arange(0, BLOCK)
    dims = tl.arange(0, DIM_PADDED)
    in_dim = dims < DIM
    row_slots = tl.load(slots + rows, mask=rows < num_rows, other=-1).to(tl.int32)
    first = tl.load(slots + start).to(tl.int32)
    end = tl.load(slots + tl.minimum(start + BLOCK, num_rows) - 1).to(tl.int32) + 1
    inside = (rows[:, None] < num_rows) & in_dim[None, :]
    q = tl.load(query + head * query_head + rows[:, None] * query_row + dims[None, :], mask=inside, other=0.0)
    keys += (head // GROUPS).to(tl.int64) * key_head
    values += (head // GROUPS).to(tl.int64) * key_head
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    summed = tl.zeros([BLOCK, DIM_PADDED], tl.float32)
    if SLIDING:
        begin = tl.maximum(first - window + 1, 0) // TILE * TILE
        whole = begin
    else:
        begin = 0
        whole = (first + 1) // TILE * TILE
    for tile in range(begin, whole, TILE):
        largest, total, summed = _step(
            tile, q, keys, values, row_slots, end, largest, total, summed, exponent, window, key_row, in_dim,
            False, SLIDING, DIM_PADDED, TILE, PRECISION,
        )  # fmt: skip
    for tile in range(whole, end, TILE):
        largest, total, summed = _step(
            tile, q, keys, values, row_slots, end, largest, total, summed, exponent, window, key_row, in_dim,
            True, SLIDING, DIM_PADDED, TILE, PRECISION,
        )  # fmt: skip
    summed = summed / tl.where(total > 0, total, 1.0)[:, None]
    where = (rows[:, None].to(tl.int64) * HEADS + head) * DIM + dims[None, :]
    tl.store(result + where, summed.to(result.dtype.element_ty), mask=inside)
