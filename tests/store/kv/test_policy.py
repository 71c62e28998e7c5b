"""The arithmetic of eviction: hits fade, and what saves more time per byte ranks higher."""

from __future__ import annotations

import pytest

from desk_rag.kv.loading.retention import HALF_LIFE, decayed
from desk_rag.store.kv.policy import Cost, priority


def test_hits_fade_by_half_in_a_half_life_and_never_grow() -> None:
    assert decayed(8, HALF_LIFE) == pytest.approx(4) and decayed(8, 0) == 8 and decayed(8, -5) == 8


def test_priority_is_saved_time_per_byte() -> None:
    assert priority(2, Cost(1 << 20, 3.0)) == pytest.approx(6.0)
    assert priority(1, Cost(1000, 2.0)) == pytest.approx(2 * priority(1, Cost(1000, 1.0)))
    assert priority(1, Cost(2000, 1.0)) == pytest.approx(priority(1, Cost(1000, 1.0)) / 2)
