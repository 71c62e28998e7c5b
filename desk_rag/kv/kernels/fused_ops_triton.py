"""Triton kernels for residual sum with norm, rotation with cache write, and gated units.

The reference is in `fused_ops`, which imports this module only where Triton can be used.

Everything is computed in fp32. Results are rounded, and so are intermediate results that the reference writes to memory
(residual sum, head norm, SiLU); a rotation is rounded once where the reference rounds twice. Shapes are compiled in,
token counts are not, so a model's kernels are compiled at its first pass. Outside of graphs a launch takes the host
longer than the work takes a GPU; see `compiled_launch`.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from desk_rag.kv.kernels.compiled_launch import CompiledLaunch
from desk_rag.kv.kernels.fused_inputs import WHOLE_HEADS, Pairing, QKNorms, TokenSlots

HEADS_AT_ONCE = 4
"""Heads of one token per program: enough to load 16 bytes per thread, few enough to fill a GPU with 128 tokens."""
ROTATE_WARPS = 1
COLUMNS = 1024
"""Columns of a gated unit per program."""
GLU_WARPS = 4


class TritonOps:
    """See `fused_ops.FusedOps`; on a GPU, or on a CPU in Triton's interpreter."""

    def add_norm(
        self,
        hidden: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        delta_scale: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `fused_ops.FusedOps`."""
        width = hidden.shape[-1]
        assert hidden.is_contiguous() and weight.shape == (width,) and weight.is_contiguous()
        added = delta is not None
        assert delta is None or (delta.shape == hidden.shape and delta.dtype == hidden.dtype and delta.is_contiguous())
        total = torch.empty_like(hidden) if added else hidden
        normed = torch.empty_like(hidden)
        launch = _norm_launch(hidden.dtype, weight.dtype, width, added, delta_scale if added else 1.0)
        tensors = (hidden, hidden if delta is None else delta, weight, total, normed)
        launch((hidden.numel() // width, 1, 1), tensors, eps)
        return total, normed

    def rotate_scatter(
        self,
        projected: torch.Tensor,
        norms: QKNorms | None,
        places: TokenSlots,
        key_slab: torch.Tensor,
        value_slab: torch.Tensor,
    ) -> torch.Tensor:
        """See `fused_ops.FusedOps`."""
        batch, count, width = projected.shape
        _, kv_heads, capacity, dim = key_slab.shape
        heads = width // dim - 2 * kv_heads
        table = (count, dim)
        assert width == (heads + 2 * kv_heads) * dim and heads > 0 and dim % 2 == 0
        assert key_slab.shape == value_slab.shape and batch in (1, key_slab.shape[0])
        cos, sin, slots = places.cos, places.sin, places.slots
        assert cos.shape == sin.shape == table and slots.shape == (count,)
        assert projected.dtype == key_slab.dtype == value_slab.dtype == cos.dtype == sin.dtype
        assert projected.is_contiguous() and key_slab.is_contiguous() and value_slab.is_contiguous()
        assert cos.is_contiguous() and sin.is_contiguous() and slots.is_contiguous() and slots.dtype == torch.int64
        assert norms is None or (norms.query.shape == norms.key.shape == (dim,))
        query = torch.empty((batch, count, heads, dim), dtype=projected.dtype, device=projected.device)
        # Without norms something has to be passed that is not read.
        used = QKNorms(cos, cos, 0.0) if norms is None else norms
        types = (projected.dtype, used.query.dtype, used.key.dtype)
        assert places.pairing.turned % 2 == 0 and places.pairing.turned <= dim
        launch = _rotation_launch(types, heads, kv_heads, dim, norms is not None, places.pairing)
        launch(
            (count, blocks(heads, kv_heads), batch),
            (projected, query, key_slab, value_slab, used.query, used.key, cos, sin, slots), capacity, used.eps,
        )  # fmt: skip
        return query.transpose(1, 2)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `fused_ops.FusedOps`."""
        return _gated(gate_up, gelu=False)

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `fused_ops.FusedOps`."""
        return _gated(gate_up, gelu=True)


def _gated(gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    assert gate_up.is_contiguous() and gate_up.shape[-1] % 2 == 0
    inner = gate_up.shape[-1] // 2
    result = torch.empty((*gate_up.shape[:-1], inner), dtype=gate_up.dtype, device=gate_up.device)
    launch = _gated_launch(gate_up.dtype, inner, gelu)
    launch((result.numel() // inner, -(-inner // COLUMNS), 1), (gate_up, result))
    return result


@functools.lru_cache(maxsize=256)
def _norm_launch(
    dtype: torch.dtype, of_weight: torch.dtype, width: int, added: bool, delta_scale: float
) -> CompiledLaunch:
    block = triton.next_power_of_2(width)
    constants: dict[str, object] = {"WIDTH": width, "BLOCK": block, "ADDED": added, "DELTA_SCALE": delta_scale}
    return CompiledLaunch(_add_norm, constants, {"num_warps": norm_warps(block)})


@functools.lru_cache(maxsize=256)
def _rotation_launch(
    types: tuple[torch.dtype, ...], heads: int, kv_heads: int, dim: int, normed: bool, pairing: Pairing
) -> CompiledLaunch:
    return CompiledLaunch(_rotate_scatter, rotation(heads, kv_heads, dim, normed, pairing), {"num_warps": ROTATE_WARPS})


@functools.lru_cache(maxsize=256)
def _gated_launch(dtype: torch.dtype, inner: int, gelu: bool) -> CompiledLaunch:
    return CompiledLaunch(_glu, {"INNER": inner, "BLOCK": COLUMNS, "GELU": gelu}, {"num_warps": GLU_WARPS})


def norm_warps(block: int) -> int:
    """Warps for a row of `block` columns: 16 columns per thread, as far as a program may have so many threads."""
    return min(16, max(1, block // 512))


def blocks(heads: int, kv_heads: int) -> int:
    """Programs per token: of queries, of keys and of values; none has two kinds."""
    return -(-heads // HEADS_AT_ONCE) - 2 * (-kv_heads // HEADS_AT_ONCE)


def rotation(heads: int, kv_heads: int, dim: int, normed: bool, pairing: Pairing = WHOLE_HEADS) -> dict[str, object]:
    """Constants the rotation is compiled for."""
    return {
        "HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "HALF_PADDED": triton.next_power_of_2(dim // 2),
        "AT_ONCE": HEADS_AT_ONCE, "NORMED": normed, "TURNED": pairing.turned or dim,
        "INTERLEAVED": pairing.interleaved, "QUERY_SCALE": pairing.query_scale,
    }  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(  # type: ignore[no-untyped-def]
    hidden, delta, weight, total, normed, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADDED: tl.constexpr,
    DELTA_SCALE: tl.constexpr = 1.0,
):  # fmt: skip
    """One row; grid (rows,)."""
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    offsets = tl.program_id(0).to(tl.int64) * WIDTH + columns
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(hidden + offsets, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        x += tl.load(delta + offsets, mask=inside, other=0.0).to(tl.float32) * DELTA_SCALE
        rounded = x.to(total.dtype.element_ty)
        tl.store(total + offsets, rounded, mask=inside)
        x = rounded.to(tl.float32)
    square = tl.sum(x * x, 0) / WIDTH
    tl.store(normed + offsets, (x * tl.rsqrt(square + eps) * scale).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _wide(source, inside):  # type: ignore[no-untyped-def]
    """Load as fp32."""
    return tl.load(source, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _pairs(pairs, DIM: tl.constexpr, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr):  # type: ignore[no-untyped-def]
    """First dimension of each pair, and how far behind it the second is; see `fused_inputs.Pairing`."""
    HALF: tl.constexpr = DIM // 2
    first = pairs
    step = tl.full(pairs.shape, HALF, pairs.dtype)
    if INTERLEAVED:
        first = 2 * pairs
        step = tl.full(pairs.shape, 1, pairs.dtype)
    elif TURNED < DIM:
        turns = pairs < TURNED // 2
        first = tl.where(turns, pairs, pairs + TURNED // 2)
        step = tl.where(turns, TURNED // 2, HALF - TURNED // 2)
    return first, step


@triton.jit  # type: ignore[untyped-decorator]
def _turned(source, norm, cos, sin, step, inside, eps, DIM: tl.constexpr, NORMED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both of each pair of some heads of one token, rotated. All but eps are [heads, pairs]; pointers are to the first.

    Tables are the same for all heads, and still read for each of them: they come from the nearest cache, while handing
    one copy around would take barriers.
    """
    kind = source.dtype.element_ty
    low, high = _wide(source, inside), _wide(source + step, inside)
    low_cos, high_cos = _wide(cos, inside), _wide(cos + step, inside)
    low_sin, high_sin = _wide(sin, inside), _wide(sin + step, inside)
    if NORMED:
        factor = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + eps)[:, None]
        low = (low * factor * _wide(norm, inside)).to(kind).to(tl.float32)
        high = (high * factor * _wide(norm + step, inside)).to(kind).to(tl.float32)
    return low * low_cos + high * low_sin, high * high_cos + low * high_sin


