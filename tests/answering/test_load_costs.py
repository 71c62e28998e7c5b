"""Chunks that are slower to load than to prefill are prefilled, say so, and change no word of the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering import load_costs
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import AnswerMode
from desk_rag.cli.output import answer_json, footer
from desk_rag.kv.loading.costs import Rates
from desk_rag.kv.loading.load import Load
from desk_rag.kv.payload import ChunkFile
from desk_rag.store.kv import rates as kept_rates
from desk_rag.store.ownership import RATES, foreign_in
from tests.answer_world import RENT, World, an_engine, ask, loader_of
from tests.store.made import kv_files

FAST = Rates(1e-4, 1e9, 1e10, 0.1, 100.0)
SLOW = Rates(0.0, 1.0, 1.0, 0.0, 1e9)
"""A byte a second from drive and memory, which no prefill is slower than."""


@pytest.fixture(autouse=True, scope="module")
def _one_reading() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("desk_rag.answering.questions.asking.convincing", lambda events: (yield from events))
        yield


def rates_here(engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which this machine's rates are kept."""
    names: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(kept_rates, "keep", lambda root, name, rates: names.append(name))
        patch.setattr(load_costs, "_LEAST_BYTES", 1)
        assert load_costs.known_or_measured(engine.store, engine.serving, engine._connector.loader) is not None
    return names[0]


