"""Operations between a decoder layer's matrix products: residual sum with norm, rotation, cache write, SwiGLU.

Separately they are a dozen launches per layer, each of which moves a few megabytes and waits for the one before; the
three kernels of `kernels.fused_ops_triton` need four. Here are the torch reference and the choice per device: the
kernels are used once they have agreed with the reference on this GPU.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import gelu, rms_norm, silu

from desk_rag.kv.kernels.fused_inputs import Pairing, QKNorms, TokenSlots
from desk_rag.kv.kernels.proof import gpu_index, proven

_TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Tolerance relative to a result's largest number: two roundings of its type, more for fp32."""


class FusedOps(Protocol):
    """Fused operations on contiguous tensors of one dtype (bf16, fp16 or fp32) and device; no call blocks."""

    def add_norm(
        self,
        hidden: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        delta_scale: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (hidden + delta * delta_scale, its RMS norm times weight [E]) for [B, N, E].

        Without delta, hidden itself is returned. The sum is rounded to its type first; the norm is computed in fp32 and
        rounded once. The weight may be fp32, as Gemma's is, to which 1 is added. (Zhang & Sennrich, arXiv:1910.07467)
        """
        ...

    def rotate_scatter(
        self,
        projected: torch.Tensor,
        norms: QKNorms | None,
        places: TokenSlots,
        key_slab: torch.Tensor,
        value_slab: torch.Tensor,
    ) -> torch.Tensor:
        """Rotate queries and keys of projected [B, N, (heads + 2 H) * D]; write keys and values to the slabs.

        Slabs are [B, H, capacity, D], or for B = 1 have any number of rows. Returns the rotated query
        [B, heads, N, D], whose memory is [B, N, heads, D].
        """
        ...

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """SiLU(gate) * up for [B, N, 2 I] -> [B, N, I]. (Shazeer, arXiv:2002.05202, section 2)

        SiLU is rounded to its type before the product, as in the models' own modules.
        """
        ...

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """The same with GELU in its approximation by tanh, as Gemma has it."""
        ...


class TorchOps:
    """The torch reference, on any device; x * cos is rounded before the other half is added."""

    def add_norm(
        self,
        hidden: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        delta_scale: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `FusedOps`."""
        total = hidden if delta is None else torch.add(hidden, delta, alpha=delta_scale)
        return total, _rms_norm(total, weight, eps)

    def rotate_scatter(
        self,
        projected: torch.Tensor,
        norms: QKNorms | None,
        places: TokenSlots,
        key_slab: torch.Tensor,
        value_slab: torch.Tensor,
    ) -> torch.Tensor:
        """See `FusedOps`; signs are in the sin table. Partners that are halves of a head are swapped by rolling."""
        _, kv_heads, _, dim = key_slab.shape
        parts = projected.view(*projected.shape[:2], -1, dim)
        heads = parts.shape[2] - 2 * kv_heads
        rotating, value = parts[:, :, :-kv_heads], parts[:, :, -kv_heads:]
        if norms is not None:
            query = _rms_norm(rotating[:, :, :heads], norms.query, norms.eps)
            key = _rms_norm(rotating[:, :, heads:], norms.key, norms.eps)
            rotating = torch.cat((query, key), 2)
        pairing = places.pairing
        if pairing.interleaved or pairing.turned not in (0, dim):
            swapped = rotating[..., pairing.partners(dim)]
        else:
            swapped = rotating.roll(dim // 2, -1)
        turned = torch.addcmul(rotating * places.cos[:, None], swapped, places.sin[:, None])
        for slab, written in ((key_slab, turned[:, :, heads:]), (value_slab, value)):
            _write(slab, places.slots, written)
        query = turned[:, :, :heads]
        return (query if pairing.query_scale == 1.0 else query * pairing.query_scale).transpose(1, 2)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `FusedOps`."""
        gate, up = gate_up.chunk(2, -1)
        return silu(gate) * up

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `FusedOps`."""
        gate, up = gate_up.chunk(2, -1)
        return gelu(gate, approximate="tanh") * up


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm in fp32, rounded once to x's type."""
    if weight.dtype == x.dtype:
        return rms_norm(x, weight.shape, weight, eps)
    return rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def _write(slab: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write rows [B, N, H, D] to these slots [N] of a slab [B, H, capacity, D], as `TokenSlots` says."""
    batch, _, heads, dim = rows.shape
    if slab.shape[0] == batch:
        slab.index_copy_(2, slots, rows.transpose(1, 2))
        return
    first = torch.arange(heads, device=slots.device) * slab.shape[2]
    slab.view(-1, dim).index_copy_(0, (slots[:, None] + first).view(-1), rows.reshape(-1, dim))


def fused_ops_for(device: torch.device, dtype: torch.dtype) -> FusedOps:
    """The kernels if they agree with the reference on this device, else the reference."""
    if device.type != "cuda" or dtype not in _TOLERANCE:
        return TorchOps()
    if not proven("fused operations", _agrees, gpu_index(device), dtype):
        return TorchOps()
    from desk_rag.kv.kernels.fused_ops_triton import TritonOps

    return TritonOps()


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    from desk_rag.kv.kernels.fused_ops_triton import TritonOps

    return agrees(TritonOps(), device, dtype)


def agrees(ops: FusedOps, device: torch.device, dtype: torch.dtype) -> bool:
    """True if a small run of all `ops` gives the reference's results, untouched slots included."""
    pairs = zip(_results(ops, device, dtype), _results(TorchOps(), device, dtype), strict=True)
    return all(
        actual.shape == expected.shape
        and bool((actual - expected).abs().max() <= _TOLERANCE[dtype] * expected.abs().max())
        for actual, expected in pairs
    )


def _results(ops: FusedOps, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    """Results of all `ops` on random numbers, in fp32; no size but the head's is a power of two.

    Everything runs twice, because later launches take another path (see `compiled_launch`).
    """
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    batch, count, width, heads, kv_heads, dim, capacity = 2, 5, 3000, 6, 2, 128, 17
    hidden, delta, weight = random(batch, count, width), random(batch, count, width), random(width)
    results = [
        part
        for its in (weight, weight.float() + 1)
        for other in (delta, None) * 2
        for part in ops.add_norm(hidden, other, its, 1e-6)
    ]
    results += [part for _ in range(2) for part in ops.add_norm(hidden, delta, weight, 1e-6, 0.22)]
    slots = torch.tensor([3, 1, 16, 8, 0], device=device)
    tables = random(count, dim), random(count, dim)
    plain = TokenSlots(slots, *tables)
    others = [Pairing(96), Pairing(interleaved=True), Pairing(64, interleaved=True, query_scale=0.7)]
    projected = random(batch, count, (heads + 2 * kv_heads) * dim)
    wide = QKNorms(random(dim).float() + 1, random(dim).float() + 1, 1e-6)
    cases = [(norms, plain) for norms in (None, QKNorms(random(dim), random(dim), 1e-6), wide)]
    cases += [(norms, TokenSlots(slots, *tables, pairing)) for pairing in others for norms in (None, wide)]
    for norms, places in cases * 2:
        slabs = [random(batch, kv_heads, capacity, dim) for _ in range(2)]
        results += [ops.rotate_scatter(projected, norms, places, slabs[0], slabs[1]), *slabs]
    results += [gated(random(batch, count, 2 * width)) for gated in (ops.swiglu, ops.geglu) for _ in range(2)]
    return [tensor.float() for tensor in results]
