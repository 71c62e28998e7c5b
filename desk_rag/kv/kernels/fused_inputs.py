"""Inputs of the fused operations besides activations: token slots with rotations, query and key norms."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class QKNorms:
    """RMS norms of query and key heads before the rotation (Qwen3, arXiv:2505.09388, section 2)."""

    query: torch.Tensor
    """[D]."""
    key: torch.Tensor
    """[D]."""
    eps: float


@dataclass(frozen=True, slots=True)
class TokenSlots:
    """Cache slots of N tokens, and cos and sin of their positions."""

    slots: torch.Tensor
    """int64 [N], each within the slab; not checked on the device. With projections [1, N, ..] over a slab of several
    rows, slot s of row r is r * H * capacity + s."""
    cos: torch.Tensor
    """[N, D] in the compute dtype, repeated for both halves."""
    sin: torch.Tensor
    """[N, D], with the first half negated."""
