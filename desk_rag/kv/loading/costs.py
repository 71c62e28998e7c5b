"""Decide which chunks of an answer are loaded and which are prefilled anew, by rates measured on this machine.

Loading and prefilling run at the same time, as in Cake (Jin et al., 2024): the drive reads some chunks while the model
prefills others. So the slower of the two counts, and a chunk is moved from one to the other while that helps. A fast
GPU beside a slow drive may prefill everything, question included, in one pass before the chunks have arrived.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_MARGIN = 0.9
"""Share of the time of loading everything below which chunks are prefilled instead: rates are estimates."""

_PROMISE = 0.9
"""Share of full prefill's time that loading must promise to stay below: full prefill takes as long as it took before,
while a drive may be slower than it was."""
_AROUND = 128
"""Tokens before and behind the chunks of a prompt."""


class Tier(Enum):
    """Place of the nearest copy of a chunk's KV."""

    DEVICE = "device"
    """Memory of the computing device."""
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
    """Time of an answer from chunks in device memory: looking them up, placing them, the question's pass."""
    chunk_seconds: float = 0.0
    """The same for every chunk besides."""
    whole: tuple[tuple[float, float], ...] = ()
    """Tokens of some prompts, ascending, and the seconds of their full prefill; empty if loading always wins."""

    def __post_init__(self) -> None:
        times = self.drive_seconds, self.prefill_seconds, self.question_seconds, self.chunk_seconds
        if min(times) < 0:
            raise ValueError("a negative time")
        lengths = [tokens for tokens, _ in self.whole]
        if lengths != sorted(set(lengths)) or any(min(point) <= 0 for point in self.whole):
            raise ValueError("times of full prefill that are not positive, or not in order")
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

    def cached(self, chunks: Sequence[StoredChunk]) -> float:
        """Return the seconds until the first token of an answer that loads these chunks."""
        return self.loading(chunks) + self.question_seconds + len(chunks) * self.chunk_seconds

    def full_prefill(self, num_tokens: int) -> float:
        """Return the seconds of full prefill of a prompt with this many chunk tokens; infinite if not measured.

        Linear between the lengths that were measured and beyond the longest; short prompts take as long as the
        shortest of them, because launches take longer than arithmetic there.
        """
        if not self.whole:
            return math.inf
        tokens = max(num_tokens + _AROUND, self.whole[0][0])
        if len(self.whole) == 1:
            return self.whole[0][1] * tokens / self.whole[0][0]
        end = min(max(1, bisect_left(self.whole, (tokens, 0.0))), len(self.whole) - 1)
        (left, shorter), (right, longer) = self.whole[end - 1 : end + 1]
        return shorter + (longer - shorter) * (tokens - left) / (right - left)

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
    """Return whether full prefill of all these chunks is better than loading them."""
    return rates.cached(chunks) > _PROMISE * rates.full_prefill(sum(chunk.num_tokens for chunk in chunks))


def never_loads(lengths: Sequence[int], rates: Rates) -> bool:
    """Return whether full prefill is better even if chunks of these lengths are in device memory."""
    return whole_is_faster([StoredChunk(tokens, 0, Tier.DEVICE) for tokens in lengths], rates)
