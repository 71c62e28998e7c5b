"""Triton kernel of lazy attention: one launch attends to prefix, suffix and int8 chunks of one layer.

`lazy.launcher` computes the addresses and the number of programs. This module imports Triton.

A program takes a share of the keys of one KV head and a block of its query rows (flash decoding). The first shares are
tiles of the slab, whose keys are already rotated; the others are runs of chunk tokens, each described by one 64-bit
word (`lazy.tiles.TokenRun`). Every program writes its normalised output and log-sum-exp. The last one to finish, found
by an atomic counter, merges them and resets the counter, so a layer is one launch and can be replayed in a CUDA graph.

The score of a token at position p0 + j is q R(-p0) R(j) k, so the rotation can be divided between query and key. With
many query rows, the query stays as it is and keys are rotated by their positions. With few (ROTATE_QUERY), the query is
rotated back once per tile and keys by their offset in the tile: those few rows of the table stay in registers while the
program runs, and no table is read per token.
(LazyAttention, arXiv 2606.04302, for deferred rotation and the packed word; here keys are raw instead of rotated at
document-local positions, so the second rotation is added.)

A key's zero point is added before the rotation: a rank-one correction afterwards would need a rotated zero per token,
which is as many operations. The keys' scale cannot move to the query either, because the rotation mixes two channels of
different scales. The values' scale is multiplied into the weights.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from desk_rag.kv.lazy.merge_kernel import merged


@triton.jit  # type: ignore[untyped-decorator]
def _columns(pointers, column, SIZE: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load columns; those past SIZE are padding and read as 0."""
    if SIZE == PADDED:
        return tl.load(pointers)
    else:  # noqa: RET505 - Triton compiles one of the two branches only if it sees both
        return tl.load(pointers, mask=column < SIZE, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def runs_of(firsts, share, ONE_RUN: tl.constexpr):  # type: ignore[no-untyped-def]
    """First word of a share, and the word after its last."""
    if ONE_RUN:
        return share, share + 1
    else:  # noqa: RET505
        return tl.load(firsts + share), tl.load(firsts + share + 1)


@triton.jit
def _softmax_step(scores, largest, total):  # type: ignore[no-untyped-def]
    """Fold scores [BLOCK, TILE] (base 2, -inf where masked) into the running softmax.

    Returns weights, the factor for what was summed before, and the new maximum and sum.
    """
    new = tl.maximum(largest, tl.max(scores, 1))
    # A row that has seen no key yet keeps -inf; the difference of two such values must not become NaN.
    base = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(scores - base[:, None])
    keep = tl.exp2(largest - base)
    return weights, keep, new, total * keep + tl.sum(weights, 1)


@triton.jit  # type: ignore[untyped-decorator]
def _plain(  # type: ignore[no-untyped-def]
    q1, q2, q3, largest, total, output, keys, values, share, length, last, key_token,
    TILES: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr,
    REST: tl.constexpr, REST_PADDED: tl.constexpr, TILE: tl.constexpr, KEY_TYPE: tl.constexpr,
    VALUE_TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to tiles of the slab, whose keys are already rotated; `last` [BLOCK] is the last slot each row sees."""
    c = tl.arange(0, HALF_PADDED)[None, :]
    d = tl.arange(0, DIM_PADDED)[None, :]
    r = tl.arange(0, REST_PADDED)[None, :]
    i = tl.arange(0, TILE)
    for tile in range(share * TILES, tl.minimum((share + 1) * TILES, tl.cdiv(length, TILE))):
        slot = tile * TILE + i
        # Slots past the end read the last one, and get weight 0: cheaper than a mask per element.
        line = tl.minimum(slot, length - 1).to(tl.int64)[:, None] * key_token
        k1 = _columns(keys + line + c, c, HALF, HALF_PADDED).to(KEY_TYPE)
        k2 = _columns(keys + line + HALF + c, c, HALF, HALF_PADDED).to(KEY_TYPE)
        v = _columns(values + line + d, d, DIM, DIM_PADDED).to(VALUE_TYPE)
        scores = tl.dot(q1.to(KEY_TYPE), tl.trans(k1), input_precision=PRECISION)
        scores = tl.dot(q2.to(KEY_TYPE), tl.trans(k2), scores, input_precision=PRECISION)
        if REST > 0:
            k3 = _columns(keys + line + 2 * HALF + r, r, REST, REST_PADDED).to(KEY_TYPE)
            scores = tl.dot(q3.to(KEY_TYPE), tl.trans(k3), scores, input_precision=PRECISION)
        scores = tl.where(slot[None, :] <= last[:, None], scores, float("-inf"))
        weights, keep, largest, total = _softmax_step(scores, largest, total)
        output = tl.dot(weights.to(VALUE_TYPE), v, output * keep[:, None], input_precision=PRECISION)
    return largest, total, output


@triton.jit  # type: ignore[untyped-decorator]
def _turned_back(q1, q2, cosines, sines, position, unscaled, HALF: tl.constexpr, HALF_PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Halves of the query rotated by -position; `unscaled` undoes the attention scaling that the table contains."""
    c = tl.arange(0, HALF_PADDED)
    cos = _columns(cosines + position * HALF + c, c, HALF, HALF_PADDED)[None, :] * unscaled
    sin = _columns(sines + position * HALF + c, c, HALF, HALF_PADDED)[None, :] * unscaled
    return q1 * cos + q2 * sin, q2 * cos - q1 * sin


@triton.jit  # type: ignore[untyped-decorator]
def _angles(cosines, sines, first, table_rows, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows first..first + TILE - 1 of cos and sin; rows past the table's end repeat its last one and are not used."""
    c = tl.arange(0, HALF_PADDED)[None, :]
    line = tl.minimum(first + tl.arange(0, TILE), table_rows - 1)[:, None] * HALF
    return _columns(cosines + line + c, c, HALF, HALF_PADDED), _columns(sines + line + c, c, HALF, HALF_PADDED)


@triton.jit  # type: ignore[untyped-decorator]
def _widened(  # type: ignore[no-untyped-def]
    codes, scale, zero, coarse, column, SIZE: tl.constexpr, PADDED: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Dequantize: code * scale + zero in MATH; `coarse` are offsets of scale and zero, one line or one per token."""
    by = _columns(scale + coarse, column, SIZE, PADDED).to(MATH)
    return codes.to(MATH) * by + _columns(zero + coarse, column, SIZE, PADDED).to(MATH)


@triton.jit  # type: ignore[untyped-decorator]
def _chunk(  # type: ignore[no-untyped-def]
    q1, q2, q3, largest, total, output, words, firsts, rows, codes, scales, cosines, sines, head, share, table_rows,
    unscaled,
    ONE_RUN: tl.constexpr, ONE_TILE: tl.constexpr, ROTATE_QUERY: tl.constexpr, ONE_GROUP: tl.constexpr,
    FIELDS: tl.constexpr, CODES_BY: tl.constexpr, SCALES_BY: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, REST: tl.constexpr,
    REST_PADDED: tl.constexpr, TILE: tl.constexpr, KEY_TYPE: tl.constexpr, VALUE_TYPE: tl.constexpr,
    PRECISION: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Attend to the runs of chunk tokens in one share."""
    c = tl.arange(0, HALF_PADDED)[None, :]
    d = tl.arange(0, DIM_PADDED)[None, :]
    r = tl.arange(0, REST_PADDED)[None, :]
    i = tl.arange(0, TILE)
    if ROTATE_QUERY:
        kc, ks = _angles(cosines, sines, 0, table_rows, HALF, HALF_PADDED, TILE)
    first, end = runs_of(firsts, share, ONE_RUN)
    for index in range(1 if ONE_RUN else end - first):
        word = tl.load(words + first + index)
        position = (word & 0xFFFFF).to(tl.int32)
        row = rows + ((word >> 20) & 0xFFF) * FIELDS
        count = ((word >> 32) & 0xFFF).to(tl.int32) + 1
        start = (word >> 44).to(tl.int32)
        tokens = tl.load(row).to(tl.int32)
        of_head = head * tokens
        keys = codes + tl.multiple_of(tl.load(row + 3), CODES_BY) + (of_head + start) * DIM
        values = codes + tl.multiple_of(tl.load(row + 4), CODES_BY) + (of_head + start) * DIM
        scale = scales + tl.multiple_of(tl.load(row + 5), SCALES_BY)
        zero = scales + tl.multiple_of(tl.load(row + 6), SCALES_BY)
        value_scale = scales + tl.load(row + 7) + of_head + start
        if not ONE_GROUP:
            span = tl.load(row + 1).to(tl.int32)
            group = head * tl.load(row + 2).to(tl.int32)
        a1 = q1
        a2 = q2
        for tile in range(1 if ONE_TILE else tl.cdiv(count, TILE)):
            at = tile * TILE
            live = at + i < count
            # Tokens past the run's end read its last one, and get weight 0.
            token = tl.minimum(at + i, count - 1)
            line = token[:, None] * DIM
            k1 = _columns(keys + line + c, c, HALF, HALF_PADDED)
            k2 = _columns(keys + line + HALF + c, c, HALF, HALF_PADDED)
            v = _columns(values + line + d, d, DIM, DIM_PADDED)
            vs = tl.load(value_scale + token).to(tl.float32)
            coarse = head * DIM if ONE_GROUP else ((group + (start + token) // span) * DIM)[:, None]
            k1 = _widened(k1, scale, zero, coarse + c, c, HALF, HALF_PADDED, MATH)
            k2 = _widened(k2, scale, zero, coarse + HALF + c, c, HALF, HALF_PADDED, MATH)
            if ROTATE_QUERY:
                a1, a2 = _turned_back(q1, q2, cosines, sines, position + at, unscaled, HALF, HALF_PADDED)
            else:
                kc, ks = _angles(cosines, sines, position + at, table_rows, HALF, HALF_PADDED, TILE)
            t1 = (k1 * kc.to(MATH) - k2 * ks.to(MATH)).to(KEY_TYPE)
            t2 = (k2 * kc.to(MATH) + k1 * ks.to(MATH)).to(KEY_TYPE)
            scores = tl.dot(a1.to(KEY_TYPE), tl.trans(t1), input_precision=PRECISION)
            scores = tl.dot(a2.to(KEY_TYPE), tl.trans(t2), scores, input_precision=PRECISION)
            if REST > 0:
                k3 = _columns(keys + line + 2 * HALF + r, r, REST, REST_PADDED)
                k3 = _widened(k3, scale, zero, coarse + 2 * HALF + r, r, REST, REST_PADDED, MATH).to(KEY_TYPE)
                scores = tl.dot(q3.to(KEY_TYPE), tl.trans(k3), scores, input_precision=PRECISION)
            scores = tl.where(live[None, :], scores, float("-inf"))
            weights, keep, largest, total = _softmax_step(scores, largest, total)
            # The values' scale is multiplied into the weights; the codes themselves are exact in any of these types.
            weights = (weights * vs[None, :]).to(VALUE_TYPE)
            output = tl.dot(weights, v.to(VALUE_TYPE), output * keep[:, None], input_precision=PRECISION)
    return largest, total, output


@triton.jit(do_not_specialize=["length", "plain_shares", "table_rows"])  # type: ignore[untyped-decorator]
def attend_shares(  # type: ignore[no-untyped-def]
    query, keys, values, result, words, firsts, rows, codes, scales, cosines, sines, outputs, sums, arrived,
    num_rows, count, query_head, query_token, length, key_head, key_token, plain_shares, table_rows,
    exponent, unscaled,
    DEPENDENT: tl.constexpr, FUSED: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_STEP: tl.constexpr,
    LENGTH_IN_MEMORY: tl.constexpr, PLAIN_TILES: tl.constexpr, ONE_RUN: tl.constexpr, ONE_TILE: tl.constexpr,
    ROTATE_QUERY: tl.constexpr,
    ONE_GROUP: tl.constexpr, FIELDS: tl.constexpr, CODES_BY: tl.constexpr, SCALES_BY: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, REST: tl.constexpr,
    REST_PADDED: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, KEY_TYPE: tl.constexpr,
    VALUE_TYPE: tl.constexpr, PRECISION: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """Program (share, KV head, block of query rows). Row m is query head m // count of the group, token m % count."""
    share, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    m = block * BLOCK + tl.arange(0, BLOCK)
    # Rows past the last repeat it and are not stored.
    known = tl.minimum(m, num_rows - 1)
    c = tl.arange(0, HALF_PADDED)[None, :]
    d = tl.arange(0, DIM_PADDED)
    r = tl.arange(0, REST_PADDED)[None, :]
    group = num_rows // count
    if DEPENDENT:
        gdc_wait()
    line = (head * group + known // count).to(tl.int64) * query_head + (known % count).to(tl.int64) * query_token
    line = query + line[:, None]
    q1 = _columns(line + c, c, HALF, HALF_PADDED).to(tl.float32) * exponent
    q2 = _columns(line + HALF + c, c, HALF, HALF_PADDED).to(tl.float32) * exponent
    q3 = tl.zeros([BLOCK, REST_PADDED], dtype=tl.float32)
    if REST > 0:
        q3 = _columns(line + 2 * HALF + r, r, REST, REST_PADDED).to(tl.float32) * exponent
    largest = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    output = tl.zeros([BLOCK, DIM_PADDED], dtype=tl.float32)
    if share < plain_shares:
        used = tl.load(length) if LENGTH_IN_MEMORY else length
        head_base = head.to(tl.int64) * key_head
        largest, total, output = _plain(
            q1, q2, q3, largest, total, output, keys + head_base, values + head_base, share, used,
            used - count + known % count, key_token, PLAIN_TILES, DIM, DIM_PADDED, HALF, HALF_PADDED, REST, REST_PADDED,
            TILE, KEY_TYPE, VALUE_TYPE, PRECISION,
        )  # fmt: skip
    else:
        largest, total, output = _chunk(
            q1, q2, q3, largest, total, output, words, firsts, rows, codes, scales, cosines, sines, head,
            share - plain_shares, table_rows, unscaled, ONE_RUN, ONE_TILE, ROTATE_QUERY, ONE_GROUP, FIELDS, CODES_BY,
            SCALES_BY, DIM, DIM_PADDED, HALF, HALF_PADDED, REST, REST_PADDED, TILE, KEY_TYPE, VALUE_TYPE, PRECISION,
            MATH,
        )  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
    place = (share * heads + head) * num_rows + m
    # A row that sees no key of this share has no sum; its maximum of -inf is passed on to the merge.
    total = tl.where(total > 0, total, 1.0)
    output = output / total[:, None]
    to = outputs + place.to(tl.int64)[:, None] * DIM + d[None, :]
    tl.store(to, output.to(outputs.dtype.element_ty), mask=(m < num_rows)[:, None] & (d < DIM)[None, :])
    tl.store(sums + place, largest + tl.log2(total), mask=m < num_rows)
    if FUSED:
        # Every thread's stores come before the count, and the count before the loads of whoever is last.
        tl.debug_barrier()
        counter = arrived + head * tl.num_programs(2) + block
        if tl.atomic_add(counter, 1, sem="acq_rel") == tl.num_programs(0) - 1:
            tl.debug_barrier()
            merged(
                outputs, sums, result, tl.num_programs(0), head, heads, block * BLOCK, num_rows, count,
                DIM, DIM_PADDED, MERGE_ROWS, MERGE_STEP,
            )  # fmt: skip
            tl.store(counter, 0)
