"""Waves of layers: as even as can be, and what is sent lies within what is read."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import cast

import pytest

from desk_rag.kv.loading.schedule import Cuts, ends
from desk_rag.kv.payload import Group


@pytest.mark.parametrize("layers", [1, 2, 3, 12, 28, 80])
@pytest.mark.parametrize("waves", [1, 2, 3, 4, 8, 256])
def test_ends_of_waves(layers: int, waves: int) -> None:
    found = ends(layers, waves)
    sizes = [end - start for start, end in zip((0, *found), found, strict=False)]
    assert found[-1] == layers and len(found) == min(waves, layers)
    assert min(sizes) > 0 and max(sizes) - min(sizes) <= 1


def some_groups(layers_each: list[int]) -> list[Group]:
    """One behind the other, a page per layer."""
    cuts = [0, *itertools.accumulate(layers_each)]
    return [
        cast(Group, SimpleNamespace(first_layer=first, num_layers=end - first, start=first * 4096, end=end * 4096))
        for first, end in itertools.pairwise(cuts)
    ]


@pytest.mark.parametrize("waves", [1, 2, 5, 50])
@pytest.mark.parametrize("ram_waves", [1, 2, 3, 50])
@pytest.mark.parametrize("most", [1, 3 * 4096, 1 << 20])
@pytest.mark.parametrize("layers_each", [[1] * 12, [3, 1, 4, 4], [12]])
def test_each_group_is_read_once_and_sent_once(waves: int, ram_waves: int, most: int, layers_each: list[int]) -> None:
    groups = some_groups(layers_each)
    cuts = Cuts.of(12, waves, ram_waves)
    pieces = cuts.pieces(groups, most)
    slices = [one for piece in pieces for one in piece.slices]
    for parts in (pieces, slices):
        assert [group for part in parts for group in part.groups] == list(enumerate(groups))
        assert [part.step for part in parts] == sorted(part.step for part in parts)
        for part in parts:
            first = part.groups[0][1].first_layer
            assert sum(end <= first for end in cuts.steps) == part.step
            assert part.start == part.groups[0][1].start and part.nbytes == part.groups[-1][1].end - part.start
    for piece in pieces:
        assert piece.nbytes <= most or len(piece.groups) == 1
        assert [group for one in piece.slices for group in one.groups] == list(piece.groups)
        assert not any(one.slices for one in piece.slices)


def test_reads_are_as_long_as_they_may_be_and_slices_as_the_bus_likes() -> None:
    pieces = Cuts.of(12, 1, 4).pieces(some_groups([1] * 12), 1 << 20)
    assert [piece.nbytes for piece in pieces] == [12 * 4096]
    assert [one.nbytes for one in pieces[0].slices] == [3 * 4096] * 4
    assert [piece.nbytes for piece in Cuts.of(12, 2, 1).pieces(some_groups([1] * 12), 5 * 4096)] == [
        5 * 4096, 4096, 5 * 4096, 4096,
    ]  # fmt: skip
