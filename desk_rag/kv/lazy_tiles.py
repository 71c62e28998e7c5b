"""What the lazy kernel is told of a context: one 64-bit word per run of tokens. Pure arithmetic; knows no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from desk_rag.kv.stitch import Placement

_POSITION_BITS, _SEGMENT_BITS, _COUNT_BITS = 20, 12, 12
_START_BITS = 63 - _POSITION_BITS - _SEGMENT_BITS - _COUNT_BITS
MOST_TOKENS = 1 << _COUNT_BITS
"""In one run."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one chunk, packed as [start : 19 | count - 1 : 12 | segment : 12 | position : 20]."""

    start: int
    """Its first token, counted in the chunk."""
    count: int
    """Tokens, 1..4096."""
    segment: int
    """Which chunk of the answer."""
    position: int
    """Of its first token."""

    def pack(self) -> int:
        """One non-negative int64; asserts that every field fits, because an overflow would point elsewhere."""
        assert 0 <= self.position < 1 << _POSITION_BITS and 0 <= self.segment < 1 << _SEGMENT_BITS
        assert 1 <= self.count <= MOST_TOKENS and 0 <= self.start < 1 << _START_BITS
        word = self.start << _COUNT_BITS | (self.count - 1)
        return (word << _SEGMENT_BITS | self.segment) << _POSITION_BITS | self.position

    @classmethod
    def unpack(cls, word: int) -> Run:
        """The inverse of `pack`; the kernel does the same with shifts."""
        position = word & (1 << _POSITION_BITS) - 1
        word >>= _POSITION_BITS
        segment = word & (1 << _SEGMENT_BITS) - 1
        word >>= _SEGMENT_BITS
        return cls(word >> _COUNT_BITS, (word & MOST_TOKENS - 1) + 1, segment, position)


def pack_runs(placements: Sequence[Placement], most: int, tile: int) -> NDArray[np.int64]:
    """The words of all chunks, in order: each chunk is cut evenly into runs of at most `most` tokens.

    All but a chunk's last run are whole tiles of `tile` tokens, which divides `most`.
    """
    assert 1 <= tile <= most <= MOST_TOKENS and most % tile == 0
    words = []
    for segment, place in enumerate(placements):
        parts = -(-place.num_tokens // most)
        size = -(-place.num_tokens // (parts * tile)) * tile
        for start in range(0, place.num_tokens, size):
            count = min(size, place.num_tokens - start)
            words.append(Run(start, count, segment, place.position + start).pack())
    return np.array(words, dtype=np.int64)
