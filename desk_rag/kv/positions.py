"""Where each chunk goes: cache slots and positions, decided once per answer, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Positions(Enum):
    """Which positions the chunks get."""

    REORDERED = "reordered"
    """One after the other, as if they had been written so (TurboRAG, arXiv 2410.07590, section 3.3). The default."""
    COMPOSITE = "composite"
    """Each where it was prefilled, right behind the prefix; the question after the sum of all (ablation)."""
    PARALLEL = "parallel"
    """Each right behind the prefix; the question after the longest (APE, arXiv 2502.05431; ablation)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one chunk goes."""

    slot: int
    """First cache slot."""
    position: int
    """Position of its first token, as RoPE counts."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StitchPlan:
    """Where everything goes; decided once per answer."""

    prefix_tokens: int
    placements: tuple[Placement, ...]
    positions: Positions
    next_position: int
    """Position of the question's first token."""

    @property
    def num_slots(self) -> int:
        """Slots in use once stitched."""
        return self.prefix_tokens + sum(placement.num_tokens for placement in self.placements)


def plan(prefix_tokens: int, lengths: Sequence[int], positions: Positions = Positions.REORDERED) -> StitchPlan:
    """Lay chunks of these lengths behind the prefix, in the order given."""
    placements = []
    slot = prefix_tokens
    for length in lengths:
        start = slot if positions is Positions.REORDERED else prefix_tokens
        placements.append(Placement(slot=slot, position=start, num_tokens=length))
        slot += length
    longest = max(lengths, default=0)
    following = prefix_tokens + longest if positions is Positions.PARALLEL else slot
    return StitchPlan(prefix_tokens, tuple(placements), positions, following)
