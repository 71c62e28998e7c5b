"""Load or prefill: what costs more goes the other way, both at once, and nothing within the error of the rates."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.kv.loading.costs import Rates, StoredChunk, Tier, never_loads, to_prefill, whole_is_faster
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


FULL = {256: 11.6, 512: 15.1, 1024: 24.4, 2048: 44.7, 4096: 87.1, 8192: 184.9}
DRIVE = {256: 13.6, 512: 17.9, 1024: 29.1, 2048: 51.2, 4096: 98.9, 8192: 198.4}
RAM = {256: 7.7, 512: 8.0, 1024: 8.9, 2048: 9.1, 4096: 11.0, 8192: 13.5}
DEVICE = {256: 7.3, 512: 7.4, 1024: 7.7, 2048: 7.9, 4096: 8.3, 8192: 9.5}
"""Milliseconds to the first token by tokens in chunks of 128, on a datacentre GPU beside a slow drive (bench/LOG.md,
"Loading or full prefill")."""
DATACENTRE = Rates(
    drive_seconds=0.0025, drive_bytes_per_second=1.336e9, ram_bytes_per_second=25.2e9, prefill_seconds=0.0756,
    prefill_tokens_per_second=86_000, question_seconds=0.0072, chunk_seconds=0.00003,
    whole=tuple((tokens + 96, FULL[tokens] / 1e3) for tokens in (256, 512, 2048, 8192)),
)  # fmt: skip
CHUNK_BYTES = 3_700_000


@pytest.mark.parametrize("tokens", FULL)
@pytest.mark.parametrize(("tier", "cached"), [(Tier.DRIVE, DRIVE), (Tier.RAM, RAM), (Tier.DEVICE, DEVICE)])
def test_by_recorded_timings_the_choice_loses_nowhere_to_full_prefill(
    tokens: int, tier: Tier, cached: dict[int, float]
) -> None:
    stored = chunks(tokens // 128, tier, 128, CHUNK_BYTES)
    chosen = FULL[tokens] if whole_is_faster(stored, DATACENTRE) else cached[tokens]
    assert chosen <= 1.05 * FULL[tokens]
    assert chosen <= 1.05 * cached[tokens], "nor to loading"
    assert abs(DATACENTRE.full_prefill(tokens) - FULL[tokens] / 1e3) < 0.15 * FULL[tokens] / 1e3
    assert not to_prefill(stored, DATACENTRE), "chunk by chunk prefill never pays there"


@pytest.mark.parametrize("rate", [0.4e9, 0.8e9, 1.3e9, 1.6e9, 2e9, 3e9, 7e9])
def test_a_drive_that_is_a_sixth_slower_than_measured_does_not_make_the_choice_lose(rate: float) -> None:
    rates = replace(DATACENTRE, drive_bytes_per_second=rate)
    slower = replace(rates, drive_bytes_per_second=rate / 1.16)
    for count in (1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64):
        stored = chunks(count, Tier.DRIVE, 128, CHUNK_BYTES)
        full = rates.full_prefill(128 * count)
        seconds = full if whole_is_faster(stored, rates) else slower.cached(stored)
        assert seconds <= 1.05 * full


def test_full_prefill_is_never_taken_where_it_was_not_measured_or_takes_long() -> None:
    stored = chunks(32, Tier.DRIVE, 128, CHUNK_BYTES)
    assert whole_is_faster(stored, DATACENTRE)
    assert not whole_is_faster(stored, replace(DATACENTRE, whole=())), "nobody knows how long it takes"
    slow = tuple((tokens, 50 * seconds) for tokens, seconds in DATACENTRE.whole)
    assert not whole_is_faster(stored, replace(DATACENTRE, whole=slow))
    assert not never_loads([128] * 4, DATACENTRE)


def test_a_small_model_on_a_fast_gpu_never_loads() -> None:
    """The embedded reader on a datacentre GPU: its full prefill is sooner than finding and placing what is there."""
    small = replace(DATACENTRE, question_seconds=0.0011, chunk_seconds=1e-4, whole=((512, 0.0007), (2048, 0.0021)))
    assert never_loads([200] * 5, small)
    assert not never_loads([1600] * 5, small), "8,000 tokens take 7.7 ms"
    assert never_loads([1] * 5, small), "as long as the prompt's length is not known"


def test_full_prefill_between_and_beyond_the_measured_lengths() -> None:
    rates = replace(DESKTOP, whole=((200.0, 1.0), (400.0, 2.0), (800.0, 6.0)))
    assert [rates.full_prefill(tokens - 128) for tokens in (150, 200, 300, 400, 600, 800, 900)] == [
        1.0, 1.0, 1.5, 2.0, 4.0, 6.0, 7.0,
    ]  # fmt: skip
    assert replace(DESKTOP, whole=((200.0, 1.0),)).full_prefill(400 - 128) == 2.0


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
    for whole in (((512.0, 0.0),), ((512.0, 1.0), (256.0, 1.0)), ((256.0, 1.0), (256.0, 2.0))):
        with pytest.raises(ValueError, match="full prefill"):
            replace(DESKTOP, whole=whole)


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
