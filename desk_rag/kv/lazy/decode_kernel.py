"""Triton kernel of lazy attention for decode steps: at most 16 query rows per KV head, one group of scales per chunk.

It takes the same shares, words and rows of addresses as `lazy.prefill_kernel` and writes the same partial results. This
module imports Triton.

With few query rows the kernel is bound by latency, and tensor-core tiles would be mostly padding. So, unlike there:
- operands are swapped: keys are the left factor, query rows the right, whose minimum width is 8 instead of 16;
- every warp reads its own tokens, as one matrix of a batch, and warps are combined once, at the end; so there is no
  shared memory and no barrier between a load and the tensor cores, and all loads of a step are in flight together;
- tokens, channels and output columns are taken in an order in which the 16 bytes that a thread loads are already the
  operand that the tensor cores expect of it. Sums may be taken in any order, and query and output use the same one. If
  the compiler chooses another layout, the result is the same and only takes longer;
- codes are converted to fp16 exactly, by two byte permutations and a subtraction per pair (`_halves`).

The query is rotated back by the position of a warp's first token, and keys by their offset from it. So the keys of
every warp, program and answer need the same TILE rows of the rotary table, which are kept in fp16.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from desk_rag.kv.lazy.prefill_kernel import _plain, runs_of


@triton.jit  # type: ignore[untyped-decorator]
def _halves(codes, BY_BYTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Convert int8 to fp16: with code + 128 as its low byte, 0x6400 is 1152 + code."""
    if BY_BYTES:
        return _raised(codes, BY_BYTES) - tl.full([], 1152.0, tl.float16)
    else:  # noqa: RET505 - Triton compiles one of the two branches only if it sees both
        return codes.to(tl.float16)


@triton.jit  # type: ignore[untyped-decorator]
def _raised(codes, BY_BYTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Convert int8 to fp16, plus 1152."""
    if BY_BYTES:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 shifted;
            xor.b32 shifted, $2, 0x80808080;
            prmt.b32 $0, shifted, 0x64646464, 0x4140;
            prmt.b32 $1, shifted, 0x64646464, 0x4342;
            }""",
            "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4,
        )  # fmt: skip
    else:  # noqa: RET505
        return codes.to(tl.float16) + 1152.0


