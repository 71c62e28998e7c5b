"""Where the layers of a load are cut into waves, and each file into what is read together. Arithmetic; reads nothing.

Knows layer groups and `load.Piece`; knows neither drive nor GPU. Reading and the bus are cut by themselves: a drive
decides how long its reads have to be, while memory can be sent in slices of what was read as one.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from desk_rag.kv.loading.load import Piece
from desk_rag.kv.payload import Group


@dataclass(frozen=True, slots=True)
class Cuts:
    """Of one model; each cut is the number of layers below it, the last one all of them."""

    reading: tuple[int, ...]
    bus: tuple[int, ...]
    """For what is in RAM already."""
    steps: tuple[int, ...]
    """Both together: what waves are numbered by."""

    @classmethod
    def of(cls, layers: int, waves: int, ram_waves: int) -> Cuts:
        """For so many waves of reading, and of what is in RAM."""
        reading, bus = ends(layers, waves), ends(layers, ram_waves)
        return cls(reading, bus, tuple(sorted({*reading, *bus})))

    def pieces(self, groups: Sequence[Group], most: int) -> tuple[Piece, ...]:
        """What of one file is read together: groups that begin in the same wave, at most `most` bytes of them."""
        numbered = list(enumerate(groups))
        return tuple(
            Piece.of(self._step(part), part, [Piece.of(self._step(one), one) for one in _parts(part, self.bus)])
            for part in _parts(numbered, self.reading, most)
        )

    def _step(self, part: Sequence[tuple[int, Group]]) -> int:
        return bisect_right(self.steps, part[0][1].first_layer)


def ends(layers: int, waves: int) -> tuple[int, ...]:
    """Where each wave ends, in layers: as even as can be, no more waves than layers."""
    waves = min(waves, layers)
    return tuple(-(-layers * (wave + 1) // waves) for wave in range(waves))


def _parts(
    groups: Sequence[tuple[int, Group]], cuts: Sequence[int], most: int | None = None
) -> Iterator[list[tuple[int, Group]]]:
    """Neighbours that begin between the same cuts, at most `most` bytes of them, or a single group."""
    for _, between in itertools.groupby(groups, key=lambda one: bisect_right(cuts, one[1].first_layer)):
        held: list[tuple[int, Group]] = []
        for one in between:
            if held and most is not None and one[1].end - held[0][1].start > most:
                yield held
                held = []
            held.append(one)
        yield held
