"""Lay out contexts and questions as rows of tokens with the visibility that a stitched cache has.

A chunk was prefilled right behind the shared prefix, and moving its keys moves the prefix with it as far as that chunk
is concerned. In a row every chunk therefore stands behind its own copy of the prefix, at the positions just before it,
which nobody else sees. The first chunk's place *is* right behind the prefix, so it needs no copy. Questions see the
prefix, all chunks and themselves, never each other.
(TurboRAG, arXiv 2410.07590, section 3.3, with the shared prefix of CacheClip, arXiv 2510.10129.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IS_PREFIX, IS_CHUNK, SEES_PREFIX, SEES_CHUNKS = 1, 2, 4, 8
PADDING = -1


@dataclass(frozen=True, slots=True)
class Asked:
    """One question over a context."""

    question: tuple[int, ...]
    answer: tuple[int, ...]
    """The id that ends it included."""


@dataclass(frozen=True, slots=True)
class Context:
    """Token ids that one answer reads; chunks are in their frames."""

    prefix: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]
    asked: tuple[Asked, ...]
    full: bool
    """Full attention between chunks instead of independent."""


@dataclass(frozen=True, slots=True)
class Island:
    """A stretch of a row that sees nothing outside of itself; all tuples have one entry per token."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    owners: tuple[int, ...]
    """Tokens of one owner see each other, the past only."""
    roles: tuple[int, ...]
    """IS_PREFIX | IS_CHUNK: what others may see it as; SEES_PREFIX | SEES_CHUNKS: what it sees beyond its owner."""
    weights: tuple[float, ...]
    """Weight of predicting this token from the one before it in the island."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch; arrays [row_tokens], padded behind the last island."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    islands: NDArray[np.int16]
    """Number of the island, PADDING behind the last."""
    owners: NDArray[np.int16]
    roles: NDArray[np.int16]
    weights: NDArray[np.float32]


class _Writer:
    """Collects the tokens of an island."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._positions: list[int] = []
        self._owners: list[int] = []
        self._roles: list[int] = []
        self._weights: list[float] = []

    def add(self, ids: Sequence[int], start: int, owner: int, roles: int, weights: Sequence[float]) -> None:
        self._ids.extend(ids)
        self._positions.extend(range(start, start + len(ids)))
        self._owners.extend([owner] * len(ids))
        self._roles.extend([roles] * len(ids))
        self._weights.extend(weights)

    def island(self) -> Island:
        return Island(
            tuple(self._ids), tuple(self._positions), tuple(self._owners), tuple(self._roles), tuple(self._weights)
        )


def build_island(context: Context) -> Island:
    """Lay one context out. Positions are those of `kv.stitch.plan`."""
    writer = _Writer()
    size = len(context.prefix)
    writer.add(context.prefix, 0, 0, IS_PREFIX, [0.0] * size)
    slot = size
    for number, chunk in enumerate(context.chunks, start=1):
        sees = SEES_PREFIX
        if context.full:
            sees |= SEES_CHUNKS
        elif slot != size:
            sees = 0
            writer.add(context.prefix, slot - size, number, 0, [0.0] * size)
        writer.add(chunk, slot, number, IS_CHUNK | sees, [0.0] * len(chunk))
        slot += len(chunk)
    for number, asked in enumerate(context.asked, start=len(context.chunks) + 1):
        weights = [*[0.0] * len(asked.question), *[1.0] * len(asked.answer)]
        writer.add([*asked.question, *asked.answer], slot, number, SEES_PREFIX | SEES_CHUNKS, weights)
    return writer.island()


def text_island(ids: Sequence[int]) -> Island:
    """Plain text under the ordinary causal mask, every token but the first counted."""
    writer = _Writer()
    writer.add(ids, 0, 0, 0, [0.0, *[1.0] * (len(ids) - 1)])
    return writer.island()


def island_length(context: Context) -> int:
    """Tokens of `build_island(context)`."""
    copied = 0 if context.full else max(0, len(context.chunks) - 1)
    question_tokens = sum(len(one.question) + len(one.answer) for one in context.asked)
    return len(context.prefix) * (1 + copied) + sum(map(len, context.chunks)) + question_tokens


def positions_needed(context: Context) -> int:
    """Positions the context takes, its longest question and answer included."""
    longest = max((len(one.question) + len(one.answer) for one in context.asked), default=0)
    return len(context.prefix) + sum(map(len, context.chunks)) + longest


def build_row(islands: Sequence[Island], length: int, pad_id: int = 0) -> Row:
    """Put islands one after the other into a row of `length` tokens."""
    used = sum(len(island.ids) for island in islands)
    assert used <= length, "the islands of a row are chosen to fit"
    left = length - used

    def column(name: str, fill: int) -> list[int]:
        return [*(value for island in islands for value in getattr(island, name)), *[fill] * left]

    numbers = [*(number for number, island in enumerate(islands) for _ in island.ids), *[PADDING] * left]
    return Row(
        ids=np.array(column("ids", pad_id), np.int64),
        positions=np.array(column("positions", 0), np.int64),
        islands=np.array(numbers, np.int16),
        owners=np.array(column("owners", 0), np.int16),
        roles=np.array(column("roles", 0), np.int16),
        weights=np.array(column("weights", 0), np.float32),
    )
