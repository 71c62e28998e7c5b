"""Decide which chunks of an answer are loaded and which are prefilled anew, by rates measured on this machine.

Loading and prefilling run at the same time, as in Cake (Jin et al., 2024): the drive reads some chunks while the model
prefills others. So the slower of the two counts, and a chunk is moved from one to the other while that helps. A fast
GPU beside a slow drive may prefill everything, question included, in one pass before the chunks have arrived.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_MARGIN = 0.9
"""Share of the time of loading everything below which chunks are prefilled instead: rates are estimates."""

_WHOLE_MARGIN = 0.95
"""Share of the time with caches below which everything is prefilled in one pass."""
_AROUND = 128
"""Tokens before and behind the chunks of a prompt."""


class Tier(Enum):
    """Place of the nearest copy of a chunk's KV."""

    DEVICE = "device"
    """In the memory that is computed on."""
    RAM = "ram"
    DRIVE = "drive"


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk whose KV is on disk."""

    num_tokens: int
    nbytes: int
    tier: Tier


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one model on one device, with its chunk KV on one drive."""

    drive_seconds: float
    """Time until the first chunk from the drive arrives, whatever its size."""
    drive_bytes_per_second: float
    ram_bytes_per_second: float
    prefill_seconds: float
    """Time for a chunk, whatever its length."""
    prefill_tokens_per_second: float
    question_seconds: float = 0.0
    """Time of the question's pass."""
    whole_seconds: float = 0.0
    """Time of full prefill, whatever the prompt's length."""
    whole_tokens_per_second: float = 0.0
    """Rate of full prefill besides; 0 if it was not measured, because loading always wins there."""

    def __post_init__(self) -> None:
        times = self.drive_seconds, self.prefill_seconds, self.question_seconds, self.whole_seconds
        if min(*times, self.whole_tokens_per_second) < 0:
            raise ValueError("a negative time")
        if min(self.drive_bytes_per_second, self.ram_bytes_per_second, self.prefill_tokens_per_second) <= 0:
            raise ValueError("a rate that is not positive")

    def loading(self, chunks: Sequence[StoredChunk]) -> float:
        """Return the seconds to load these chunks together."""
        from_drive = sum(chunk.nbytes for chunk in chunks if chunk.tier is Tier.DRIVE)
        from_ram = sum(chunk.nbytes for chunk in chunks if chunk.tier is not Tier.DEVICE)
        latency = self.drive_seconds if from_drive else 0.0
        return latency + from_drive / self.drive_bytes_per_second + from_ram / self.ram_bytes_per_second

    def prefilling(self, chunks: Sequence[StoredChunk]) -> float:
        """Return the seconds to prefill these chunks one after the other."""
        tokens = sum(chunk.num_tokens for chunk in chunks)
        return len(chunks) * self.prefill_seconds + tokens / self.prefill_tokens_per_second

    def whole(self, num_tokens: int) -> float:
        """Return the seconds of full prefill of a prompt with so many tokens in chunks; infinite if not measured."""
        if not self.whole_tokens_per_second:
            return math.inf
        return self.whole_seconds + (num_tokens + _AROUND) / self.whole_tokens_per_second

    def pays(self, nbytes: int, prefill_seconds: float) -> bool:
        """Return whether reading a chunk's KV from the drive is faster than prefilling it."""
        return self.loading([StoredChunk(0, nbytes, Tier.DRIVE)]) < prefill_seconds


def to_prefill(chunks: Sequence[StoredChunk], rates: Rates) -> frozenset[int]:
    """Return the indices of the chunks to prefill, so that the answer can begin soonest; those in device memory stay.

    The chunks with the most seconds of loading per second of prefill go first.
    """

    def saved(index: int) -> float:
        chunk = chunks[index]
        return rates.loading([chunk]) / max(rates.prefilling([chunk]), 1e-12)

    order = sorted((i for i, chunk in enumerate(chunks) if chunk.tier is not Tier.DEVICE), key=saved, reverse=True)
    best, shortest = frozenset[int](), _MARGIN * rates.loading(chunks)
    for count in range(1, len(order) + 1):
        prefilled = frozenset(order[:count])
        rest = [chunk for index, chunk in enumerate(chunks) if index not in prefilled]
        seconds = max(rates.loading(rest), rates.prefilling([chunks[index] for index in order[:count]]))
        if seconds < shortest:
            best, shortest = prefilled, seconds
    return best


def whole_is_faster(chunks: Sequence[StoredChunk], rates: Rates) -> bool:
    """Return whether full prefill of all of these chunks begins the answer sooner than loading them."""
    seconds = rates.whole(sum(chunk.num_tokens for chunk in chunks))
    return seconds < _WHOLE_MARGIN * (rates.loading(chunks) + rates.question_seconds)
