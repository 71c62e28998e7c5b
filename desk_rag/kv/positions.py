"""Cache slots and positions of each chunk, decided once per answer, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Positions(Enum):
    """Ways to assign positions to chunks."""

    REORDERED = "reordered"
    """Consecutive, as in one continuous text (TurboRAG, arXiv 2410.07590, section 3.3). The default."""
    COMPOSITE = "composite"
    """All chunks start right behind the prefix; the question follows the sum of their lengths (ablation)."""
    PARALLEL = "parallel"
    """All chunks start right behind the prefix; the question follows the longest (APE, arXiv 2502.05431; ablation)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Cache slot and position of one chunk."""

    slot: int
    """First cache slot."""
    position: int
    """RoPE position of its first token."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StitchPlan:
    """Layout of prefix, chunks and question in the cache of one answer."""

    prefix_tokens: int
    placements: tuple[Placement, ...]
    positions: Positions
    next_position: int
    """Position of the question's first token."""

    @property
    def num_slots(self) -> int:
        """Slots in use after stitching: prefix and chunks."""
        return self.prefix_tokens + sum(placement.num_tokens for placement in self.placements)


def plan(prefix_tokens: int, lengths: Sequence[int], positions: Positions = Positions.REORDERED) -> StitchPlan:
    """Assign slots and positions to chunks of these token counts, in order, behind the prefix."""
    placements = []
    slot = prefix_tokens
    for length in lengths:
        start = slot if positions is Positions.REORDERED else prefix_tokens
        placements.append(Placement(slot=slot, position=start, num_tokens=length))
        slot += length
    longest = max(lengths, default=0)
    next_position = prefix_tokens + longest if positions is Positions.PARALLEL else slot
    return StitchPlan(prefix_tokens, tuple(placements), positions, next_position)
