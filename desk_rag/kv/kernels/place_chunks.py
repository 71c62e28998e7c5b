"""Triton kernel that places int8 chunks into the cache: dequantize, rotate and write, in one launch.

Called "Kernel A" in bench/LOG.md. The torch reference is `stitch.place_layer`. The module imports Triton, so import it
only where `kernels.availability` allows it.

Every (chunk, layer) pair is one row of an int64 table: offsets of its codes, scales, rotary tables and slots, in
elements from one anchor tensor per dtype. Chunks, layers, tables and slabs can thus be separate allocations, and
nothing is stacked, padded or concatenated first. Arithmetic is fp32 with one rounding at the end, as in the reference.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from desk_rag.kv.cache import SlabCache, SlabLayer
from desk_rag.kv.kernels.upload import upload
from desk_rag.kv.payload import PayloadLayout
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.types import Int8Layer, QuantizedKV

if TYPE_CHECKING:
    from desk_rag.kv.positions import Placement

NUM_FIELDS = 12
"""tokens, tokens per scale group, scale groups, keys, values, key_scale, key_zero, value_scale, cos, sin, key slot,
value slot; the last nine as offsets in elements."""
Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Launch parameters of the kernel; `bench kernels --sweep` measures the best."""

    tile: int = 32
    """Tokens per program."""
    heads: int = 4
    """Maximum heads per program: they share one load of cos and sin, which otherwise cost as much as the codes."""
    warps: int = 4


