"""Several questions at once: each has the words that it has alone, by one pass and one load; faults stay apart."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerEvent, Finished
from desk_rag.answering.together.asking import Ask, Together
from desk_rag.errors import ConfigError
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.forward.inputs import Questions
from desk_rag.kv.shift import PlaceShift
from tests.answer_world import BICYCLE, RENT, World, an_engine, loader_of, make_world, streamed
from tests.models import FAMILIES, Family, build_model

QUESTIONS = [
    RENT, BICYCLE, "When does the train leave?", "Who has the tickets?", "What did the bicycle cost?",
    "When was the chain changed?", "By which day of the month is the rent due, and to whom is it paid?", "What is it?",
]  # fmt: skip


@pytest.fixture(scope="module", params=["reader", "qwen3"])
def a_world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    if request.param == "reader":
        return make_world(tmp_path_factory.mktemp("world"), "cpu")
    model_class, config = next(family for family in FAMILIES if family.name == "qwen3").build()
    config.max_position_embeddings = 4096
    model = build_model(Family("qwen3", lambda: (model_class, config)))
    return make_world(tmp_path_factory.mktemp("world"), "cpu", model)


@pytest.fixture
def engine(a_world: World, tmp_path: Path) -> Iterator[AnswerEngine]:
    shutil.copytree(a_world.data, tmp_path / "data")
    with an_engine(a_world, tmp_path / "data", streamed, lean=True) as engine:
        yield engine


def asking(question: str, top_k: int | None = None, stop: Callable[[], bool] = lambda: False) -> Ask:
    return lambda engine: engine.ask(question, top_k=top_k, stop=stop)


def answers(together: Together, asks: Sequence[Ask]) -> list[Answer]:
    with together.answering(asks) as streams:
        return [finished(events) for events in streams]


def finished(events: Iterator[AnswerEvent]) -> Answer:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last.answer


def words(answer: Answer) -> tuple[object, ...]:
    quotes = tuple(citation.quote for citation in answer.citations)
    return answer.question, answer.text, answer.raw, quotes, answer.stopped, [one.path.name for one in answer.sources]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Number of questions of every pass of the fused decoder, and the most tokens that one of them has in it."""
    noted: list[tuple[int, int]] = []
    real = FusedDecoder.run

    def run(self: FusedDecoder, ids: torch.Tensor, start: int | Questions, **options: object) -> torch.Tensor:
        noted.append((ids.shape[0], ids.shape[1]))
        return real(self, ids, start, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(FusedDecoder, "run", run)
    return noted


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 5, 6, 7, 8])
def test_each_of_many_has_the_words_that_it_has_alone(
    engine: AnswerEngine, count: int, passes: list[tuple[int, int]]
) -> None:
    test_each_has_the_words_that_it_has_alone(engine, count, passes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_has_the_words_that_it_has_alone(engine: AnswerEngine, count: int, passes: list[tuple[int, int]]) -> None:
    """Different questions over chunks that some of them share, 1 to 3 of them, so that contexts differ in length."""
    asks = [asking(question, 1 + index % 3) for index, question in enumerate(QUESTIONS[:count])]
    alone = [finished(ask(engine)) for ask in asks]
    single = len(passes)
    passes.clear()
    together = Together(engine, 8)
    for _ in range(2):  # again over rows that others have been in
        got = answers(together, asks)
        assert [words(answer) for answer in got] == [words(answer) for answer in alone]
        assert [one.timings.context_tokens for one in got] == [one.timings.context_tokens for one in alone]
    assert passes[0][0] == count and passes[0][1] > 1, "the questions were not one pass"
    if count == 8:
        assert len(passes) / 2 < single / 2, "decoding steps are not run for several questions"
    assert not engine.turn.answer_waits()


def test_an_adapted_model_is_shifted_in_every_row(a_world: World, tmp_path: Path) -> None:
    spec = a_world.prepared.model.spec
    plain = PlaceShift.zero(spec.num_layers, spec.num_kv_heads, spec.head_dim)
    shift = replace(plain, values=plain.values + 30.0)
    shutil.copytree(a_world.data, tmp_path / "data")
    said = []
    for prepared in (a_world.prepared, replace(a_world.prepared, shift=shift)):
        world = replace(a_world, prepared=prepared)
        with an_engine(world, tmp_path / "data", streamed, lean=True) as engine:
            asks = [asking(question, 3) for question in QUESTIONS[:2]]
            alone = [finished(ask(engine)) for ask in asks]
            together = answers(Together(engine, 2), asks)
            assert [words(answer) for answer in together] == [words(answer) for answer in alone]
            said.append([answer.raw for answer in together])
    if a_world.prepared.model.is_embedded:  # the random model says the same whatever it reads
        assert said[0] != said[1]


def test_a_chunk_that_several_want_is_read_once(engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnswerEngine, "_neighbours", lambda *_: ())  # which are read ahead for a next question
    asks = [asking(question) for question in QUESTIONS[:4]]
    alone = [finished(ask(engine)) for ask in asks]
    chunk_ids = {source.chunk_id for answer in alone for source in answer.sources}
    assert len(chunk_ids) < sum(len(answer.sources) for answer in alone), "no question wants what another wants"
    files = engine.store.kv_files(engine.store.kv_keys(engine.namespace, list(chunk_ids)))
    engine.forget_loaded()
    before = loader_of(engine).reader.bytes_read
    got = answers(Together(engine, 4), asks)
    assert loader_of(engine).reader.bytes_read - before == sum(file.payload for file in files if file is not None)
    assert [one.timings.loaded_bytes for one in got] == [one.timings.loaded_bytes for one in alone]
    assert all(one.cold_chunks == 0 for one in got)


def test_one_that_fails_or_is_stopped_leaves_the_others_their_words(engine: AnswerEngine) -> None:
    def wrong(engine: AnswerEngine) -> Iterator[AnswerEvent]:
        raise ConfigError("This one cannot be asked.")
        yield

    def breaks(engine: AnswerEngine) -> Iterator[AnswerEvent]:
        events = engine.ask(BICYCLE)
        yield next(events)
        yield next(events)
        raise ConfigError("This one broke off after its first token.")

    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen >= 2

    alone = [words(finished(asking(question)(engine))) for question in (RENT, BICYCLE)]
    stopped = finished(asking(RENT, stop=stop)(engine))
    seen = 0
    together = Together(engine, 5)
    with together.answering([wrong, asking(RENT), breaks, asking(RENT, stop=stop), asking(BICYCLE)]) as streams:
        with pytest.raises(ConfigError, match="cannot be asked"):
            list(streams[0])
        with pytest.raises(ConfigError, match="broke off"):
            list(streams[2])
        assert [words(finished(streams[index])) for index in (1, 4)] == alone
        assert words(finished(streams[3])) == words(stopped) and stopped.stopped
    assert not engine.turn.answer_waits()
    assert words(answers(together, [asking(BICYCLE)])[0]) == alone[1]


def test_damaged_files_cost_those_who_want_them_a_prefill_and_no_one_a_word(engine: AnswerEngine) -> None:
    asks = [asking(RENT, 1), asking(BICYCLE, 1), asking(QUESTIONS[2]), asking(BICYCLE)]
    alone = [finished(ask(engine)) for ask in asks]
    engine.settle()
    engine.forget_loaded()
    (damaged,) = engine.store.kv_files(engine.store.kv_keys(engine.namespace, [alone[1].sources[0].chunk_id]))
    assert damaged is not None
    data = bytearray(damaged.path.read_bytes())
    data[-50] ^= 0x40
    damaged.path.chmod(0o600)
    damaged.path.write_bytes(bytes(data))
    got = answers(Together(engine, 4), asks)
    assert [words(answer)[1:4] for answer in got] == [words(answer)[1:4] for answer in alone]
    prefilled = ["live prefill" in [stage.name for stage in answer.timings.stages] for answer in got]
    assert sum(prefilled) == 1 and not prefilled[0], "it is prefilled once, for whoever comes to it first"
    engine.settle()
    again = answers(Together(engine, 4), asks)
    assert not any("live prefill" in [stage.name for stage in answer.timings.stages] for answer in again)


def test_memory_that_is_too_short_for_one_pass_is_made_do(
    engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer of that pass tries again, and has its words."""
    alone = [words(finished(asking(question)(engine))) for question in QUESTIONS[:3]]
    real, failures = FusedDecoder.run, [torch.OutOfMemoryError("CUDA out of memory")]

    def run(self: FusedDecoder, ids: torch.Tensor, start: int | Questions, **options: object) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return real(self, ids, start, **options)  # type: ignore[arg-type]

    together = Together(engine, 3)
    monkeypatch.setattr(FusedDecoder, "run", run)
    assert [words(answer) for answer in answers(together, [asking(one) for one in QUESTIONS[:3]])] == alone


def test_answers_that_are_not_read_are_given_up(engine: AnswerEngine) -> None:
    together = Together(engine, 3)
    with together.answering([asking(question) for question in QUESTIONS[:3]]) as streams:
        next(streams[1])
        assert engine.turn.answer_waits()
    assert not engine.turn.answer_waits()
    assert words(answers(together, [asking(RENT)])[0]) == words(finished(asking(RENT)(engine)))


def test_on_a_cpu_questions_are_answered_one_after_the_other(engine: AnswerEngine) -> None:
    assert Together.of(engine, 8) is None
