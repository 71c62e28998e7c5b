"""Memory keeps what is used most: more hits than by age alone, whatever the sizes, and nothing just loaded is lost."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch

from desk_rag.kv.loading.device_cache import DevicePayloadCache, HostPayloadCache, PayloadCache
from desk_rag.kv.loading.host_memory import BLOCK, Arena
from desk_rag.kv.loading.retention import HALF_LIFE, Uses

CHUNKS, ROOM, ANSWERS, TOGETHER = 200, 40, 600, 5


class Stream:
    """Stands for a CUDA stream where the test has no GPU: nothing in it depends on one."""


def device_cache(nbytes: int) -> DevicePayloadCache:
    class OnCpu(DevicePayloadCache):
        def _lend(self, requests: object, cached: object) -> list[object]:  # type: ignore[override]
            from desk_rag.kv.loading.device_cache import Buffer

            return [
                Buffer(key, cached[key], complete=True) if key in cached  # type: ignore[operator,index]
                else Buffer(key, torch.empty(nbytes, dtype=torch.uint8), complete=False)
                for key, nbytes in requests  # type: ignore[attr-defined]
            ]  # fmt: skip

    return OnCpu(nbytes, torch.device("cpu"), Stream())  # type: ignore[arg-type]


def answers(alpha: float, seed: int = 4) -> list[list[int]]:
    rng = random.Random(seed)
    weights = list(accumulate(1 / (rank + 1) ** alpha for rank in range(CHUNKS)))
    drawn = []
    for _ in range(ANSWERS):
        chosen: dict[int, None] = {}
        while len(chosen) < TOGETHER:
            chosen[rng.choices(range(CHUNKS), cum_weights=weights)[0]] = None
        drawn.append(list(chosen))
    return drawn


def hits(cache: PayloadCache, drawn: Sequence[Sequence[int]], size: dict[int, int]) -> float:
    count = 0
    for chunks in drawn:
        buffers = cache.borrow([(chunk, size[chunk]) for chunk in chunks])
        count += sum(buffer.complete for buffer in buffers)
        for buffer in buffers:
            cache.give_back(buffer, keep=True)
    return count / (len(drawn) * TOGETHER)


def hits_by_age(drawn: Sequence[Sequence[int]], size: dict[int, int], room: int) -> float:
    kept: OrderedDict[int, int] = OrderedDict()
    count = 0
    for chunks in drawn:
        for chunk in chunks:
            count += chunk in kept
            kept[chunk] = kept.pop(chunk, size[chunk])
        while sum(kept.values()) > room:
            kept.popitem(last=False)
    return count / (len(drawn) * TOGETHER)


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("alpha", [0.9, 1.1, 1.5])
def test_more_hits_than_by_age_on_skewed_use(kind: str, alpha: float) -> None:
    rng = random.Random(2)
    size = {chunk: BLOCK * rng.randint(2, 6) for chunk in range(CHUNKS)}
    room, drawn = ROOM * BLOCK * 4, answers(alpha)
    cache = HostPayloadCache(room) if kind == "host" else device_cache(room)
    assert hits(cache, drawn, size) > 1.05 * hits_by_age(drawn, size, room)


def test_what_is_used_no_more_goes_in_the_end() -> None:
    """The ranking of chunks changes: after a while memory holds the new favourites."""
    size = dict.fromkeys(range(2 * CHUNKS), BLOCK * 4)
    cache = HostPayloadCache(ROOM * BLOCK * 4)
    before = answers(1.1)
    after = [[chunk + CHUNKS for chunk in chunks] for chunks in answers(1.1, seed=5)]
    hits(cache, before, size)
    hits(cache, after[: ANSWERS // 2], size)
    assert hits(cache, after[ANSWERS // 2 :], size) > 0.9 * hits_by_age(after[ANSWERS // 2 :], size, ROOM * BLOCK * 4)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_what_was_loaded_ahead_is_there_for_its_answer(kind: str) -> None:
    """New chunks among much used ones survive until they are asked for, beside others that are loaded then."""
    cache = HostPayloadCache(ROOM * BLOCK) if kind == "host" else device_cache(ROOM * BLOCK)
    size = dict.fromkeys(range(100), BLOCK)
    for _ in range(6):
        hits(cache, [list(range(start, start + TOGETHER)) for start in range(0, ROOM, TOGETHER)], size)
    hits(cache, [[50, 51, 52, 53, 54], [70, 71]], size)
    buffers = cache.borrow([(chunk, BLOCK) for chunk in (60, 61, 62, 50, 54)])
    assert [buffer.complete for buffer in buffers] == [False, False, False, True, True]


def test_room_is_made_where_least_is_lost() -> None:
    """Neighbours that together are worth less go, not the least used extent beside a much used one."""
    arena = Arena(6 * BLOCK, pinned=False)
    extents = [arena.reserve(BLOCK) for _ in range(6)]
    for number, extent in enumerate(extents):
        assert extent is not None
        arena.publish(extent, number)
        arena.release(extent)
    for number, more in enumerate([9, 0, 9, 2, 2, 9]):
        for _ in range(more):
            again = arena.find(number)
            assert again is not None
            arena.release(again)
    for number in (0, 5):  # used last, so that these are the protected ones
        again = arena.find(number)
        assert again is not None
        arena.release(again)
    assert arena.reserve(2 * BLOCK) is not None
    assert [number for number in range(6) if arena.holds(number)] == [0, 1, 2, 5]


def test_a_use_counts_half_after_a_half_life() -> None:
    uses = Uses()
    for _ in range(8):
        uses.note("old")
    for number in range(HALF_LIFE):
        uses.note(number)
    assert uses.worth("old", 2) == pytest.approx(4, rel=1e-2)
    assert uses.worth("unknown", 100) == 0
