"""Triton programs of flash decoding: attention with the keys split among programs.

`kernels.flash_decoding_triton` launches them.

The query heads of one key head are rows of one matrix product, token by token: row m is token m // group, head
m % group of the group. So a block of rows ends within a few tokens, and only its last tiles of keys need a mask. A
program takes one block and one share of its keys (Flash-Decoding: Dao et al. 2023,
https://pytorch.org/blog/flash-decoding) with the running softmax of FlashAttention-2 (arXiv:2307.08691, section 3.1).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    tile, q, keys, values, key_token, last, end, exponent, largest, total, output,
    MASKED: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """Fold one tile of keys into the running softmax. `last` [BLOCK]: the last slot that each row sees, before `end`.

    Scores are scaled in fp32 by the exponential's own multiply-add; the query stays as it is.
    """
    i = tl.arange(0, TILE)
    d = tl.arange(0, DIM_PADDED)[None, :]
    first = tile * TILE
    offsets = i[:, None] * key_token + d
    from_here = first * key_token
    if MASKED:
        readable = ((first + i)[:, None] < end) & (d < DIM)
        k = tl.load(keys + from_here + offsets, mask=readable, other=0.0)
        v = tl.load(values + from_here + offsets, mask=readable, other=0.0)
    elif DIM == DIM_PADDED:
        k = tl.load(keys + from_here + offsets)
        v = tl.load(values + from_here + offsets)
    else:
        k = tl.load(keys + from_here + offsets, mask=d < DIM, other=0.0)
        v = tl.load(values + from_here + offsets, mask=d < DIM, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if MASKED:
        seen = (first + i)[None, :] <= last[:, None]
        if WINDOW > 0:
            seen &= (first + i)[None, :] > last[:, None] - WINDOW
        scores = tl.where(seen, scores, float("-inf"))
    new = tl.maximum(largest, tl.max(scores, 1) * exponent)
    base = new
    if MASKED:
        # A row that has seen nothing yet keeps -inf; the difference of two of them must not become NaN.
        base = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(scores * exponent - base[:, None])
    keep = tl.exp2(largest - base)
    output = tl.dot(weights.to(v.dtype), v, output * keep[:, None], input_precision=PRECISION)
    return new, total * keep + tl.sum(weights, 1), output


@triton.jit(do_not_specialize=["length", "count"])  # type: ignore[untyped-decorator]
def attend_share(  # type: ignore[no-untyped-def]
    query, keys, values, result, outputs, sums, length, count, query_batch, query_head, query_token, key_batch,
    key_head, key_token, out_batch, out_token, exponent,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, DEPENDENT: tl.constexpr, START_IN_MEMORY: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """One share of the keys of one block of rows; grid (blocks, shares, batch * key heads).

    `length` counts the slots in use, the rows' own included, or points to how many come before these in each batch
    (int64), followed by the row of keys and values of each. With a WINDOW a row sees so many slots, the last its
    own. All strides are multiples of 16. A lone share writes the result, others `outputs` [.., BLOCK, DIM] and `sums`
    [.., BLOCK].
    """
    block, share, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks, shares = tl.num_programs(0), tl.num_programs(1)
    batch, head = (lane // KV_HEADS).to(tl.int64), (lane % KV_HEADS).to(tl.int64)
    row = batch
    if START_IN_MEMORY:
        row = tl.load(length + tl.num_programs(2) // KV_HEADS + batch)
        length = tl.load(length + batch).to(tl.int32) + count
    num_rows = count * GROUP
    m = block * BLOCK + tl.arange(0, BLOCK)
    # Rows past the last are computed as the last one and not stored.
    known = tl.minimum(m, num_rows - 1)
    token, of_group = known // GROUP, known % GROUP
    d = tl.arange(0, DIM_PADDED)[None, :]
    query += batch * query_batch + head * GROUP * query_head
    line = of_group * query_head + token * query_token
    q = tl.load(query + line[:, None] + d, mask=d < DIM, other=0.0)
    keys += row * key_batch + head * key_head
    values += row * key_batch + head * key_head
    last = length - count + token
    # What all rows of the block see, and what any of them sees.
    common = length - count + block * BLOCK // GROUP + 1
    end = length - count + (tl.minimum(block * BLOCK + BLOCK, num_rows) - 1) // GROUP + 1
    tiles = tl.cdiv(end, TILE)
    oldest = 0
    if WINDOW > 0:
        oldest = tl.maximum(common - WINDOW, 0) // TILE
    begin = oldest + share * (tiles - oldest) // shares
    stop = oldest + (share + 1) * (tiles - oldest) // shares
    whole = tl.minimum(stop, common // TILE)
    clear = begin
    if WINDOW > 0:  # before it are tiles that some rows no longer see
        clear = tl.minimum(stop, tl.maximum(begin, tl.cdiv(tl.maximum(end - WINDOW, 0), TILE)))
        whole = tl.maximum(whole, clear)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    output = tl.zeros([BLOCK, DIM_PADDED], tl.float32)
    if WINDOW > 0:
        for tile in range(begin, clear):
            largest, total, output = _fold(
                tile, q, keys, values, key_token, last, end, exponent, largest, total, output,
                True, DIM, DIM_PADDED, TILE, PRECISION, WINDOW,
            )  # fmt: skip
    for tile in range(clear, whole):
        largest, total, output = _fold(
            tile, q, keys, values, key_token, last, end, exponent, largest, total, output,
            False, DIM, DIM_PADDED, TILE, PRECISION, WINDOW,
        )  # fmt: skip
    for tile in range(tl.maximum(clear, whole), stop):
        largest, total, output = _fold(
            tile, q, keys, values, key_token, last, end, exponent, largest, total, output,
            True, DIM, DIM_PADDED, TILE, PRECISION, WINDOW,
        )  # fmt: skip
    # A share of which a row sees nothing has no sum; its maximum of -inf is told as it is.
    total = tl.where(total > 0, total, 1.0)
    output = output / total[:, None]
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    if shares == 1:
        out = result + batch * out_batch + head * GROUP * DIM
        line = token * out_token + of_group * DIM
        tl.store(out + line[:, None] + d, output.to(result.dtype.element_ty), mask=(m < num_rows)[:, None] & (d < DIM))
    else:
        program = ((lane * blocks + block) * shares + share).to(tl.int64)
        line = tl.arange(0, BLOCK)
        tl.store(sums + program * BLOCK + line, largest + tl.log2(total))
        place = outputs + program * BLOCK * DIM + line[:, None] * DIM + d
        tl.store(place, output.to(outputs.dtype.element_ty), mask=(m < num_rows)[:, None] & (d < DIM))


@triton.jit(do_not_specialize=["shares", "blocks", "block"])  # type: ignore[untyped-decorator]
def merge_rows(  # type: ignore[no-untyped-def]
    outputs, sums, result, shares, blocks, block, out_batch, out_token,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """All shares of some columns of one row; grid (rows, blocks of columns, batch * key heads). No load waits for
    another, as long as there are no more than STEP shares."""
    row, lane = tl.program_id(0), tl.program_id(2)
    batch, head = (lane // KV_HEADS).to(tl.int64), (lane % KV_HEADS).to(tl.int64)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    s = tl.arange(0, STEP)
    # In lines of one row; the shares of a block lie `block` lines apart.
    start = (lane * blocks + row // block).to(tl.int64) * shares * block + row % block
    largest = float("-inf")
    total = 0.0
    output = tl.zeros([COLUMNS], tl.float32)
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    for first in range(0, shares, STEP):
        inside = first + s < shares
        line = start + (first + s) * block
        in_tile = inside[:, None] & (d < DIM)[None, :]
        sum_of = tl.load(sums + line, mask=inside, other=float("-inf"))
        part = tl.load(outputs + line[:, None] * DIM + d[None, :], mask=in_tile, other=0.0).to(tl.float32)
        new = tl.maximum(largest, tl.max(sum_of, 0))
        # A block with fewer tiles than shares has empty ones, and they may come first.
        base = tl.where(new == float("-inf"), 0.0, new)
        keep = tl.exp2(largest - base)
        factor = tl.exp2(sum_of - base)
        total = total * keep + tl.sum(factor, 0)
        output = output * keep + tl.sum(part * factor[:, None], 0)
        largest = new
    token, of_group = row // GROUP, row % GROUP
    to = result + batch * out_batch + (head * GROUP + of_group) * DIM + token * out_token
    tl.store(to + d, (output / total).to(result.dtype.element_ty), mask=d < DIM)