DEFAULT_TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Target:
    """Offsets of rotary tables and slabs from one anchor each; `layerwise.CacheTarget` keeps it."""

    codes: torch.Tensor
    """int8 anchor, any tensor on the device."""
    scales: torch.Tensor
    """fp16 anchor."""
    table: torch.Tensor
    """fp32 anchor [positions, R / 2]: the first cos table."""
    slab: torch.Tensor
    """Anchor of the cache's dtype [1, H, capacity, D]: layer 0's keys."""
    places: Offsets
    """[L, 4]: cos and sin of each layer, in elements from `table`, its keys and values, in elements from `slab`."""

    @classmethod
    def of(cls, tables: RotaryTables, layers: Sequence[SlabLayer]) -> Target:
        """Compute the offsets; asserts that slabs and tables are uniform, contiguous and on one device."""
        slab, table = layers[0].key_slab, tables.cos[0]
        assert slab.dim() == 4 and slab.shape[0] == 1 and slab.is_floating_point()
        slabs = [each for layer in layers for each in (layer.key_slab, layer.value_slab)]
        kinds = {(each.shape, each.dtype, each.device, each.is_contiguous()) for each in slabs}
        assert kinds == {(slab.shape, slab.dtype, slab.device, True)}, "slabs differ"
        for other in (*tables.cos, *tables.sin):
            assert other.shape == table.shape and other.dtype == torch.float32 and other.is_contiguous()
            assert other.device == slab.device, "tables and slabs are on different devices"
        assert len(tables.table_of_layer) == len(layers)
        anchor = torch.empty(16, dtype=torch.int8, device=slab.device)
        turning = [(_offset(c, table), _offset(s, table)) for c, s in zip(tables.cos, tables.sin, strict=True)]
        slots = [_offset(each, slab) for each in slabs]
        # The kernel is promised that much of every row it writes.
        assert not slab.shape[3] % 8 and not any(slot % 8 for slot in slots), "rows of slabs are multiples of 8 numbers"
        places = [(*turning[index], *slots[2 * n : 2 * n + 2]) for n, index in enumerate(tables.table_of_layer)]
        return cls(anchor, anchor.view(torch.float16), table, slab, np.array(places, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Batch:
    """The kernel's rows of an answer on the device, by layer, and facts that hold for all of them."""

    rows: torch.Tensor
    """int64 [L, chunks, 12]; rows of 0 tokens are skipped."""
    most_tokens: int
    one_group: bool
    """Every row has a single group of key scales."""
    codes_by: int
    """Powers of two that divide every address of codes, scales and angles, in elements."""
    scales_by: int
    angles_by: int


def place_group(
    layers: Iterable[int],
    placements: Sequence[Placement],
    chunks: Sequence[QuantizedKV],
    tables: RotaryTables,
    cache: SlabCache,
    shifts: torch.Tensor | None = None,
) -> None:
    """Write `layers` of all chunks into the slabs, dequantized, shifted and rotated, in one launch.

    All layers named must be int8 and on the cache's device. Same result as `stitch.place_layer` for each of them.
    `shifts` [L, C, 2, H, D], of every layer of the cache, are added to keys before rotation and to values.
    """
    wanted = list(layers)
    if not wanted or not chunks:
        return
    target = Target.of(tables, cache.layers)
    rows = np.empty((len(wanted), len(chunks), NUM_FIELDS), dtype=np.int64)
    for number, layer in enumerate(wanted):
        for index, (placement, chunk) in enumerate(zip(placements, chunks, strict=True)):
            coded = chunk.layers[layer]
            assert isinstance(coded, Int8Layer), "raw layers are placed by the reference"
            assert chunk.num_tokens == placement.num_tokens, "plan and chunk differ in length"
            rows[number, index] = row_of(coded, target, layer, placement.position, placement.slot)
    launch(batch_of_rows(rows, target), target, shifts=None if shifts is None else shifts[wanted])


def row_of(coded: Int8Layer, target: Target, layer: int, position: int, slot: int) -> Offsets:
    """The row [12] that places one layer of one chunk."""
    heads, tokens, dim = coded.keys.shape
    groups = coded.key_scale.shape[1]
    parts = (coded.keys, coded.values, coded.key_scale, coded.key_zero, coded.value_scale)
    assert all(part.is_contiguous() and part.device == target.codes.device for part in parts)
    assert coded.key_scale.shape == coded.key_zero.shape == (heads, groups, dim)
    assert coded.values.shape == coded.keys.shape and coded.value_scale.shape == (heads, tokens)
    assert (heads, dim) == (target.slab.shape[1], target.slab.shape[3]), "chunk and cache differ in shape"
    row = np.empty(NUM_FIELDS, dtype=np.int64)
    row[:3] = tokens, -(-tokens // groups), groups
    row[3:5] = _offset(coded.keys, target.codes), _offset(coded.values, target.codes)
    row[5:8] = [_offset(part, target.scales) for part in parts[2:]]
    row[8:] = target.places[layer] + _shift(target, position, slot)
    return row


def batch_of_rows(rows: Offsets, target: Target) -> Batch:
    """Check and upload rows [L, chunks, 12]; what they point to must live until the kernel is done."""
    flat = rows.reshape(-1, NUM_FIELDS)
    flat = flat[flat[:, 0] > 0]
    _check(flat, target)
    dim, half = target.slab.shape[3], target.table.shape[1]
    return Batch(
        rows=upload(rows, target.slab.device),
        most_tokens=int(flat[:, 0].max(initial=0)),
        one_group=bool((flat[:, 2] == 1).all()),
        # Wider loads of codes than 8 bytes only force a detour through shared memory: a store takes 8 elements.
        codes_by=_divisor(flat[:, 3:5] + target.codes.data_ptr(), 1, 8, dim),
        scales_by=_divisor(flat[:, 5:7] * 2 + target.scales.data_ptr(), 2, 8, dim),
        angles_by=_divisor(flat[:, 8:10] * 4 + target.table.data_ptr(), 4, 4, half),
    )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded payload (uint8 [bytes], on the device) with its position and slot."""

    layout: PayloadLayout
    payload: torch.Tensor
    position: int
    slot: int


def batch_of_payloads(chunks: Sequence[Loaded], target: Target) -> Batch:
    """Compute and upload the rows of every layer of all chunks; layers that are not int8 are skipped.

    This runs before the first GPU work of an answer, so it is kept short: no tensor per layer, layouts are computed
    once per file, and checks are made per chunk.
    """
    rows = rows_of_payloads(chunks, target)
    layouts = [one.layout for one in chunks]
    addresses = functools.reduce(operator.or_, (one.payload.data_ptr() for one in chunks))
    code_bits = functools.reduce(operator.or_, (layout.code_offset_bits for layout in layouts))
    scale_bits = functools.reduce(operator.or_, (layout.scale_offset_bits for layout in layouts))
    dim, half = target.slab.shape[3], target.table.shape[1]
    return Batch(
        rows=upload(rows, target.slab.device),
        most_tokens=max(each.num_tokens for each in layouts),
        one_group=all(each.one_group for each in layouts),
        codes_by=_divisor(addresses | code_bits, 1, 8, dim),
        scales_by=_divisor(addresses | scale_bits, 2, 8, dim),
        angles_by=_divisor(target.places[:, :2] * 4 + target.table.data_ptr(), 4, 4, half),
    )


def rows_of_payloads(chunks: Sequence[Loaded], target: Target) -> Offsets:
    """Rows [L, chunks, 12], all of them within tables and slabs; those of layers that are not int8 have 0 tokens."""
    _, heads, capacity, dim = target.slab.shape
    positions = target.table.shape[0]
    device, anchors = target.codes.device, (target.codes.data_ptr(), target.scales.data_ptr())
    moves = []
    for one in chunks:
        layout, payload, address = one.layout, one.payload, one.payload.data_ptr()
        assert payload.dtype == torch.uint8 and payload.is_contiguous() and payload.device == device
        assert payload.shape[0] >= layout.nbytes, "the layout goes on past the payload"
        assert (layout.heads, layout.dim) == (heads, dim), "chunk and cache differ in shape"
        assert layout.num_tokens * dim * heads < 2**31, "a chunk is too long for 32-bit offsets"
        assert 0 <= one.position <= positions - layout.num_tokens, "positions lie past the tables"
        assert 0 <= one.slot <= capacity - layout.num_tokens, "slots lie outside the slab"
        assert not address % 2, "scales are fp16"
        codes, scales = address - anchors[0], (address - anchors[1]) // 2
        moves.append((0, 0, 0, codes, codes, scales, scales, scales, *_shift(target, one.position, one.slot)))
    rows = np.stack([one.layout.rows for one in chunks], axis=1)
    rows[..., 8:] = target.places[:, None]
    rows += np.array(moves, dtype=np.int64)
    return rows


def _shift(target: Target, position: int, slot: int) -> tuple[int, int, int, int]:
    """Offsets added to a layer's places, in elements: of cos, sin, keys, values."""
    turned, moved = position * target.table.shape[1], slot * target.slab.shape[3]
    return turned, turned, moved, moved


def launch(
    batch: Batch, target: Target, layers: slice = slice(None), tuning: Tuning = DEFAULT_TUNING,
    shifts: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Run the kernel for `layers` of the batch on the current stream; what rows point to must live until it is done.

    `shifts` fp32 [L, C, 2, H, D] go with the batch's rows [L, C].
    """
    rows = batch.rows[layers].flatten(0, 1)
    if not batch.most_tokens or not len(rows):
        return
    _, heads, capacity, dim = target.slab.shape
    half = int(target.table.shape[1])
    rest = dim - 2 * half
    per_program = next(count for count in (tuning.heads, 4, 2, 1) if count <= tuning.heads and heads % count == 0)
    grid = (triton.cdiv(batch.most_tokens, tuning.tile), heads // per_program, len(rows))
    assert grid[2] < 65_536, "too many chunk-layers for one launch"
    if shifts is not None:
        assert shifts.shape == (*batch.rows.shape[:2], 2, heads, dim) and shifts.dtype == torch.float32
        assert shifts.is_contiguous() and shifts.device == target.slab.device
        shifts = shifts[layers]
    _dequant_rope_scatter[grid](
        rows, target.codes, target.scales, target.table, target.slab, target.table if shifts is None else shifts,
        capacity * dim, SHIFTED=shifts is not None,
        DIM=dim, DIM_PADDED=triton.next_power_of_2(dim), HALF=half, HALF_PADDED=triton.next_power_of_2(half),
        REST=rest, REST_PADDED=triton.next_power_of_2(max(rest, 1)), TILE=tuning.tile, HEADS=per_program,
        ONE_GROUP=batch.one_group, NUM_FIELDS=NUM_FIELDS, CODES_BY=batch.codes_by, SCALES_BY=batch.scales_by,
        ANGLES_BY=batch.angles_by, num_warps=tuning.warps,
    )  # fmt: skip


def _check(rows: Offsets, target: Target) -> None:
    """The kernel follows addresses: everything it will touch in tables and slabs is proven to exist here."""
    assert rows.dtype == np.int64 and rows.shape[1] == NUM_FIELDS
    if not len(rows):
        return
    _, heads, capacity, dim = target.slab.shape
    tokens = rows[:, :1]
    assert int(tokens.max()) * dim * heads < 2**31, "a chunk is too long for 32-bit offsets"
    assert (rows[:, 1] * rows[:, 2] >= rows[:, 0]).all(), "scale groups do not cover the chunk"
    half, positions = target.table.shape[1], target.table.numel()
    assert _inside(rows[:, 8:10], tokens * half, target.places[:, :2], positions), "positions lie past the tables"
    assert _inside(rows[:, 10:12], tokens * dim, target.places[:, 2:], capacity * dim), "slots lie outside the slab"


def _inside(starts: Offsets, lengths: Offsets, bases: Offsets, size: int) -> bool:
    """True if every [start, start + length) lies within [base, base + size) of the last base that is not after it."""
    known = np.unique(bases)
    index = np.searchsorted(known, starts, side="right") - 1
    return bool((index >= 0).all() and (starts + lengths <= known[index] + size).all())


def _offset(tensor: torch.Tensor, anchor: torch.Tensor) -> int:
    """Elements from `anchor` to `tensor`, wherever the allocator put them."""
    distance = tensor.data_ptr() - anchor.data_ptr()
    assert distance % anchor.element_size() == 0 and tensor.dtype == anchor.dtype
    return int(distance // anchor.element_size())


def _divisor(addresses: Offsets | int, size: int, largest: int, row: int) -> int:
    """Largest power of two (at most `largest`, in elements of `size` bytes) that divides addresses and row length."""
    bits = addresses if isinstance(addresses, int) else int(np.bitwise_or.reduce(addresses, axis=None))
    bits |= row * size | largest * size
    return max((bits & -bits) // size, 1)


@triton.jit  # type: ignore[untyped-decorator]
def _dequant_rope_scatter(  # type: ignore[no-untyped-def]  # Triton reads annotations: only its own may stand here
    rows, codes, scales, tables, slabs, shifts, head_stride, SHIFTED: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr,
    REST: tl.constexpr, REST_PADDED: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr,
    ONE_GROUP: tl.constexpr, NUM_FIELDS: tl.constexpr, CODES_BY: tl.constexpr, SCALES_BY: tl.constexpr,
    ANGLES_BY: tl.constexpr,
):  # fmt: skip
    """Program (token tile, block of heads, row). Out-of-range lanes are masked: T is arbitrary, D need not be 2^n."""
    row = rows + tl.program_id(2) * NUM_FIELDS
    tokens = tl.load(row).to(tl.int32)
    first = tl.program_id(0) * TILE
    if first >= tokens:
        return
    span = tl.load(row + 1).to(tl.int32)
    groups = tl.load(row + 2).to(tl.int32)
    key_codes = codes + tl.multiple_of(tl.load(row + 3), CODES_BY)
    value_codes = codes + tl.multiple_of(tl.load(row + 4), CODES_BY)
    key_scale = scales + tl.multiple_of(tl.load(row + 5), SCALES_BY)
    key_zero = scales + tl.multiple_of(tl.load(row + 6), SCALES_BY)
    value_scale = scales + tl.load(row + 7)
    key_slots = slabs + tl.multiple_of(tl.load(row + 10), 8)
    value_slots = slabs + tl.multiple_of(tl.load(row + 11), 8)

    t = first + tl.arange(0, TILE)
    live = t < tokens
    c = tl.arange(0, HALF_PADDED)
    d = tl.arange(0, DIM_PADDED)
    pair = live[:, None] & (c < HALF)[None, :]
    whole = live[:, None] & (d < DIM)[None, :]
    angle = t[:, None] * HALF + c[None, :]
    cos = tl.load(tables + tl.multiple_of(tl.load(row + 8), ANGLES_BY) + angle, mask=pair, other=0.0)
    sin = tl.load(tables + tl.multiple_of(tl.load(row + 9), ANGLES_BY) + angle, mask=pair, other=0.0)
    if ONE_GROUP:
        coarse = c[None, :]
        coarse_mask = (c < HALF)[None, :]
    else:
        coarse = (t // span)[:, None] * DIM + c[None, :]
        coarse_mask = pair

    for i in range(HEADS):
        head = tl.program_id(1) * HEADS + i
        from_here = head * tokens * DIM + t[:, None] * DIM
        to_here = head.to(tl.int64) * head_stride + t[:, None] * DIM
        offsets = from_here + c[None, :]
        of_head = head * groups * DIM + coarse
        q1 = tl.load(key_codes + offsets, mask=pair, other=0).to(tl.float32)
        q2 = tl.load(key_codes + offsets + HALF, mask=pair, other=0).to(tl.float32)
        s1 = tl.load(key_scale + of_head, mask=coarse_mask, other=0.0).to(tl.float32)
        s2 = tl.load(key_scale + of_head + HALF, mask=coarse_mask, other=0.0).to(tl.float32)
        z1 = tl.load(key_zero + of_head, mask=coarse_mask, other=0.0).to(tl.float32)
        z2 = tl.load(key_zero + of_head + HALF, mask=coarse_mask, other=0.0).to(tl.float32)
        k1 = q1 * s1 + z1
        k2 = q2 * s2 + z2
        if SHIFTED:  # of this row: keys [H, D], then values [H, D]
            shift = shifts + (tl.program_id(2) * 2 * tl.num_programs(1) * HEADS + head) * DIM
            k1 += tl.load(shift + c, mask=c < HALF, other=0.0)[None, :]
            k2 += tl.load(shift + HALF + c, mask=c < HALF, other=0.0)[None, :]
        turned = key_slots + to_here + c[None, :]
        tl.store(turned, (k1 * cos - k2 * sin).to(slabs.dtype.element_ty), mask=pair)
        tl.store(turned + HALF, (k2 * cos + k1 * sin).to(slabs.dtype.element_ty), mask=pair)
        if REST > 0:
            r = tl.arange(0, REST_PADDED)
            plain = live[:, None] & (r < REST)[None, :]
            if ONE_GROUP:
                of_rest = head * groups * DIM + 2 * HALF + r[None, :]
                rest_mask = (r < REST)[None, :]
            else:
                of_rest = head * groups * DIM + (t // span)[:, None] * DIM + 2 * HALF + r[None, :]
                rest_mask = plain
            q3 = tl.load(key_codes + from_here + 2 * HALF + r[None, :], mask=plain, other=0).to(tl.float32)
            s3 = tl.load(key_scale + of_rest, mask=rest_mask, other=0.0).to(tl.float32)
            z3 = tl.load(key_zero + of_rest, mask=rest_mask, other=0.0).to(tl.float32)
            k3 = q3 * s3 + z3
            if SHIFTED:
                k3 += tl.load(shift + 2 * HALF + r, mask=r < REST, other=0.0)[None, :]
            tl.store(key_slots + to_here + 2 * HALF + r[None, :], k3.to(slabs.dtype.element_ty), mask=plain)
        vs = tl.load(value_scale + head * tokens + t, mask=live, other=0.0).to(tl.float32)
        v = tl.load(value_codes + from_here + d[None, :], mask=whole, other=0).to(tl.float32) * vs[:, None]
        if SHIFTED:
            v += tl.load(shift + tl.num_programs(1) * HEADS * DIM + d, mask=d < DIM, other=0.0)[None, :]
        tl.store(value_slots + to_here + d[None, :], v.to(slabs.dtype.element_ty), mask=whole)
