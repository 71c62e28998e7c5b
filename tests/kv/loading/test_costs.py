"""Load or prefill: what costs more goes the other way, both at once, and nothing within the error of the rates."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.kv.loading.costs import Rates, StoredChunk, Tier, to_prefill, whole_is_faster
from desk_rag.kv.loading.file_io import is_in_page_cache
from desk_rag.store.layout import drop_page_cache

MIB = 1 << 20
DESKTOP = Rates(
    drive_seconds=1e-4, drive_bytes_per_second=2e9, ram_bytes_per_second=10e9, prefill_seconds=0.01,
    prefill_tokens_per_second=1_000,
)  # fmt: skip
SLOW_DRIVE = replace(DESKTOP, drive_bytes_per_second=1e6)


def chunks(count: int, tier: Tier = Tier.DRIVE, num_tokens: int = 100, nbytes: int = MIB) -> list[StoredChunk]:
    return [StoredChunk(num_tokens, nbytes, tier)] * count


def seconds(stored: list[StoredChunk], anew: frozenset[int], rates: Rates) -> float:
    loaded = [chunk for index, chunk in enumerate(stored) if index not in anew]
    return max(rates.loading(loaded), rates.prefilling([stored[index] for index in anew]))


def test_a_fast_drive_loads_everything() -> None:
    assert to_prefill(chunks(8), DESKTOP) == frozenset()
    assert to_prefill([], DESKTOP) == frozenset()


def test_a_slow_drive_and_the_model_share_the_chunks_so_that_both_end_together() -> None:
    stored = chunks(8)
    prefilled = to_prefill(stored, replace(DESKTOP, drive_bytes_per_second=MIB / 0.11))  # as slow as prefill
    assert len(prefilled) == 4
    assert len(to_prefill(stored, SLOW_DRIVE)) == 8, "one chunk takes a second to read and 0.11 to prefill"
    halves = [seconds(stored, frozenset(range(count)), SLOW_DRIVE) for count in range(9)]
    assert min(halves) == halves[8]


def test_what_is_in_memory_is_not_computed_again_for_a_slow_drive() -> None:
    stored = [*chunks(2, Tier.DEVICE), *chunks(3, Tier.RAM), *chunks(2)]
    assert to_prefill(stored, SLOW_DRIVE) == {5, 6}


def test_full_prefill_is_taken_where_it_beats_the_drive_and_never_where_it_was_not_measured() -> None:
    """The figures of a datacentre GPU beside a slow drive: 85 ms for 4,096 tokens, chunks of 3.7 MB."""
    drive = replace(DESKTOP, drive_bytes_per_second=1.3e9, question_seconds=0.006)
    fast = replace(drive, whole_seconds=0.005, whole_tokens_per_second=50_000)
    for count in (2, 8, 32):
        stored = chunks(count, num_tokens=128, nbytes=3_700_000)
        loading, whole = fast.loading(stored) + 0.006, fast.whole(128 * count)
        assert whole_is_faster(stored, fast) == (whole < 0.95 * loading)
        assert not whole_is_faster(chunks(count, Tier.RAM, 128, 3_700_000), fast)
        assert not whole_is_faster(chunks(count, Tier.DEVICE, 128, 3_700_000), fast)
        assert not whole_is_faster(stored, drive), "nobody knows how long it takes"
        assert not whole_is_faster(stored, replace(fast, whole_tokens_per_second=1_000.0))
    assert whole_is_faster(chunks(32, num_tokens=128, nbytes=3_700_000), fast)


def test_short_chunks_with_much_to_read_go_first() -> None:
    stored = [StoredChunk(200, MIB, Tier.DRIVE), StoredChunk(50, MIB, Tier.DRIVE), StoredChunk(200, MIB, Tier.DRIVE)]
    rates = replace(DESKTOP, drive_bytes_per_second=MIB / 0.1)
    assert to_prefill(stored, rates) == {1}


def test_a_gain_within_the_error_of_the_rates_changes_nothing() -> None:
    stored = chunks(1)
    assert to_prefill(stored, replace(DESKTOP, drive_bytes_per_second=MIB / 0.115)) == frozenset()
    assert to_prefill(stored, replace(DESKTOP, drive_bytes_per_second=MIB / 0.15)) == {0}


@pytest.mark.parametrize("number", range(40))
def test_the_choice_is_never_slower_than_loading_or_prefilling_everything(number: int) -> None:
    import random

    rng = random.Random(number)
    stored = [
        StoredChunk(rng.randrange(20, 400), rng.randrange(10_000, 4 * MIB), rng.choice(list(Tier))) for _ in range(9)
    ]
    rates = Rates(*(10 ** rng.uniform(low, low + 3) for low in (-5, 6, 8, -4, 2)))
    prefilled = to_prefill(stored, rates)
    everything = frozenset(index for index, chunk in enumerate(stored) if chunk.tier is not Tier.DEVICE)
    assert seconds(stored, prefilled, rates) <= rates.loading(stored)
    if prefilled:
        assert seconds(stored, prefilled, rates) <= seconds(stored, everything, rates)


def test_a_cache_pays_if_reading_it_is_faster() -> None:
    assert DESKTOP.pays(MIB, 0.11) and not SLOW_DRIVE.pays(MIB, 0.11)


def test_rates_without_sense_are_refused() -> None:
    for name in ("drive_bytes_per_second", "ram_bytes_per_second", "prefill_tokens_per_second"):
        with pytest.raises(ValueError, match="not positive"):
            replace(DESKTOP, **{name: 0.0})
    with pytest.raises(ValueError, match="negative"):
        replace(DESKTOP, prefill_seconds=-1.0)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system does not tell what is in its page cache")
def test_the_page_cache_is_told_from_the_drive(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 16))
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    assert is_in_page_cache(file, 8192)
    drop_page_cache([file])
    if is_in_page_cache(file, 8192):
        pytest.skip("this file system lives in memory")
    assert not is_in_page_cache(tmp_path / "missing", 0)