@triton.jit(do_not_specialize=["capacity"])  # type: ignore[untyped-decorator]
def _rotate_scatter(  # type: ignore[no-untyped-def]
    projected, query, keys, values, q_norm, k_norm, cos, sin, slots, capacity, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF_PADDED: tl.constexpr,
    AT_ONCE: tl.constexpr, NORMED: tl.constexpr, TURNED: tl.constexpr, INTERLEAVED: tl.constexpr,
    QUERY_SCALE: tl.constexpr,
):  # fmt: skip
    """Some heads of one kind of one token; grid (tokens, blocks of heads, batch)."""
    HALF: tl.constexpr = DIM // 2
    QUERY_BLOCKS: tl.constexpr = (HEADS + AT_ONCE - 1) // AT_ONCE
    KEY_BLOCKS: tl.constexpr = (KV_HEADS + AT_ONCE - 1) // AT_ONCE
    token, block, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row = batch * tl.num_programs(0) + token
    pairs = tl.broadcast_to(tl.arange(0, HALF_PADDED)[None, :], [AT_ONCE, HALF_PADDED])
    of_block = tl.arange(0, AT_ONCE)[:, None]
    projected += row * (HEADS + 2 * KV_HEADS) * DIM
    first, step = _pairs(pairs, DIM, TURNED, INTERLEAVED)
    cos += token * DIM + first
    sin += token * DIM + first
    if block < QUERY_BLOCKS:
        head = block * AT_ONCE + of_block
        inside = (head < HEADS) & (pairs < HALF)
        offsets = head * DIM + first
        low, high = _turned(projected + offsets, q_norm + first, cos, sin, step, inside, eps, DIM, NORMED)
        result = query + row * HEADS * DIM + offsets
        low, high = (low * QUERY_SCALE).to(query.dtype.element_ty), (high * QUERY_SCALE).to(query.dtype.element_ty)
        tl.store(result, low, mask=inside)
        tl.store(result + step, high, mask=inside)
    else:
        block -= QUERY_BLOCKS
        head = block % KEY_BLOCKS * AT_ONCE + of_block
        inside = (head < KV_HEADS) & (pairs < HALF)
        offsets = head * DIM + first
        slot = tl.load(slots + token)
        target = ((batch * KV_HEADS + head) * capacity + slot) * DIM + first
        if block < KEY_BLOCKS:
            source = projected + HEADS * DIM + offsets
            low, high = _turned(source, k_norm + first, cos, sin, step, inside, eps, DIM, NORMED)
            low, high = low.to(keys.dtype.element_ty), high.to(keys.dtype.element_ty)
            tl.store(keys + target, low, mask=inside)
            tl.store(keys + target + step, high, mask=inside)
        else:
            source = projected + (HEADS + KV_HEADS) * DIM + offsets
            low, high = tl.load(source, mask=inside), tl.load(source + step, mask=inside)
            tl.store(values + target, low, mask=inside)
            tl.store(values + target + step, high, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _glu(  # type: ignore[no-untyped-def]
    gate_up, result, INNER: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr
):
    """Some columns of one row of SwiGLU, or of GeGLU with GELU's approximation; grid (rows, blocks of columns)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < INNER
    gate = tl.load(gate_up + row * 2 * INNER + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * INNER + INNER + columns, mask=inside, other=0.0).to(tl.float32)
    # tanh(a) = 2 / (1 + exp(-2 a)) - 1, so gate * (1 + tanh(a)) / 2 = gate / (1 + exp(-2 a)).
    inner = gate
    if GELU:
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    gate = (gate / (1.0 + tl.exp(-inner))).to(result.dtype.element_ty).to(tl.float32)
    tl.store(result + row * INNER + columns, (gate * up).to(result.dtype.element_ty), mask=inside)
