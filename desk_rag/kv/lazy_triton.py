"""Kernel B: attention that reads int8 position-free keys and values in place, rotation deferred into the kernel.

Knows Triton and addresses; the reference is `lazy_attention.attend`. Needs Triton at import, so it is imported only
where `kernels` allows it.

Work is cut into tiles of 16 to 64 tokens of one chunk. One 64-bit word says all about a tile (`lazy_tiles.Tile`); what
is common to a chunk and layer is one row as in Kernel A. Programs take a share of the tiles each (flash-decoding) and
leave a maximum, a sum and an unnormalised output; the prefix and what was read since the question form further shares;
a last kernel merges them by their log-sum-exp.

With few query rows (decode) the query is turned back by the tile's first position, always from the original, and the
keys by their place in the tile: those few rows of the table stay in the L1 cache, where a full table would cost more
traffic than the int8 keys themselves. With many rows (question prefill) keys are turned by their position and the query
is left alone. (LazyAttention, arXiv 2606.04302, for the two ways and the packed word; here keys are raw instead of
rotated at document-local positions, so the second rotation is added.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from desk_rag.kv.lazy_attention import LazyContext
from desk_rag.kv.lazy_tiles import pack_tiles
from desk_rag.kv.types import Int8Layer

_FIELDS = 8
"""tokens, tokens per scale group, scale groups, then offsets in elements: keys, values, key_scale, key_zero,
value_scale."""
_FEW_ROWS = 16
"""Query rows per KV head up to which the query is turned instead of the keys: one block of the matrix unit."""
_MERGE = 16


@dataclass(frozen=True, slots=True)
class LazyTuning:
    """What the kernel may choose freely; `bench kernels --sweep` finds the best."""

    tile: int = 32
    """Tokens per tile: 16, 32 or 64."""
    warps: int = 4
    """For few query rows; twice as many for the question."""
    stages: int = 2
    programs: int = 4
    """Per multiprocessor, as far as there are tiles."""


DEFAULT_TUNING = LazyTuning()


@dataclass(frozen=True, slots=True)
class LazyKernel:
    """Everything that stays the same during an answer; called once per layer and forward pass."""

    context: LazyContext
    words: torch.Tensor
    """int64 [tiles]."""
    rows: torch.Tensor
    """int64 [L, chunks, 8]; rows of layers that are not int8 are zeros and never used."""
    codes: torch.Tensor
    """int8 anchor."""
    scales: torch.Tensor
    """fp16 anchor."""
    alignment: tuple[tuple[int, int], ...]
    """Per layer: what divides every address of codes (up to 16 bytes) and of scales (up to 8 elements)."""
    one_group: tuple[bool, ...]
    """Per layer: every chunk has a single group of key scales."""
    attention_scaling: tuple[float, ...]
    """Per table: what cos and sin are multiplied by (YaRN); turning by two tables would apply it twice."""
    kv_heads: int
    dim: int
    tuning: LazyTuning
    programs: int
    """Programs to aim at."""

    @classmethod
    def of(cls, context: LazyContext, kv_heads: int, dim: int, tuning: LazyTuning = DEFAULT_TUNING) -> LazyKernel:
        """Look up where everything is. The context must not be empty."""
        device = context.tables.cos[0].device
        anchor = torch.empty(16, dtype=torch.int8, device=device)
        layers = len(context.chunks[0].layers)
        rows = np.zeros((layers, len(context.chunks), _FIELDS), dtype=np.int64)
        for layer in range(layers):
            if context.is_int8(layer):
                for segment, (chunk, place) in enumerate(zip(context.chunks, context.placements, strict=True)):
                    coded = chunk.layers[layer]
                    assert isinstance(coded, Int8Layer) and chunk.num_tokens == place.num_tokens
                    rows[layer, segment] = _row(coded, anchor, kv_heads, dim)
        last = max(place.position + place.num_tokens for place in context.placements)
        assert all(table.is_contiguous() and table.shape[0] >= max(last, tuning.tile) for table in context.tables.cos)
        gpu = device.type == "cuda"
        return cls(
            context=context,
            words=torch.from_numpy(pack_tiles(context.placements, tuning.tile)).to(device),
            rows=torch.from_numpy(rows).to(device),
            codes=anchor,
            scales=anchor.view(torch.float16),
            alignment=tuple(_alignment(rows[layer], anchor, dim) for layer in range(layers)),
            one_group=tuple(bool((rows[layer, :, 2] <= 1).all()) for layer in range(layers)),
            attention_scaling=tuple(float(cos[0, 0]) for cos in context.tables.cos),
            kv_heads=kv_heads,
            dim=dim,
            tuning=tuning,
            programs=tuning.programs * torch.cuda.get_device_properties(device).multi_processor_count if gpu else 6,
        )

    def __call__(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """As `lazy_attention.attend`: query [1, heads, N, D], keys/values [1, H, S, D] -> [1, N, heads, D]."""
        _, heads, count, dim = query.shape
        assert keys.shape[:2] == (1, self.kv_heads) and dim == self.dim and keys.stride(3) == query.stride(3) == 1
        assert values.stride() == keys.stride() and keys.dtype == values.dtype == query.dtype
        rows_per_head = heads // self.kv_heads * count
        few = rows_per_head <= _FEW_ROWS
        block = _FEW_ROWS if few else 64
        blocks = triton.cdiv(rows_per_head, block)
        tiles = int(self.words.shape[0])
        per_share = max(1, triton.cdiv(tiles * self.kv_heads * blocks, self.programs))
        shares, plain = triton.cdiv(tiles, per_share), triton.cdiv(keys.shape[2], self.tuning.tile * 4)
        outputs = torch.empty(
            (shares + plain, self.kv_heads, rows_per_head, dim), dtype=torch.float32, device=query.device
        )
        sums = torch.empty((shares + plain, 2, self.kv_heads, rows_per_head), dtype=torch.float32, device=query.device)
        table = self.context.tables.table_of_layer[layer]
        cos, sin = self.context.tables.cos[table], self.context.tables.sin[table]
        half, fp32 = int(cos.shape[1]), query.dtype == torch.float32
        rest = dim - 2 * half
        shape = {
            "DIM": dim, "DIM_PADDED": triton.next_power_of_2(dim), "HALF": half,
            "HALF_PADDED": max(16, triton.next_power_of_2(half)), "REST": rest,
            "REST_PADDED": max(16, triton.next_power_of_2(max(rest, 1))), "BLOCK": block, "TILE": self.tuning.tile,
            # fp16 has three bits more than bf16, and rotated keys and queries are far from its ends; values keep the
            # range of the model's own dtype.
            "KEY_TYPE": tl.float32 if fp32 else tl.float16,
            "VALUE_TYPE": _value_type(query), "PRECISION": "ieee" if fp32 else "tf32",
            "num_warps": self.tuning.warps * (1 if few else 2), "num_stages": self.tuning.stages,
        }  # fmt: skip
        common = (outputs, sums, rows_per_head, count, query.stride(1), query.stride(2))
        exponent = scaling * 1.4426950408889634
        _chunk_shares[(shares, self.kv_heads, blocks)](
            query, self.words, self.rows[layer], self.codes, self.scales, cos, sin, *common, tiles, per_share,
            exponent, 1.0 / self.attention_scaling[table],
            TURN_QUERY=few, ONE_GROUP=self.one_group[layer], FIELDS=_FIELDS,
            CODES_BY=self.alignment[layer][0], SCALES_BY=self.alignment[layer][1], **shape,
        )  # fmt: skip
        _plain_shares[(plain, self.kv_heads, blocks)](
            query, keys, values, *common, keys.shape[2], keys.stride(1), keys.stride(2), shares, exponent,
            TILES=4, **shape,
        )  # fmt: skip
        result = torch.empty((1, count, heads, dim), dtype=query.dtype, device=query.device)
        _merge[(rows_per_head, self.kv_heads)](
            outputs, sums, result, shares + plain, rows_per_head, count, heads // self.kv_heads,
            DIM=dim, DIM_PADDED=shape["DIM_PADDED"], STEP=_MERGE, num_warps=4,
        )  # fmt: skip
        return result


def _value_type(query: torch.Tensor) -> tl.dtype:
    """The type in which weights meet values: the model's, but fp32 where the interpreter could not multiply bf16."""
    if query.dtype == torch.float32 or query.device.type == "cpu":
        return tl.float32
    return tl.float16 if query.dtype == torch.float16 else tl.bfloat16