def test_a_drive_slower_than_the_model_is_left_alone_and_the_words_are_the_same(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with an_engine(world, data) as engine:
        loaded = ask(engine, RENT)
        name = rates_here(engine, monkeypatch)
    assert (loaded.warm_chunks, loaded.cold_chunks, loaded.read_anew_chunks) == (3, 0, 0)
    before = {file: file.stat().st_mtime_ns for file in kv_files(data)}
    kept_rates.keep(data, name, SLOW)
    with an_engine(world, data) as engine:
        answer = ask(engine, RENT)
        engine.settle()
        bytes_per_chunk = loaded.timings.loaded_bytes / 3
        assert (answer.warm_chunks, answer.cold_chunks, answer.read_anew_chunks) == (0, 3, 3)
        assert answer.timings.loaded_bytes == 0
        assert (answer.raw, answer.text, answer.citations) == (loaded.raw, loaded.text, loaded.citations)
        assert "3 passages read anew: faster here" in footer(answer)
        assert answer_json(answer)["read_anew_chunks"] == 3
        # Two chunks take as long to read as one takes to prefill: two are loaded, one is prefilled meanwhile.
        engine.forget_loaded()  # what was read before it was known to be too slow is in memory
        engine._connector.rates = replace(SLOW, ram_bytes_per_second=bytes_per_chunk, prefill_seconds=2.0)
        mixed = ask(engine, RENT)
        assert (mixed.warm_chunks, mixed.read_anew_chunks) == (2, 1)
        assert mixed.raw == loaded.raw and 0 < mixed.timings.loaded_bytes < loaded.timings.loaded_bytes
        assert sum(source.warm for source in mixed.sources) == 2
    assert {file: file.stat().st_mtime_ns for file in kv_files(data)} == before, "nothing is written again"


def test_full_prefill_is_taken_where_it_is_faster_and_the_answer_says_so(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with an_engine(world, data) as engine:
        full = ask(engine, RENT, AnswerMode.FULL)
        assert (full.warm_chunks, full.read_anew_chunks) == (3, 0), "which was asked for, and is no choice"
        engine._connector.rates = replace(SLOW, prefill_seconds=1e9, whole=((512.0, 1e-6),))
        engine.forget_loaded()
        started: list[int] = []
        start = loader_of(engine).start

        def noted(files: Sequence[ChunkFile | None], *, urgent: bool = True) -> Load:
            started.append(len(files) if urgent else 0)
            return start(files, urgent=urgent)

        monkeypatch.setattr(loader_of(engine), "start", noted)
        read = loader_of(engine).reader.bytes_read
        answer = ask(engine, RENT)
        assert started and not any(started), "a read that has begun would hold up the pass"
        assert (answer.raw, answer.text, answer.citations) == (full.raw, full.text, full.citations)
        assert (answer.warm_chunks, answer.cold_chunks, answer.read_anew_chunks) == (0, 3, 3)
        assert "3 passages read anew: faster here" in footer(answer)
        assert answer.mode is AnswerMode.CACHED and "stitch" in [stage.name for stage in answer.timings.stages]
        engine._connector.rates = FAST
        again = ask(engine, RENT)
        assert again.warm_chunks == 3 and again.raw == full.raw, "the slab serves caches again"
        assert loader_of(engine).reader.bytes_read > read


@pytest.mark.parametrize("resident_seconds", [0.0, 1.0])
def test_full_prefill_that_beats_memory_is_taken_before_files_are_looked_up(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, resident_seconds: float
) -> None:
    with an_engine(world, data) as engine:
        words = ask(engine, RENT).raw
        engine._connector.rates = replace(FAST, question_seconds=resident_seconds, whole=((512.0, 0.1),))
        if resident_seconds:
            monkeypatch.setattr(engine._connector, "start_load", lambda _: pytest.fail("files are looked up"))
        answer = ask(engine, RENT)
    assert (answer.raw, answer.read_anew_chunks) == (words, 3 if resident_seconds else 0)


def test_the_drive_is_timed_again_where_full_prefill_is_a_choice(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_costs, "_LEAST_BYTES", 1)
    with an_engine(world, data, lean=True) as engine:
        old = replace(FAST, drive_bytes_per_second=1.0, whole=((512.0, 0.1),))
        (name,) = kept_rates.all_rates(data)
        kept_rates.keep(data, name, old)
        loader = loader_of(engine)
        assert load_costs.known_or_measured(engine.store, engine.serving, loader) == old, "loading always wins here"
        monkeypatch.setattr(load_costs, "_has_choice", lambda _: True)
        renewed = load_costs.known_or_measured(engine.store, engine.serving, loader, engine._slab)
        assert renewed is not None and renewed.drive_bytes_per_second > 1e5
        assert renewed == replace(
            old, drive_seconds=renewed.drive_seconds, drive_bytes_per_second=renewed.drive_bytes_per_second
        )
        assert kept_rates.all_rates(data)[name] == renewed


def test_full_prefill_is_measured_over_a_slab(world: World, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_costs, "_WHOLE_TOKENS", (40, 160))
    with an_engine(world, data, lean=True) as engine:
        files = engine.store.sample_kv_files(engine.namespace, 4)
        serving, slab, loader = engine.serving, engine._slab, loader_of(engine)
        rates = load_costs.measured(serving.model, serving.prefix, serving.scheme, loader, files, slab)
        assert [tokens for tokens, _ in rates.whole] == [40, 160] and 0 < rates.question_seconds < 600
        assert 0 < rates.full_prefill(0) < rates.full_prefill(512) < rates.full_prefill(2048) < 600
        kept_rates.keep(data, "slab", rates)
        assert kept_rates.all_rates(data)["slab"] == rates
        without = load_costs.measured(serving.model, serving.prefix, serving.scheme, loader, files)
        assert without.whole == () and without.full_prefill(1) == float("inf") and without.question_seconds == 0
        assert ask(engine, RENT).warm_chunks == 3


def test_rates_are_measured_once_and_kept(world: World, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_costs, "_LEAST_BYTES", 1)
    with an_engine(world, data) as engine:
        rates = engine._connector.rates
        assert rates is not None and rates.drive_bytes_per_second > 0
        assert ask(engine, RENT).warm_chunks == 3
    assert list(kept_rates.all_rates(data).values()) == [rates]
    assert not list(foreign_in(data))
    monkeypatch.setattr(load_costs, "measured", lambda *_: pytest.fail("measured again"))
    with an_engine(world, data) as engine:
        assert engine._connector.rates == rates


def test_too_little_chunk_kv_measures_nothing(world: World, data: Path) -> None:
    with an_engine(world, data) as engine:
        assert engine._connector.rates is None
    assert not (data / RATES).exists()


@pytest.mark.parametrize("content", ["", "[]", '{"rates": 3}', '{"rates": {"a": {"x": 1}, "b": 2}}', "\x00\x01"])
def test_damaged_rates_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / RATES).write_text(content)
    assert kept_rates.all_rates(tmp_path) == {}
    kept_rates.keep(tmp_path, "a", FAST)
    assert kept_rates.all_rates(tmp_path) == {"a": FAST}


def test_a_rate_without_sense_is_passed_over(tmp_path: Path) -> None:
    kept_rates.keep(tmp_path, "a", FAST)
    kept_rates.keep(tmp_path, "b", SLOW)
    table = json.loads((tmp_path / RATES).read_text())
    table["rates"]["a"]["drive_bytes_per_second"] = -1.0
    (tmp_path / RATES).write_text(json.dumps(table))
    assert kept_rates.all_rates(tmp_path) == {"b": SLOW}
