"""Merge the partial results of lazy attention by log-sum-exp.

This is done by the attention's last program, or in a launch of its own. That launch is bound by latency, not by bytes,
so its columns are divided among many programs, and each loads as many shares at once as its registers hold. This module
imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit  # type: ignore[untyped-decorator]
def merged(  # type: ignore[no-untyped-def]
    outputs, sums, result, shares, head, heads, first_row, num_rows, count,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Merge all shares of ROWS query rows of one KV head and write the result."""
    row = first_row + tl.arange(0, ROWS)
    d = tl.arange(0, DIM_PADDED)
    s = tl.arange(0, STEP)
    in_rows = row < num_rows
    known = tl.minimum(row, num_rows - 1)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    output = tl.zeros([ROWS, DIM_PADDED], dtype=tl.float32)
    for start in range(0, shares, STEP):
        offsets = ((start + s)[:, None] * heads + head) * num_rows + known[None, :]
        inside = (start + s < shares)[:, None]
        place = outputs + offsets.to(tl.int64)[:, :, None] * DIM + d[None, None, :]
        # Past the L1 cache: other programs wrote this, and the rest of a cache line may still be written.
        lse = tl.load(sums + offsets, mask=inside, other=float("-inf"), cache_modifier=".cg")
        part = tl.load(place, mask=inside[:, :, None] & (d < DIM)[None, None, :], other=0.0, cache_modifier=".cg")
        new = tl.maximum(largest, tl.max(lse, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        keep = tl.exp2(largest - base)
        factor = tl.exp2(lse - base[None, :])
        total = total * keep + tl.sum(factor, 0)
        output = output * keep[:, None] + tl.sum(part.to(tl.float32) * factor[:, :, None], 0)
        largest = new
    group = num_rows // count
    to = ((row % count) * heads * group + head * group + row // count).to(tl.int64)[:, None] * DIM + d[None, :]
    answer = (output / total[:, None]).to(result.dtype.element_ty)
    tl.store(result + to, answer, mask=in_rows[:, None] & (d < DIM)[None, :])


@triton.jit(do_not_specialize=["shares"])  # type: ignore[untyped-decorator]
def merge_shares(  # type: ignore[no-untyped-def]
    outputs, sums, result, shares, num_rows, count,
    DIM: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program (query row, KV head, block of COLUMNS columns), STEP shares at once.

    DEPENDENT: launched while the programs that write the shares still run; waits here until their stores are visible.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    heads = tl.num_programs(1)
    d = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    s = tl.arange(0, STEP)
    group = num_rows // count
    to = result + ((row % count) * heads * group + head * group + row // count).to(tl.int64) * DIM + d
    if DEPENDENT:
        gdc_wait()
    largest = float("-inf")
    total = 0.0
    output = tl.zeros([COLUMNS], dtype=tl.float32)
    for start in range(0, shares, STEP):
        share = start + s
        # Shares past the last read it, and get weight 0: cheaper than a mask per element.
        offsets = (tl.minimum(share, shares - 1) * heads + head) * num_rows + row
        lse = tl.where(share < shares, tl.load(sums + offsets, cache_modifier=".cg"), float("-inf"))
        place = outputs + offsets.to(tl.int64)[:, None] * DIM + d[None, :]
        part = tl.load(place, mask=(d < DIM)[None, :], other=0.0, cache_modifier=".cg")
        new = tl.maximum(largest, tl.max(lse, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        keep = tl.exp2(largest - base)
        factor = tl.exp2(lse - base)
        total = total * keep + tl.sum(factor, 0)
        output = output * keep + tl.sum(part.to(tl.float32) * factor[:, None], 0)
        largest = new
    tl.store(to, (output / total).to(result.dtype.element_ty), mask=d < DIM)