@triton.jit  # type: ignore[untyped-decorator]
def _over_warps(parts, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum [A, B, COUNT] over warps; splitting brings numbers of several warps to one thread with wide stores."""
    if COUNT == 1:
        return parts.reshape(parts.shape[0], parts.shape[1])
    else:  # noqa: RET505
        even, odd = tl.split(parts.reshape(parts.shape[0], parts.shape[1], COUNT // 2, 2))
        return _over_warps(even + odd, COUNT // 2)


@triton.jit  # type: ignore[untyped-decorator]
def _as_factor(turned, WARPS: tl.constexpr, TILE: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Arrange loaded keys [WARPS * TILE, HALF] as left factors [WARPS, TILE, HALF], channels in `_channel` order."""
    parts = turned.reshape(TILE // 8, WARPS, 8, 4, HALF // 16, 4)
    return parts.permute(1, 0, 2, 4, 3, 5).reshape(WARPS, TILE, HALF)


@triton.jit  # type: ignore[untyped-decorator]
def _channel(HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Channel at each column of a factor, [HALF]."""
    p = tl.arange(0, HALF)
    return p // 4 % 4 * (HALF // 4) + p // 16 * 4 + p % 4


@triton.jit  # type: ignore[untyped-decorator]
def _turn(cosines, sines, first, table_rows, WARPS: tl.constexpr, TILE: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cosines and sines [WARPS, HALF] of every warp's first token; the first warp's is at position `first`."""
    row = tl.minimum(first + tl.arange(0, WARPS) * TILE, table_rows - 1)
    offsets = row[:, None] * HALF + _channel(HALF)[None, :]
    return tl.load(cosines + offsets), tl.load(sines + offsets)


@triton.jit  # type: ignore[untyped-decorator]
def _runs(  # type: ignore[no-untyped-def]
    q1, q2, words, firsts, rows, codes, scales, cosines, sines, turns, head, share, table_rows, exponent,
    ONE_RUN: tl.constexpr, ONE_TILE: tl.constexpr, AHEAD: tl.constexpr, FIELDS: tl.constexpr,
    CODES_BY: tl.constexpr, SCALES_BY: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
    WARPS: tl.constexpr, TILE: tl.constexpr, BY_BYTES: tl.constexpr,
):  # fmt: skip
    """Attend to a share's runs: maximum and sum [WARPS, ROWS] and output [WARPS, DIM, ROWS] of every warp."""
    r = tl.arange(0, WARPS * TILE)
    w = tl.arange(0, WARPS)
    c = tl.arange(0, HALF)
    d = tl.arange(0, DIM)
    # Token that each row loads; TILE consecutive tokens belong to one warp.
    key_place = r // 8 % WARPS * TILE + r // (8 * WARPS) * 8 + r % 8
    rep = r // (4 * WARPS)
    value_place = r // 4 % WARPS * TILE + rep // 4 * 16 + r % 4 * 4 + rep % 4
    place = w[:, None] * TILE + tl.arange(0, TILE)[None, :]
    angle = (key_place % TILE)[:, None] * HALF + c[None, :]
    cos = tl.load(turns + angle)
    sin = tl.load(turns + TILE * HALF + angle)
    largest = tl.full([WARPS, ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([WARPS, ROWS], dtype=tl.float32)
    raised = tl.zeros([WARPS, ROWS], dtype=tl.float32)
    output = tl.zeros([WARPS, DIM, ROWS], dtype=tl.float32)
    first, end = runs_of(firsts, share, ONE_RUN)
    for index in range(1 if ONE_RUN else end - first):
        word = tl.load(words + first + index)
        position = (word & 0xFFFFF).to(tl.int32)
        row = rows + ((word >> 20) & 0xFFF) * FIELDS
        count = ((word >> 32) & 0xFFF).to(tl.int32) + 1
        start = (word >> 44).to(tl.int32)
        of_head = head * tl.load(row).to(tl.int32) + start
        keys = codes + tl.multiple_of(tl.load(row + 3), CODES_BY) + of_head * DIM
        values = codes + tl.multiple_of(tl.load(row + 4), CODES_BY) + of_head * DIM
        scale = scales + tl.multiple_of(tl.load(row + 5), SCALES_BY) + head * DIM + c
        zero = scales + tl.multiple_of(tl.load(row + 6), SCALES_BY) + head * DIM + c
        value_scale = scales + tl.load(row + 7) + of_head
        if AHEAD:
            next_c, next_s = _turn(cosines, sines, position, table_rows, WARPS, TILE, HALF)
        for tile in range(1 if ONE_TILE else tl.cdiv(count, WARPS * TILE)):
            at = tile * (WARPS * TILE)
            # Tokens past the run's end read its last one, and get weight 0.
            line = tl.minimum(at + key_place, count - 1)[:, None] * DIM + c[None, :]
            k1 = tl.load(keys + line)
            k2 = tl.load(keys + line + HALF)
            v = tl.load(values + tl.minimum(at + value_place, count - 1)[:, None] * DIM + d[None, :])
            vs = tl.load(value_scale + tl.minimum(at + place, count - 1)).to(tl.float32)
            if AHEAD:
                qc, qs = next_c, next_s
                next_c, next_s = _turn(cosines, sines, position + at + WARPS * TILE, table_rows, WARPS, TILE, HALF)
            else:
                qc, qs = _turn(cosines, sines, position + at, table_rows, WARPS, TILE, HALF)
            f1, f2 = q1.to(tl.float32)[None, :, :], q2.to(tl.float32)[None, :, :]
            a1 = (f1 * qc[:, :, None] + f2 * qs[:, :, None]).to(tl.float16)
            a2 = (f2 * qc[:, :, None] - f1 * qs[:, :, None]).to(tl.float16)
            h1 = _halves(k1, BY_BYTES) * tl.load(scale)[None, :] + tl.load(zero)[None, :]
            h2 = _halves(k2, BY_BYTES) * tl.load(scale + HALF)[None, :] + tl.load(zero + HALF)[None, :]
            scores = tl.dot(_as_factor(h1 * cos - h2 * sin, WARPS, TILE, HALF), a1)
            scores = tl.dot(_as_factor(h2 * cos + h1 * sin, WARPS, TILE, HALF), a2, scores)
            scores = tl.where((at + place < count)[:, :, None], scores * exponent, float("-inf"))
            new = tl.maximum(largest, tl.max(scores, 1))
            # A warp that has seen no key yet keeps -inf; the difference of two such values must not become NaN.
            base = tl.where(new == float("-inf"), 0.0, new)
            weights = tl.exp2(scores - base[:, None, :])
            keep = tl.exp2(largest - base)
            total = total * keep + tl.sum(weights, 1)
            largest = new
            # The values' scale is multiplied into the weights; the codes are exact in fp16, plus a constant (`_raised`)
            # whose contribution is the same for every column and is subtracted at the end.
            weights = (weights * vs[:, :, None]).to(tl.float16)
            raised = raised * keep + tl.sum(weights.to(tl.float32), 1)
            whole = _raised(v, BY_BYTES).reshape(TILE // 16, 4, WARPS, 4, 8, DIM // 8)
            whole = whole.permute(2, 5, 4, 0, 3, 1).reshape(WARPS, DIM, TILE)
            output = tl.dot(whole, weights, output * keep[:, None, :])
    return largest, total, output - 1152.0 * raised[:, None, :]


@triton.jit
def _lines(query, rows, head, num_rows, count, query_head, query_token):  # type: ignore[no-untyped-def]
    """Offsets and tokens of query rows; rows past the last repeat it and are not stored."""
    known = tl.minimum(rows, num_rows - 1)
    token = known % count
    line = (head * (num_rows // count) + known // count).to(tl.int64) * query_head + token.to(tl.int64) * query_token
    return query + line, token


@triton.jit  # type: ignore[untyped-decorator]
def _plain_share(  # type: ignore[no-untyped-def]
    query, keys, values, outputs, sums, share, head, to, num_rows, count, query_head, query_token, used, key_head,
    key_token, exponent,
    DEPENDENT: tl.constexpr, PLAIN_TILES: tl.constexpr, PLAIN_TILE: tl.constexpr, DIM: tl.constexpr,
    HALF: tl.constexpr, VALUE_TYPE: tl.constexpr,
):  # fmt: skip
    """Attend to one share of the slab, as `lazy.prefill_kernel` does."""
    m = tl.arange(0, 16)
    c = tl.arange(0, HALF)[None, :]
    line, token = _lines(query, m, head, num_rows, count, query_head, query_token)
    q1 = tl.load(line[:, None] + c).to(tl.float32) * exponent
    q2 = tl.load(line[:, None] + HALF + c).to(tl.float32) * exponent
    largest = tl.full([16], float("-inf"), dtype=tl.float32)
    total = tl.zeros([16], dtype=tl.float32)
    output = tl.zeros([16, DIM], dtype=tl.float32)
    head_base = head.to(tl.int64) * key_head
    largest, total, output = _plain(
        q1, q2, q1, largest, total, output, keys + head_base, values + head_base, share, used, used - count + token,
        key_token, PLAIN_TILES, DIM, DIM, HALF, HALF, 0, 16, PLAIN_TILE, tl.float16, VALUE_TYPE, "tf32",
    )  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
    # A row that sees no key of this share has no sum; its maximum of -inf is passed on to the merge.
    total = tl.where(total > 0, total, 1.0)
    pointers = outputs + (to + m).to(tl.int64)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    tl.store(pointers, (output / total[:, None]).to(outputs.dtype.element_ty), mask=(m < num_rows)[:, None])
    tl.store(sums + to + m, largest + tl.log2(total), mask=m < num_rows)


@triton.jit  # type: ignore[untyped-decorator]
def _chunk_share(  # type: ignore[no-untyped-def]
    query, words, firsts, rows, codes, scales, cosines, sines, turns, outputs, sums, share, head, to, num_rows, count,
    query_head, query_token, table_rows, exponent,
    DEPENDENT: tl.constexpr, ONE_RUN: tl.constexpr, ONE_TILE: tl.constexpr, AHEAD: tl.constexpr,
    FIELDS: tl.constexpr, CODES_BY: tl.constexpr, SCALES_BY: tl.constexpr, DIM: tl.constexpr,
    HALF: tl.constexpr, ROWS: tl.constexpr, WARPS: tl.constexpr, TILE: tl.constexpr, BY_BYTES: tl.constexpr,
):  # fmt: skip
    """Attend to the runs of one share: each warp's part by `_runs`, then the sum over warps."""
    n = tl.arange(0, ROWS)
    line, _ = _lines(query, n, head, num_rows, count, query_head, query_token)
    line = line[None, :] + _channel(HALF)[:, None]
    largest, total, output = _runs(
        tl.load(line), tl.load(line + HALF), words, firsts, rows, codes, scales, cosines,
        sines, turns, head, share, table_rows, exponent, ONE_RUN, ONE_TILE, AHEAD, FIELDS, CODES_BY, SCALES_BY, DIM,
        HALF, ROWS, WARPS, TILE, BY_BYTES,
    )  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
    # Never -inf: every run has a token, and every row sees it.
    top = tl.max(largest, 0)
    factor = tl.exp2(largest - top[None, :])
    whole = tl.sum(total * factor, 0)
    output = output * (factor / whole[None, :])[:, None, :]
    d = tl.arange(0, DIM)
    pointers = outputs + (to + n).to(tl.int64)[None, :] * DIM + (d % 8 * (DIM // 8) + d // 8)[:, None]
    joined = _over_warps(output.permute(1, 2, 0), WARPS)
    tl.store(pointers, joined.to(outputs.dtype.element_ty), mask=(n < num_rows)[None, :])
    tl.store(sums + to + n, top + tl.log2(whole), mask=n < num_rows)


@triton.jit(do_not_specialize=["length", "plain_shares", "table_rows"])  # type: ignore[untyped-decorator]
def attend_few(  # type: ignore[no-untyped-def]
    query, keys, values, words, firsts, rows, codes, scales, cosines, sines, turns, outputs, sums,
    num_rows, count, query_head, query_token, length, key_head, key_token, plain_shares, table_rows,
    exponent, unscaled,
    DEPENDENT: tl.constexpr, LENGTH_IN_MEMORY: tl.constexpr, PLAIN_TILES: tl.constexpr, PLAIN_TILE: tl.constexpr,
    ONE_RUN: tl.constexpr, ONE_TILE: tl.constexpr, AHEAD: tl.constexpr, FIELDS: tl.constexpr,
    CODES_BY: tl.constexpr, SCALES_BY: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
    WARPS: tl.constexpr, TILE: tl.constexpr, VALUE_TYPE: tl.constexpr, BY_BYTES: tl.constexpr,
):  # fmt: skip
    """Program (share, KV head); num_warps must be WARPS. Row m is query head m // count of the group, token m % count.

    `turns` fp16 [2, TILE, HALF]: cosines and sines of the first TILE positions. DEPENDENT as in `merge_shares`. AHEAD:
    the query's rotation for the next tile is loaded before the current one is computed.
    """
    share, head = tl.program_id(0), tl.program_id(1)
    if DEPENDENT:
        gdc_wait()
    to = (share * tl.num_programs(1) + head) * num_rows
    if share < plain_shares:
        used = tl.load(length) if LENGTH_IN_MEMORY else length
        _plain_share(
            query, keys, values, outputs, sums, share, head, to, num_rows, count, query_head, query_token, used,
            key_head, key_token, exponent, DEPENDENT, PLAIN_TILES, PLAIN_TILE, DIM, HALF, VALUE_TYPE,
        )  # fmt: skip
    else:
        _chunk_share(
            query, words, firsts, rows, codes, scales, cosines, sines, turns, outputs, sums, share - plain_shares,
            head, to, num_rows, count, query_head, query_token, table_rows, exponent * unscaled, DEPENDENT, ONE_RUN,
            ONE_TILE, AHEAD, FIELDS, CODES_BY, SCALES_BY, DIM, HALF, ROWS, WARPS, TILE, BY_BYTES,
        )  # fmt: skip
