"""Which cached chunk KV to give up first. Pure arithmetic and simulations; knows no file and no wall clock.

The store keeps what saves most: decayed hits x saved seconds per byte, and lets a newcomer displace only what is worth
less and only from its second use on (`Worth`). GDSF (Cherkasova, "Improving WWW Proxies Performance with
Greedy-Dual-Size-Frequency Caching", HPL-98-69), LRU, LFU and S3-FIFO (Yang et al., "FIFO queues are all you need for
cache eviction", SOSP 2023) are here to be compared with it by `desk_rag.bench.eviction`. GDSF's ageing clock was
measured to save less than decay does, so the store has none. Time is counted in accesses: a clock that jumps changes
nothing.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

HALF_LIFE = 4096
"""Accesses after which an old hit counts half: some weeks of one person's questions."""
ADMIT_FROM = 2
"""Uses from which a chunk may displace another: a second one promises a third, a scan has only first ones."""
MOST_PAST_USES = 8
"""What a newcomer's uses count at most: those of long ago are not told from those of today."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Cost:
    """What one item takes and what having it saves."""

    size: int
    """Bytes."""
    seconds: float
    """Prefill time that a hit saves."""

    @property
    def worth(self) -> float:
        """Seconds saved by a hit, per MiB kept."""
        return self.seconds * _MIB / max(1, self.size)


def decayed(hits: float, age: int, half_life: int = HALF_LIFE) -> float:
    """Return what `hits` count after `age` further accesses."""
    return hits * math.pow(0.5, max(0, age) / half_life)


def priority(hits: float, cost: Cost) -> float:
    """Return what an item is worth now, from its hits as decayed until now: the lowest goes first."""
    return hits * cost.worth


def rank(hits: float, cost: Cost, now: int) -> float:
    """Return what orders items by `priority` for good: all decay at one pace, so only a use changes the order."""
    return math.log2(max(priority(hits, cost), sys.float_info.min)) + now / HALF_LIFE
