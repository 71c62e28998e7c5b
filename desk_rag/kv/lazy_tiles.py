"""What the lazy kernel is told of a context: one 64-bit word per tile of tokens. Pure arithmetic; knows no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from desk_rag.kv.stitch import Placement

_POSITION_BITS, _SEGMENT_BITS, _VALID_BITS = 20, 10, 6
_INDEX_BITS = 63 - _POSITION_BITS - _SEGMENT_BITS - _VALID_BITS


@dataclass(frozen=True, slots=True)
class Tile:
    """What the kernel must know of one tile, packed as [index | valid - 1 : 6 | segment : 10 | position : 20]."""

    index: int
    """Which tile of its chunk."""
    valid: int
    """Tokens in it, 1..64."""
    segment: int
    """Which chunk of the answer."""
    position: int
    """Of its first token."""

    def pack(self) -> int:
        """One non-negative int64; asserts that every field fits, because an overflow would point elsewhere."""
        assert 0 <= self.position < 1 << _POSITION_BITS and 0 <= self.segment < 1 << _SEGMENT_BITS
        assert 1 <= self.valid <= 1 << _VALID_BITS and 0 <= self.index < 1 << _INDEX_BITS
        word = self.index << _VALID_BITS | (self.valid - 1)
        return (word << _SEGMENT_BITS | self.segment) << _POSITION_BITS | self.position

    @classmethod
    def unpack(cls, word: int) -> Tile:
        """The inverse of `pack`; the kernel does the same with shifts."""
        position = word & (1 << _POSITION_BITS) - 1
        word >>= _POSITION_BITS
        segment = word & (1 << _SEGMENT_BITS) - 1
        word >>= _SEGMENT_BITS
        return cls(word >> _VALID_BITS, (word & (1 << _VALID_BITS) - 1) + 1, segment, position)


def pack_tiles(placements: Sequence[Placement], tile: int) -> NDArray[np.int64]:
    """The words of all chunks, in order; `tile` is the number of tokens in one."""
    assert tile <= 1 << _VALID_BITS
    words = [
        Tile(index, min(tile, place.num_tokens - index * tile), segment, place.position + index * tile).pack()
        for segment, place in enumerate(placements)
        for index in range(-(-place.num_tokens // tile))
    ]
    return np.array(words, dtype=np.int64)
