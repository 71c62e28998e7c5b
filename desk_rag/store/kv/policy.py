"""Rank cached chunk KV for eviction and admission.

The store keeps what saves most: decayed hits x saved seconds per byte. A new chunk KV displaces only what is worth
less, and only from its second use on. Time is counted in accesses, so a wall clock that jumps changes nothing.
(Compared with other policies in bench/LOG.md, "Eviction policies".)
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from desk_rag.kv.loading.retention import HALF_LIFE

ADMIT_FROM = 2
"""Uses from which a chunk may displace another, so that reading everything once displaces nothing."""
MOST_PAST_USES = 8
"""Maximum uses counted for a new chunk KV, because its old uses cannot be told from recent ones."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Cost:
    """Size of an item and the time that it saves."""

    size: int
    """Bytes."""
    seconds: float
    """Prefill time saved by a hit."""

    @property
    def worth(self) -> float:
        """Seconds saved by a hit, per MiB kept."""
        return self.seconds * _MIB / max(1, self.size)


def priority(hits: float, cost: Cost) -> float:
    """Return the value of an item from its decayed hits; the lowest is evicted first."""
    return hits * cost.worth


def rank(hits: float, cost: Cost, now: int) -> float:
    """Return a rank that orders items by `priority` and changes only with use, since all decay at one rate."""
    return math.log2(max(priority(hits, cost), sys.float_info.min)) + now / HALF_LIFE
