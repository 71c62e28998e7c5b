"""What the fused operations take besides activations: token slots with rotations, and query and key norms."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class QKNorms:
    """RMS norms of single heads in front of the rotation (Qwen3, arXiv:2505.09388, section 2)."""

    query: torch.Tensor
    """[D]."""
    key: torch.Tensor
    """[D]."""
    eps: float


@dataclass(frozen=True, slots=True)
class TokenSlots:
    """Where N tokens are: slots of the slab, and what rotates to their positions."""

    slots: torch.Tensor
    """int64 [N], each within the slab: nobody checks on the device."""
    cos: torch.Tensor
    """[N, D] in the compute dtype, both halves."""
    sin: torch.Tensor
    """[N, D], the first half negated."""