def _row(coded: Int8Layer, anchor: torch.Tensor, kv_heads: int, dim: int) -> list[int]:
    heads, tokens, width = coded.keys.shape
    groups = coded.key_scale.shape[1]
    parts = (coded.keys, coded.values, coded.key_scale, coded.key_zero, coded.value_scale)
    assert (heads, width) == (kv_heads, dim), "chunk and model differ in shape"
    assert all(part.is_contiguous() and part.device == anchor.device for part in parts)
    assert tokens * dim * heads < 2**31
    distances = [part.data_ptr() - anchor.data_ptr() for part in parts]
    assert all(distance % 2 == 0 for distance in distances[2:])
    return [tokens, -(-tokens // groups), groups, *distances[:2], *(distance // 2 for distance in distances[2:])]


def _alignment(rows: NDArray[np.int64], anchor: torch.Tensor, dim: int) -> tuple[int, int]:
    """Largest powers of two that divide every address: of codes in bytes, of scales in elements."""
    codes = int(np.bitwise_or.reduce(rows[:, 3:5] + anchor.data_ptr(), axis=None)) | dim | 16
    scales = int(np.bitwise_or.reduce(rows[:, 5:7] + anchor.data_ptr() // 2, axis=None)) | dim | 8
    return codes & -codes, scales & -scales


@triton.jit
def _softmax_step(scores, largest, total):  # type: ignore[no-untyped-def]
    """Fold scores [BLOCK, TILE] (base 2, -inf where masked) into the running softmax.

    Returns weights, the factor for what was summed before, and the new maximum and sum.
    """
    new = tl.maximum(largest, tl.max(scores, 1))
    # A block of which nothing is visible yet keeps -inf; the difference of two of them must not become NaN.
    base = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(scores - base[:, None])
    keep = tl.exp2(largest - base)
    return weights, keep, new, total * keep + tl.sum(weights, 1)


@triton.jit  # type: ignore[untyped-decorator]
def _chunk_shares(  # type: ignore[no-untyped-def]
    query, words, rows, codes, scales, cosines, sines, outputs, sums, num_rows, count, head_stride, token_stride,
    num_tiles, per_share, exponent, unscaled,
    TURN_QUERY: tl.constexpr, ONE_GROUP: tl.constexpr, FIELDS: tl.constexpr, CODES_BY: tl.constexpr,
    SCALES_BY: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, REST: tl.constexpr,
    REST_PADDED: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, KEY_TYPE: tl.constexpr,
    VALUE_TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (share of the tiles, KV head, block of query rows). Row r is query head r // count, token r % count."""
    share, head = tl.program_id(0), tl.program_id(1)
    m = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, HALF_PADDED)
    d = tl.arange(0, DIM_PADDED)
    r = tl.arange(0, REST_PADDED)
    i = tl.arange(0, TILE)
    group = num_rows // count
    line = query + (head * group + m // count).to(tl.int64) * head_stride + (m % count).to(tl.int64) * token_stride
    there = (m < num_rows)[:, None]
    half = (c < HALF)[None, :]
    q1 = tl.load(line[:, None] + c[None, :], mask=there & half, other=0.0).to(tl.float32) * exponent
    q2 = tl.load(line[:, None] + HALF + c[None, :], mask=there & half, other=0.0).to(tl.float32) * exponent
    q3 = tl.zeros([BLOCK, REST_PADDED], dtype=tl.float32)
    if REST > 0:
        rest = there & (r < REST)[None, :]
        q3 = tl.load(line[:, None] + 2 * HALF + r[None, :], mask=rest, other=0.0).to(tl.float32) * exponent
    largest = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    output = tl.zeros([BLOCK, DIM_PADDED], dtype=tl.float32)

    first = share * per_share
    for tile in range(first, tl.minimum(first + per_share, num_tiles)):
        word = tl.load(words + tile)
        position = (word & 0xFFFFF).to(tl.int32)
        row = rows + ((word >> 20) & 0x3FF) * FIELDS
        valid = ((word >> 30) & 0x3F).to(tl.int32) + 1
        start = (word >> 36).to(tl.int32) * TILE
        tokens = tl.load(row).to(tl.int32)
        live = i < valid
        pair = live[:, None] & half
        base = head * tokens * DIM
        at = base + (start + i)[:, None] * DIM + c[None, :]
        keys = codes + tl.multiple_of(tl.load(row + 3), CODES_BY)
        scale = scales + tl.multiple_of(tl.load(row + 5), SCALES_BY)
        zero = scales + tl.multiple_of(tl.load(row + 6), SCALES_BY)
        if ONE_GROUP:
            coarse = head * DIM + c[None, :]
            coarse_mask = half
            coarse_rest = head * DIM + 2 * HALF + r[None, :]
            coarse_rest_mask = (r < REST)[None, :]
        else:
            line_of = head * tl.load(row + 2).to(tl.int32) + (start + i) // tl.load(row + 1).to(tl.int32)
            coarse = line_of[:, None] * DIM + c[None, :]
            coarse_mask = pair
            coarse_rest = line_of[:, None] * DIM + 2 * HALF + r[None, :]
            coarse_rest_mask = live[:, None] & (r < REST)[None, :]
        k1 = tl.load(keys + at, mask=pair, other=0).to(tl.float32)
        k2 = tl.load(keys + at + HALF, mask=pair, other=0).to(tl.float32)
        s1 = tl.load(scale + coarse, mask=coarse_mask, other=0.0).to(tl.float32)
        s2 = tl.load(scale + coarse + HALF, mask=coarse_mask, other=0.0).to(tl.float32)
        z1 = tl.load(zero + coarse, mask=coarse_mask, other=0.0).to(tl.float32)
        z2 = tl.load(zero + coarse + HALF, mask=coarse_mask, other=0.0).to(tl.float32)
        k1 = k1 * s1 + z1
        k2 = k2 * s2 + z2
        if TURN_QUERY:
            angle = i[:, None] * HALF + c[None, :]
            bc = tl.load(cosines + position * HALF + c, mask=c < HALF, other=0.0)[None, :] * unscaled
            bs = tl.load(sines + position * HALF + c, mask=c < HALF, other=0.0)[None, :] * unscaled
            a1 = q1 * bc + q2 * bs
            a2 = q2 * bc - q1 * bs
        else:
            angle = (position + i)[:, None] * HALF + c[None, :]
            a1 = q1
            a2 = q2
        kc = tl.load(cosines + angle, mask=pair, other=0.0)
        ks = tl.load(sines + angle, mask=pair, other=0.0)
        t1 = (k1 * kc - k2 * ks).to(KEY_TYPE)
        t2 = (k2 * kc + k1 * ks).to(KEY_TYPE)
        scores = tl.dot(a1.to(KEY_TYPE), tl.trans(t1), input_precision=PRECISION)
        scores = tl.dot(a2.to(KEY_TYPE), tl.trans(t2), scores, input_precision=PRECISION)
        if REST > 0:
            plain = live[:, None] & (r < REST)[None, :]
            k3 = tl.load(keys + base + (start + i)[:, None] * DIM + 2 * HALF + r[None, :], mask=plain, other=0)
            s3 = tl.load(scale + coarse_rest, mask=coarse_rest_mask, other=0.0).to(tl.float32)
            z3 = tl.load(zero + coarse_rest, mask=coarse_rest_mask, other=0.0).to(tl.float32)
            t3 = (k3.to(tl.float32) * s3 + z3).to(KEY_TYPE)
            scores = tl.dot(q3.to(KEY_TYPE), tl.trans(t3), scores, input_precision=PRECISION)
        scores = tl.where(live[None, :], scores, float("-inf"))
        value_at = base + (start + i)[:, None] * DIM + d[None, :]
        whole = live[:, None] & (d < DIM)[None, :]
        v = tl.load(codes + tl.multiple_of(tl.load(row + 4), CODES_BY) + value_at, mask=whole, other=0)
        vs = tl.load(scales + tl.load(row + 7) + head * tokens + start + i, mask=live, other=0.0).to(tl.float32)
        weights, keep, largest, total = _softmax_step(scores, largest, total)
        # The values' scale rides on the weights, so that the codes, exact in any of these types, enter as they are.
        weights = (weights * vs[None, :]).to(VALUE_TYPE)
        output = tl.dot(weights, v.to(VALUE_TYPE), output * keep[:, None], input_precision=PRECISION)

    place = (share * tl.num_programs(1) + head).to(tl.int64) * num_rows + m
    tl.store(outputs + place[:, None] * DIM + d[None, :], output, mask=there & (d < DIM)[None, :])
    both = (share * 2 * tl.num_programs(1) + head) * num_rows + m
    tl.store(sums + both, largest, mask=m < num_rows)
    tl.store(sums + both + tl.num_programs(1) * num_rows, total, mask=m < num_rows)


@triton.jit  # type: ignore[untyped-decorator]
def _plain_shares(  # type: ignore[no-untyped-def]
    query, keys, values, outputs, sums, num_rows, count, head_stride, token_stride,
    length, key_head_stride, key_token_stride, first_share, exponent,
    TILES: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr,
    REST: tl.constexpr, REST_PADDED: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, KEY_TYPE: tl.constexpr,
    VALUE_TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `_chunk_shares` for the slab: keys that are rotated already; token n of N sees slots up to length - N + n."""
    share, head = tl.program_id(0), tl.program_id(1)
    m = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, DIM_PADDED)
    i = tl.arange(0, TILE)
    group = num_rows // count
    line = query + (head * group + m // count).to(tl.int64) * head_stride + (m % count).to(tl.int64) * token_stride
    there = (m < num_rows)[:, None] & (d < DIM)[None, :]
    q = tl.load(line[:, None] + d[None, :], mask=there, other=0.0).to(tl.float32) * exponent
    last = length - count + m % count
    largest = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    output = tl.zeros([BLOCK, DIM_PADDED], dtype=tl.float32)
    for tile in range(share * TILES, tl.minimum((share + 1) * TILES, tl.cdiv(length, TILE))):
        slot = tile * TILE + i
        at = head.to(tl.int64) * key_head_stride + slot.to(tl.int64)[:, None] * key_token_stride + d[None, :]
        inside = (slot < length)[:, None] & (d < DIM)[None, :]
        k = tl.load(keys + at, mask=inside, other=0.0).to(KEY_TYPE)
        v = tl.load(values + at, mask=inside, other=0.0)
        scores = tl.dot(q.to(KEY_TYPE), tl.trans(k), input_precision=PRECISION)
        scores = tl.where(slot[None, :] <= last[:, None], scores, float("-inf"))
        weights, keep, largest, total = _softmax_step(scores, largest, total)
        output = tl.dot(weights.to(VALUE_TYPE), v.to(VALUE_TYPE), output * keep[:, None], input_precision=PRECISION)
    place = ((first_share + share) * tl.num_programs(1) + head).to(tl.int64) * num_rows + m
    tl.store(outputs + place[:, None] * DIM + d[None, :], output, mask=there)
    both = ((first_share + share) * 2 * tl.num_programs(1) + head) * num_rows + m
    tl.store(sums + both, largest, mask=m < num_rows)
    tl.store(sums + both + tl.num_programs(1) * num_rows, total, mask=m < num_rows)


@triton.jit  # type: ignore[untyped-decorator]
def _merge(  # type: ignore[no-untyped-def]
    outputs, sums, result, shares, num_rows, count, group,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Program (query row, KV head): bring all shares to one maximum and divide once."""
    row, head = tl.program_id(0), tl.program_id(1)
    heads = tl.num_programs(1)
    d = tl.arange(0, DIM_PADDED)
    s = tl.arange(0, STEP)
    largest = float("-inf")
    for start in range(0, shares, STEP):
        at = ((start + s) * 2 * heads + head) * num_rows + row
        largest = tl.maximum(largest, tl.max(tl.load(sums + at, mask=start + s < shares, other=float("-inf")), 0))
    total = 0.0
    output = tl.zeros([DIM_PADDED], dtype=tl.float32)
    for start in range(0, shares, STEP):
        known = start + s < shares
        at = ((start + s) * 2 * heads + head) * num_rows + row
        factor = tl.exp2(tl.load(sums + at, mask=known, other=float("-inf")) - largest)
        total += tl.sum(factor * tl.load(sums + at + heads * num_rows, mask=known, other=0.0), 0)
        place = ((start + s) * heads + head).to(tl.int64) * num_rows + row
        inside = known[:, None] & (d < DIM)[None, :]
        part = tl.load(outputs + place[:, None] * DIM + d[None, :], mask=inside, other=0.0)
        output += tl.sum(part * factor[:, None], 0)
    to = (row % count) * heads * group + head * group + row // count
    tl.store(result + to.to(tl.int64) * DIM + d, (output / total).to(result.dtype.element_ty), mask=d < DIM)
