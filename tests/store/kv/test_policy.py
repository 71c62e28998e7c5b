"""Eviction policies as arithmetic and as simulations: what each is known for must show."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from desk_rag.bench.eviction import __main__ as eviction
from desk_rag.bench.eviction.policies import GDSF, LFU, LRU, S3FIFO, Policy, Worth
from desk_rag.kv.loading.retention import HALF_LIFE, decayed
from desk_rag.store.kv.policy import Cost, priority

ONE = Cost(1, 1.0)


def test_hits_fade_by_half_in_a_half_life_and_never_grow() -> None:
    assert decayed(8, HALF_LIFE) == pytest.approx(4) and decayed(8, 0) == 8 and decayed(8, -5) == 8


def test_priority_is_saved_time_per_byte() -> None:
    assert priority(2, Cost(1 << 20, 3.0)) == pytest.approx(6.0)
    assert priority(1, Cost(1000, 2.0)) == pytest.approx(2 * priority(1, Cost(1000, 1.0)))
    assert priority(1, Cost(2000, 1.0)) == pytest.approx(priority(1, Cost(1000, 1.0)) / 2)


@pytest.mark.parametrize("make", [LRU, LFU, S3FIFO, GDSF, Worth])
def test_no_policy_keeps_more_than_its_capacity(make: type) -> None:
    rng = random.Random(4)
    cost = [Cost(rng.randrange(1, 40), rng.random() + 0.01) for _ in range(60)]
    policy: Policy = make(100)
    hits = 0
    resident: set[int] = set()
    for _ in range(4000):
        key = min(rng.randrange(60), rng.randrange(60))
        hits += policy.access(key, cost[key])
        items = getattr(policy, "_items", None)
        resident = set(getattr(policy, "_sizes", {}) if items is None else items)
        assert sum(cost[kept].size for kept in resident) <= 100
    assert hits > 300


def test_lru_forgets_the_oldest_and_lfu_the_rarest() -> None:
    lru, lfu = LRU(2), LFU(2)
    for policy in (lru, lfu):
        assert [policy.access(key, ONE) for key in (1, 1, 2, 3)] == [False, True, False, False]
    assert not lru.access(1, ONE) and lfu.access(1, ONE)


def test_ours_keeps_its_favourites_through_a_scan_and_prefers_what_is_dear() -> None:
    ours, plain = Worth(10), GDSF(10)
    for policy in (ours, plain):
        for key in [*range(10)] * 3:
            policy.access(key, ONE)
        for key in range(100, 1100):
            policy.access(key, ONE)
    assert all(ours.access(key, ONE) for key in range(10))
    assert not any(plain.access(key, ONE) for key in range(10))
    dear, cheap = Cost(1, 10.0), Cost(1, 0.1)
    policy = Worth(1)
    policy.access(1, cheap)
    assert [policy.access(2, dear) for _ in range(3)] == [False, False, True], "admitted at its second use"
    assert [policy.access(1, cheap) for _ in range(3)] == [False] * 3


def test_ours_saves_at_least_as_much_as_any_other_on_average() -> None:
    saved: dict[str, list[float]] = {}
    for result in eviction.run(600, 8000, (0.1, 0.4), seed=7):
        saved.setdefault(str(result["policy"]), []).append(float(str(result["saved_share"])))
    means = {name: sum(values) / len(values) for name, values in saved.items()}
    assert set(means) == {"LRU", "LFU", "S3-FIFO", "GDSF", "desk-rag"}
    assert max(means, key=lambda name: means[name]) == "desk-rag", means


def test_bench_prints_a_table_and_one_json_line() -> None:
    command = [sys.executable, "-m", "desk_rag.bench.eviction", "--chunks", "50", "--accesses", "400"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    results = json.loads(lines[-1])["results"]
    assert len(results) == len(lines) - 2 == 4 * 3 * 5
