"""Describe a context to the lazy kernel: one 64-bit word per run of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from desk_rag.kv.positions import Placement

_POSITION_BITS, _SEGMENT_BITS, _COUNT_BITS = 20, 12, 12
_START_BITS = 63 - _POSITION_BITS - _SEGMENT_BITS - _COUNT_BITS
MOST_TOKENS = 1 << _COUNT_BITS
"""Maximum tokens of one run."""


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Consecutive tokens of one chunk, packed as [start : 19 | count - 1 : 12 | segment : 12 | position : 20]."""

    start: int
    """Index of its first token in the chunk."""
    count: int
    """Tokens, 1..4096."""
    segment: int
    """Index of the chunk in the answer."""
    position: int
    """Position of its first token."""

    def pack(self) -> int:
        """One non-negative int64; asserts that every field fits, because an overflow would point elsewhere."""
        assert 0 <= self.position < 1 << _POSITION_BITS and 0 <= self.segment < 1 << _SEGMENT_BITS
        assert 1 <= self.count <= MOST_TOKENS and 0 <= self.start < 1 << _START_BITS
        word = self.start << _COUNT_BITS | (self.count - 1)
        return (word << _SEGMENT_BITS | self.segment) << _POSITION_BITS | self.position

    @classmethod
    def unpack(cls, word: int) -> TokenRun:
        """The inverse of `pack`; the kernel does the same with shifts."""
        position = word & (1 << _POSITION_BITS) - 1
        word >>= _POSITION_BITS
        segment = word & (1 << _SEGMENT_BITS) - 1
        word >>= _SEGMENT_BITS
        return cls(word >> _COUNT_BITS, (word & MOST_TOKENS - 1) + 1, segment, position)


def pack_shares(placements: Sequence[Placement], most: int, tile: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Pack all chunks into words, in order; also return the first word of each share, and the number of words.

    Every share but the last has `most // tile` tiles, so that all programs have the same amount of work. Tiles have
    `tile` tokens, except the last one of each chunk. A share may continue in the next chunk.
    """
    assert 1 <= tile <= most and most % tile == 0
    words: list[int] = []
    firsts, left = [0], most // tile
    longest = MOST_TOKENS // tile
    for segment, place in enumerate(placements):
        start = 0
        while start < place.num_tokens:
            if not left:
                firsts.append(len(words))
                left = most // tile
            tiles = min(left, longest, -(-(place.num_tokens - start) // tile))
            count = min(tiles * tile, place.num_tokens - start)
            words.append(TokenRun(start, count, segment, place.position + start).pack())
            start, left = start + count, left - tiles
    firsts.append(len(words))
    return np.array(words, dtype=np.int64), np.array(firsts if words else [0], dtype=np.int32)
