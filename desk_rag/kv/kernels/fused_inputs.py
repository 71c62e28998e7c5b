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
class Pairing:
    """Dimensions of a head that are turned together, and the factor of queries.

    Every dimension has a partner; those that do not turn have cos 1 and sin 0.
    """

    turned: int = 0
    """Number of dimensions that turn, from the first on: i and i + turned / 2 are a pair. 0 for all."""
    interleaved: bool = False
    """Neighbours 2 i and 2 i + 1 are pairs instead."""
    query_scale: float = 1.0

    def partners(self, dim: int) -> list[int]:
        """The partner of each dimension of heads of size `dim`."""
        if self.interleaved:
            return [index ^ 1 for index in range(dim)]
        turned = self.turned or dim
        rest = dim - turned
        partners = [(index + turned // 2) % turned for index in range(turned)]
        return partners + [turned + (index + rest // 2) % rest for index in range(rest)]

    def table(self, cos: torch.Tensor, sin: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of `TokenSlots` [positions, dim], from cos and sin of each pair that turns, [positions, R / 2]."""
        if self.interleaved:
            whole = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            whole = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        rest = (len(cos), dim - whole[0].shape[1])
        return torch.cat((whole[0], cos.new_ones(rest)), -1), torch.cat((whole[1], sin.new_zeros(rest)), -1)


WHOLE_HEADS = Pairing()
"""All dimensions turn, those of the first half with those of the second."""


@dataclass(frozen=True, slots=True)
class TokenSlots:
    """Cache slots of N tokens, and cos and sin of their positions."""

    slots: torch.Tensor
    """int64 [N], each within the slab; not checked on the device. With projections [1, N, ..] over a slab of several
    rows, slot s of row r is r * H * capacity + s."""
    cos: torch.Tensor
    """[N, D] in the compute dtype, for each dimension: the same for both of a pair."""
    sin: torch.Tensor
    """[N, D], negated for the first of each pair."""
    pairing: Pairing = WHOLE_HEADS
