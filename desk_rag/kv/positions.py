"""Cache slots and positions of each chunk, decided once per answer, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    next_position: int
    """Position of the question's first token."""

    @property
    def num_slots(self) -> int:
        """Slots in use after stitching: prefix and chunks."""
        return self.prefix_tokens + sum(placement.num_tokens for placement in self.placements)


def plan(prefix_tokens: int, lengths: Sequence[int]) -> StitchPlan:
    """Assign consecutive slots and positions, as in one continuous text, to chunks of these token counts.

    (TurboRAG, arXiv 2410.07590, section 3.3: reordered positions.)
    """
    placements = []
    start = prefix_tokens
    for length in lengths:
        placements.append(Placement(slot=start, position=start, num_tokens=length))
        start += length
    return StitchPlan(prefix_tokens, tuple(placements), start)
