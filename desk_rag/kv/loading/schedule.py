"""Divide a load into waves of layers, and each file into ranges that are read together.

Reads from disk and copies over the bus are divided separately: a drive needs long reads, while memory can be copied in
slices of what was read at once.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from desk_rag.kv.loading.load import ReadRange
from desk_rag.kv.payload import LayerGroup


@dataclass(frozen=True, slots=True)
class LoadSchedule:
    """Wave boundaries of one model: each wave ends before the given layer, the last one at the layer count."""

    read_ends: tuple[int, ...]
    """Ends of the waves that are read from disk."""
    copy_ends: tuple[int, ...]
    """Ends of the waves that are copied from RAM."""
    thin_ends: tuple[int, ...]
    """The same for large loads."""
    step_ends: tuple[int, ...]
    """Union of all: boundaries of the steps that waves are made of."""

    @classmethod
    def of(cls, layers: int, waves: int, ram_waves: int, large_waves: int) -> LoadSchedule:
        """Divide `layers` into waves: `waves` read from disk, `ram_waves` or for large loads `large_waves` from RAM."""
        read_ends, copy_ends, thin_ends = (wave_ends(layers, count) for count in (waves, ram_waves, large_waves))
        return cls(read_ends, copy_ends, thin_ends, tuple(sorted({*read_ends, *copy_ends, *thin_ends})))

    def read_ranges(self, groups: Sequence[LayerGroup], max_bytes: int) -> tuple[ReadRange, ...]:
        """Ranges of one file to read at once: groups that begin in the same wave, at most `max_bytes` of them."""
        return tuple(
            ReadRange.of(self._step(part), part, self._slices(part, self.copy_ends), self._slices(part, self.thin_ends))
            for part in _split(list(enumerate(groups)), self.read_ends, max_bytes)
        )

    def _slices(self, part: Sequence[tuple[int, LayerGroup]], ends: Sequence[int]) -> list[ReadRange]:
        return [ReadRange.of(self._step(piece), piece) for piece in _split(part, ends)]

    def _step(self, part: Sequence[tuple[int, LayerGroup]]) -> int:
        return bisect_right(self.step_ends, part[0][1].first_layer)


def wave_ends(layers: int, waves: int) -> tuple[int, ...]:
    """End of each wave, in layers: waves as even as possible, and no more of them than layers."""
    waves = min(waves, layers)
    return tuple(-(-layers * (wave + 1) // waves) for wave in range(waves))


def _split(
    groups: Sequence[tuple[int, LayerGroup]], ends: Sequence[int], max_bytes: int | None = None
) -> Iterator[list[tuple[int, LayerGroup]]]:
    """Consecutive (index, group) pairs of the same wave, at most `max_bytes` of them or a single group."""
    for _, wave in itertools.groupby(groups, key=lambda numbered: bisect_right(ends, numbered[1].first_layer)):
        part: list[tuple[int, LayerGroup]] = []
        for index, group in wave:
            if part and max_bytes is not None and group.end - part[0][1].start > max_bytes:
                yield part
                part = []
            part.append((index, group))
        yield part
