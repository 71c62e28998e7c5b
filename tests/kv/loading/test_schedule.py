"""Waves of layers: as even as can be, and what is sent lies within what is read."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import cast

import pytest

from desk_rag.kv.loading.schedule import LoadSchedule, wave_ends
from desk_rag.kv.payload import LayerGroup


@pytest.mark.parametrize("layers", [1, 2, 3, 12, 28, 80])
@pytest.mark.parametrize("waves", [1, 2, 3, 4, 8, 256])
def test_ends_of_waves(layers: int, waves: int) -> None:
    ends = wave_ends(layers, waves)
    sizes = [end - start for start, end in zip((0, *ends), ends, strict=False)]
    assert ends[-1] == layers and len(ends) == min(waves, layers)
    assert min(sizes) > 0 and max(sizes) - min(sizes) <= 1


def some_groups(layers_each: list[int]) -> list[LayerGroup]:
    """One behind the other, a page per layer."""
    bounds = [0, *itertools.accumulate(layers_each)]
    return [
        cast(LayerGroup, SimpleNamespace(first_layer=first, num_layers=end - first, start=first * 4096, end=end * 4096))
        for first, end in itertools.pairwise(bounds)
    ]


@pytest.mark.parametrize("waves", [1, 2, 5, 50])
@pytest.mark.parametrize("ram_waves", [1, 2, 3, 50])
@pytest.mark.parametrize("max_bytes", [1, 3 * 4096, 1 << 20])
@pytest.mark.parametrize("layers_each", [[1] * 12, [3, 1, 4, 4], [12]])
def test_each_group_is_read_once_and_sent_once(
    waves: int, ram_waves: int, max_bytes: int, layers_each: list[int]
) -> None:
    groups = some_groups(layers_each)
    schedule = LoadSchedule.of(12, waves, ram_waves, 4)
    ranges = schedule.read_ranges(groups, max_bytes)
    slices = [one for range_ in ranges for one in range_.slices]
    thin_slices = [one for range_ in ranges for one in range_.thin_slices]
    for parts in (ranges, slices, thin_slices):
        assert [group for part in parts for group in part.groups] == list(enumerate(groups))
        assert [part.step for part in parts] == sorted(part.step for part in parts)
        for part in parts:
            first = part.groups[0][1].first_layer
            assert sum(end <= first for end in schedule.step_ends) == part.step
            assert part.start == part.groups[0][1].start and part.nbytes == part.groups[-1][1].end - part.start
    for range_ in ranges:
        assert range_.nbytes <= max_bytes or len(range_.groups) == 1
        for of_range in (range_.slices, range_.thin_slices):
            assert [group for one in of_range for group in one.groups] == list(range_.groups)
            assert not any(one.slices or one.thin_slices for one in of_range)


def test_reads_are_as_long_as_they_may_be_and_slices_as_the_bus_likes() -> None:
    ranges = LoadSchedule.of(12, 1, 4, 6).read_ranges(some_groups([1] * 12), 1 << 20)
    assert [range_.nbytes for range_ in ranges] == [12 * 4096]
    assert [one.nbytes for one in ranges[0].slices] == [3 * 4096] * 4
    assert [one.nbytes for one in ranges[0].thin_slices] == [2 * 4096] * 6
    assert [range_.nbytes for range_ in LoadSchedule.of(12, 2, 1, 1).read_ranges(some_groups([1] * 12), 5 * 4096)] == [
        5 * 4096, 4096, 5 * 4096, 4096,
    ]  # fmt: skip
