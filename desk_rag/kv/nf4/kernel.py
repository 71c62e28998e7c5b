"""Triton kernel: few rows times an nf4 matrix, dequantised in registers on its way to the tensor cores.

The weights are the left operand, so that they go from registers to the tensor cores on GPUs that can do so. Even and
odd columns are multiplied apart: a byte holds one of each, and the rows' pairs of numbers are split likewise, so that
nothing has to be interleaved. A program takes a block of output columns and a share of the weights' columns (split-K);
the last program of a block, known by an atomic count, adds the shares in their order, so that results do not depend on
which program came last.
"""

from __future__ import annotations

import triton
import triton.language as tl

HALF_BLOCK = tl.constexpr(32)
"""Bytes of codes that share a scale."""


@triton.jit  # type: ignore[untyped-decorator]
def _levels_of(codes, levels, PERMUTE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Levels of the upper and of the lower four bits of `codes`.

    With PERMUTE in fp16, by byte permutations: the table's upper and lower bytes are constants in registers, three bits
    of a code choose among eight of them, the fourth bit between two such choices. Otherwise read from `levels` in fp32.
    """
    if PERMUTE:
        # -1, -0.6962, -0.5251, -0.3949 | -0.2844, -0.1848, -0.0911, 0 | 0.0796, ... | 0.4407, 0.5626, 0.7230, 1
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 low, high, choice, side, a, b, lower, upper;
            and.b32 choice, $4, 0x77777777;
            shr.u32 side, $4, 1;
            and.b32 side, side, 0x44444444;
            or.b32 low, side, 0x32103210;
            shr.u32 high, low, 16;
            prmt.b32 a, 0x52339200, 0x00d4ea8d, choice;
            prmt.b32 b, 0x68e02618, 0x00c9800d, choice;
            prmt.b32 lower, a, b, low;
            prmt.b32 a, 0xb6b8b9bc, 0x00adb1b4, choice;
            prmt.b32 b, 0x3533312d, 0x3c393837, choice;
            prmt.b32 upper, a, b, low;
            prmt.b32 $0, lower, upper, 0x7351;
            prmt.b32 $2, lower, upper, 0x6240;
            shr.u32 choice, choice, 16;
            prmt.b32 a, 0x52339200, 0x00d4ea8d, choice;
            prmt.b32 b, 0x68e02618, 0x00c9800d, choice;
            prmt.b32 lower, a, b, high;
            prmt.b32 a, 0xb6b8b9bc, 0x00adb1b4, choice;
            prmt.b32 b, 0x3533312d, 0x3c393837, choice;
            prmt.b32 upper, a, b, high;
            prmt.b32 $1, lower, upper, 0x7351;
            prmt.b32 $3, lower, upper, 0x6240;
            }""",
            "=r,=r,=r,=r,r", [codes], dtype=(tl.float16, tl.float16), is_pure=True, pack=4,
        )  # fmt: skip
    else:  # noqa: RET505
        return tl.load(levels + (codes >> 4).to(tl.int32)), tl.load(levels + (codes & 15).to(tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def _scales_of(  # type: ignore[no-untyped-def]
    step, first_group, groups, scale_codes, scale_levels, scale_steps, scale_offsets, GROUPS: tl.constexpr
):
    """Scales [columns, GROUPS] of one step; they are read a step ahead, because one load waits for another."""
    group = (step * GROUPS + tl.arange(0, GROUPS))[None, :]
    place = first_group[:, None] + group
    real = group < groups
    level = tl.load(scale_levels + tl.load(scale_codes + place, mask=real, other=0).to(tl.int32))
    span = tl.load(scale_steps + place // 256, mask=real, other=0.0)
    return level * span + tl.load(scale_offsets + place // 256, mask=real, other=0.0)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    pairs, codes, scale_codes, scale_levels, scale_steps, scale_offsets, levels, bias, partials, arrived, result,
    count, rows_out, half_width,
    BIASED: tl.constexpr, PERMUTE: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
    TYPE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (block of output columns, share of the weights' columns); all `count` <= TOKENS rows at once.

    `pairs` int32 [count, half_width] are the rows, two numbers in one; `codes` uint8 [rows_out, half_width];
    `partials` fp32 [shares, count, rows_out]; `arrived` int32 per block of columns, 0 before and after; `result`
    [count, rows_out].
    """
    block, share, shares = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    n = block * COLUMNS + tl.arange(0, COLUMNS)
    in_rows = tl.minimum(n, rows_out - 1)
    m = tl.arange(0, TOKENS)
    g = tl.arange(0, GROUPS)
    k = tl.arange(0, HALF_BLOCK)
    flat = tl.arange(0, GROUPS * HALF_BLOCK)
    groups = half_width // HALF_BLOCK
    steps = tl.cdiv(groups, GROUPS)
    per_share = tl.cdiv(steps, shares)
    first_group = in_rows * groups
    code_rows = codes + first_group[:, None, None].to(tl.int64) * HALF_BLOCK
    inside = (m < count)[None, :]
    total = tl.zeros([COLUMNS, TOKENS], tl.float32)
    scale = _scales_of(
        share * per_share, first_group, groups, scale_codes, scale_levels, scale_steps, scale_offsets, GROUPS
    )
    for step in tl.range(share * per_share, tl.minimum((share + 1) * per_share, steps), num_stages=STAGES):
        group = step * GROUPS + g
        real = group < groups
        packed = tl.load(
            code_rows + (group[:, None] * HALF_BLOCK + k[None, :])[None], mask=real[None, :, None], other=0
        )
        following = _scales_of(
            step + 1, first_group, groups, scale_codes, scale_levels, scale_steps, scale_offsets, GROUPS
        )
        column = step * (GROUPS * HALF_BLOCK) + flat
        both = tl.load(
            pairs + m[None, :] * half_width + column[:, None], mask=inside & (column < half_width)[:, None], other=0
        )
        even, odd = _levels_of(packed, levels, PERMUTE)
        even = tl.reshape((even.to(tl.float32) * scale[:, :, None]).to(TYPE), [COLUMNS, GROUPS * HALF_BLOCK])
        odd = tl.reshape((odd.to(tl.float32) * scale[:, :, None]).to(TYPE), [COLUMNS, GROUPS * HALF_BLOCK])
        total = tl.dot(even, (both & 0xFFFF).to(tl.int16).to(TYPE, bitcast=True), total)
        total = tl.dot(odd, (both >> 16).to(tl.int16).to(TYPE, bitcast=True), total)
        scale = following
    live = (n < rows_out)[:, None] & inside
    out = m[None, :] * rows_out + n[:, None]
    if shares > 1:
        tl.store(partials + share * count * rows_out + out, total, mask=live)
        # Every thread's stores come before the count, and the count before the loads of whoever is last.
        tl.debug_barrier()
        if tl.atomic_add(arrived + block, 1, sem="acq_rel") == shares - 1:
            tl.debug_barrier()
            total = tl.zeros([COLUMNS, TOKENS], tl.float32)
            for other in range(shares):
                total += tl.load(partials + other * count * rows_out + out, mask=live, other=0.0)
            _finish(total, result, bias, n, rows_out, out, live, BIASED)
            tl.store(arrived + block, 0)
    else:
        _finish(total, result, bias, n, rows_out, out, live, BIASED)


@triton.jit  # type: ignore[untyped-decorator]
def _finish(total, result, bias, n, rows_out, out, live, BIASED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the bias and write the result."""
    if BIASED:
        total += tl.load(bias + n, mask=n < rows_out, other=0.0).to(tl.float32)[:, None]
    tl.store(result + out, total.to(result.dtype.element_ty), mask=live)
