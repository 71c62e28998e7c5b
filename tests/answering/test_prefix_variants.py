"""Answers from chunk KV of several rungs, end to end: made in order, read by place, written back, removed together."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from desk_rag.answering import context as answer_context
from desk_rag.answering import serving_model
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import AnswerMode
from desk_rag.answering.kv_connector import CacheTarget, Candidates, KVConnector, KVLoadHandle
from desk_rag.answering.serving_model import prepare_model
from desk_rag.cli.doctor import Verdict, examine
from desk_rag.config import IndexSettings, ModelSettings, Settings
from desk_rag.indexer.jobs import JobQueue
from desk_rag.indexer.parts import parts_of
from desk_rag.indexer.worker import Worker
from desk_rag.ingest import background_prefill, pipeline
from desk_rag.ingest.events import IndexEvent, IndexFinished, StageProgress
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.calibration.gate import run_gate
from desk_rag.kv.calibration.texts import GROUPS
from desk_rag.kv.identity import kv_key
from desk_rag.kv.loading.loader import Loader
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk
from desk_rag.kv.prefix_variants.variants import PrefixVariant, build_prefix_variants
from desk_rag.kv.quant import quantize
from desk_rag.kv.recompute.policy import RecomputeChoice, SelectorName
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import KVKey
from desk_rag.retrieval.search import retrieve
from desk_rag.store.layout import Layout
from desk_rag.store.store import Store
from tests.answer_world import BICYCLE, SMALL, World, an_engine, ask, first_logits, make_world

RUNGS = (0, 1, 2)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three chunks that are warm on rung 0, and an engine that knows no other."""
    return make_world(tmp_path_factory.mktemp("world"), "cpu")


@pytest.fixture(scope="module")
def world(plain: World) -> World:
    """The same with a ladder of three."""
    ready = plain.prepared
    ladder = build_prefix_variants(ready.model, ready.prefix, RUNGS, ready.gate.scheme, drift_epoch=ready.drift_epoch)
    assert ladder.variants[0] == PrefixVariant(0, ready.prefix, ready.namespace)
    return replace(plain, prepared=replace(ready, prefix_variants=ladder))


@pytest.fixture
def data(plain: World, tmp_path: Path) -> Path:
    """A copy of the data directory, to be changed."""
    return shutil.copytree(plain.data, tmp_path / "data")


@pytest.fixture
def cold(data: Path) -> Path:
    """The same without any chunk KV."""
    shutil.rmtree(data / "kv")
    return data


def warm(engine: AnswerEngine) -> Iterator[StageProgress]:
    return background_prefill.warm_pending(engine.store, engine.serving, engine.turn, lambda: False)


def warm_counts(engine: AnswerEngine) -> tuple[int, ...]:
    return tuple(engine.store.counts(rung.namespace).warm for rung in engine.serving.prefix_variants.variants)


def by_hand(engine: AnswerEngine, question: str, rungs: Sequence[PrefixVariant]) -> torch.Tensor:
    """Logits of the first token over chunks prefilled on these rungs, in the order in which they are laid."""
    model, prompt = engine.model, engine.model.prompt
    passages = retrieve(engine.store, engine.embedder, question, engine.top_k, ())
    chunks = [prompt.chunk_ids(chunk.passage.chunk.text) for chunk in reversed(passages)]
    pairs = zip(rungs, chunks, strict=True)
    coded = [quantize(prefill_chunk(model, rung.prefix, ids), engine.serving.scheme) for rung, ids in pairs]
    where = plan(engine.prefix.num_tokens, [len(ids) for ids in chunks])
    cache = SlabCache(model, where.num_slots + 300)
    stitch(model, where, engine.prefix, coded, build_tables(model, cache.capacity), cache)
    logits = model.forward(torch.tensor(prompt.question_ids(question)), cache, where.next_position, logits=True)
    assert logits is not None
    return logits.float()


def first_of(engine: AnswerEngine, recompute: RecomputeChoice | None = None) -> torch.Tensor:
    with first_logits() as seen:
        ask(engine, BICYCLE, recompute=recompute)
    return seen[0]


def test_every_chunk_gets_plain_kv_first_and_then_rung_after_rung(world: World, cold: Path) -> None:
    with an_engine(world, cold) as engine:
        events = [(event, warm_counts(engine)) for event in warm(engine)]
        progress = [(event.done, event.total, counts) for event, counts in events]
        assert [event.upper for event, _ in events] == [False] * 3 + [True] * 6
        assert {event.unit for event, _ in events} == {"caches"}
        assert [done for done, _, _ in progress] == list(range(1, 10)) and {total for _, total, _ in progress} == {9}
        assert [counts for _, _, counts in progress] == [
            (1, 0, 0), (2, 0, 0), (3, 0, 0), (3, 1, 0), (3, 2, 0), (3, 3, 0), (3, 3, 1), (3, 3, 2), (3, 3, 3),
        ]  # fmt: skip
        assert list(warm(engine)) == []
        counts = engine.store.coverage()
        assert (counts.chunks, counts.warm) == (3, 3), "a chunk is one chunk, however often its KV is kept"


def test_the_background_makes_all_rungs_and_tells_of_chunks(world: World, cold: Path) -> None:
    index_events: list[IndexEvent] = []
    with an_engine(world, cold) as engine:
        parts, index = parts_of(engine), IndexSettings()
        worker = Worker(
            parts, index, JobQueue(), index_events.append, may_run=str, stopping=lambda: False, paused=str
        )  # fmt: skip
        worker.begin_stages()
        while not any(isinstance(event, IndexFinished) for event in index_events):
            worker._step()
        assert warm_counts(engine) == (3, 3, 3)
    (finished,) = [event for event in index_events if isinstance(event, IndexFinished)]
    assert finished.warm == 3
    last = [event for event in index_events if isinstance(event, StageProgress)][-1]
    assert (last.done, last.total) == (9, 9)


def test_what_is_new_goes_before_the_upper_rungs_of_what_is_old(world: World, data: Path, tmp_path: Path) -> None:
    with an_engine(world, data) as engine:
        outlook = engine.store.outlook(engine.namespace, 1.0)
        assert outlook is not None, "two rungs are still to be made"
        steps = warm(engine)
        next(steps)
        assert warm_counts(engine) == (3, 1, 0)
        docs = tmp_path / "docs"
        docs.mkdir()
        (docs / "new.txt").write_text("The cat is called Mirabelle and sleeps on the stove.\n")
        prompt = engine.model.prompt
        sync = pipeline.sync_folder(engine.store, docs, prompt, prompt.chunk_size, engine.settings.index, lambda: False)
        assert list(sync)
        order = [warm_counts(engine) for _ in steps]
        # the few that were taken from the catalog already are finished before it is asked again
        assert order[:4] == [(3, 2, 0), (3, 3, 0), (4, 3, 0), (4, 4, 0)]
        assert order[-1] == (4, 4, 4)
        assert engine.store.outlook(engine.namespace, 1.0) is None


@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_takes_each_chunk_from_the_rung_of_its_place(world: World, data: Path, streams: bool) -> None:
    read: list[set[KVKey]] = []

    def noted(store: Store, site: CacheTarget) -> KVConnector:
        loader = KVConnector(store, site, Loader(site.model.device, SMALL))
        start_load = loader.start_load

        def seen(candidates: Candidates) -> KVLoadHandle:
            read.append(set(candidates()))
            return start_load(candidates)

        loader.start_load = seen  # type: ignore[method-assign]
        return loader

    with an_engine(world, data, noted if streams else None) as engine:
        list(warm(engine))
        rungs = engine.serving.prefix_variants.variants
        expected, others = by_hand(engine, BICYCLE, rungs), by_hand(engine, BICYCLE, [rungs[0]] * 3)
        got = first_of(engine)
        torch.testing.assert_close(got, expected, atol=2e-3, rtol=1e-3)
        assert (got - others).abs().max() > 10 * (got - expected).abs().max()
        passages = retrieve(engine.store, engine.embedder, BICYCLE, engine.top_k, ())
        context = answer_context.build(passages, engine.serving, engine.store, engine.context_tokens)
        assert [chunk.source.number for chunk in context.chunks] == [3, 2, 1], "the best stands last"
        assert [chunk.variant.count for chunk in context.chunks] == [0, 1, 2]
        keys = [chunk.key for chunk in context.chunks]
        assert [key.namespace for key in keys] == [chunk.variant.namespace for chunk in context.chunks]
        assert list(engine._kv_of(passages)) == keys[::-1], "a prefetch names the same, the likeliest first"
        assert list(engine._neighbours(context)) == []
        assert not streams or read == [set(keys)]


def test_one_rung_alone_answers_as_before(plain: World, world: World, data: Path) -> None:
    """Nothing of the upper rungs is there yet: each chunk takes the nearest lower one, and the answer is warm."""
    with an_engine(plain, data) as engine:
        before, answer = first_of(engine), ask(engine, BICYCLE)
    with an_engine(world, data) as engine:
        assert torch.equal(first_of(engine), before)
        again = ask(engine, BICYCLE)
        assert (again.raw, again.warm_chunks, again.cold_chunks) == (answer.raw, 3, 0)
        full = ask(engine, BICYCLE, AnswerMode.FULL)
        assert full.timings.context_tokens == again.timings.context_tokens


def test_what_is_nowhere_is_prefilled_at_its_rung_and_kept_there(world: World, cold: Path) -> None:
    with an_engine(world, cold) as engine:
        expected = by_hand(engine, BICYCLE, engine.serving.prefix_variants.variants)
        with first_logits() as seen:
            answer = ask(engine, BICYCLE)
        torch.testing.assert_close(seen[0], expected, atol=2e-3, rtol=1e-3)
        assert answer.cold_chunks == 3
        engine.settle()
        assert warm_counts(engine) == (1, 1, 1)
        for index, source in enumerate(answer.sources):
            variant = engine.serving.prefix_variants.for_place(2 - index)
            key = kv_key(variant.namespace, engine.model.prompt.chunk_ids(source.text))
            assert engine.store.has_kv([key]) == {key}
        again = ask(engine, BICYCLE)
        assert (again.raw, again.warm_chunks) == (answer.raw, 3)


def test_a_lost_file_is_made_again_at_the_rung_it_was_of(world: World, data: Path) -> None:
    with an_engine(world, data) as engine:
        list(warm(engine))
        before = ask(engine, BICYCLE)
        top = engine.serving.prefix_variants.variants[2].namespace
        for file in Layout(data).namespace_dir(top).rglob("*.safetensors"):
            file.unlink()
        again = ask(engine, BICYCLE)
        engine.settle()
        assert again.raw == before.raw
        assert "live prefill" in [stage.name for stage in again.timings.stages]
        assert engine.store.counts(top).warm >= 1


def test_everything_computed_anew_is_full_prefill(world: World, data: Path) -> None:
    with an_engine(world, data, recompute=1.0) as engine:
        list(warm(engine))
        got = first_of(engine, RecomputeChoice(1.0, SelectorName.EDGE_QUERY))
        with first_logits() as seen:
            ask(engine, BICYCLE, AnswerMode.FULL)
        torch.testing.assert_close(got, seen[0], atol=2e-3, rtol=1e-3)


def test_a_removed_document_takes_all_of_its_rungs_along(world: World, data: Path) -> None:
    with an_engine(world, data) as engine:
        list(warm(engine))
        store = engine.store
        files = Counter(file.parent.parent.name for file in (data / "kv").rglob("*.safetensors"))
        assert sorted(files.values()) == [3, 3, 3]
        document = store.documents()[0].path
        report = store.purge(document, verify=True)
        assert (report.documents, report.chunks, report.kv_files, report.traces) == (1, 1, 3, ())
        assert len(list((data / "kv").rglob("*.safetensors"))) == 6
        assert warm_counts(engine) == (2, 2, 2)


def test_a_prepared_model_has_the_rungs_of_its_settings(world: World, data: Path) -> None:
    model = world.prepared.model
    assert prepare_model(model, data).prefix_variants.is_plain
    ready = prepare_model(model, data, RUNGS)
    expected = [variant.namespace for variant in world.prepared.prefix_variants.variants]
    assert [variant.namespace for variant in ready.prefix_variants.variants] == expected


@pytest.mark.slow
def test_what_upper_rungs_left_is_not_believed_once_the_record_is_lost(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_model, "run_gate", lambda model, prefix, progress: run_gate(model, prefix, GROUPS[:1]))
    model = world.prepared.model
    first = prepare_model(model, tmp_path, RUNGS)
    for record in (tmp_path / "models").iterdir():
        record.unlink()
    second = prepare_model(model, tmp_path, RUNGS)
    assert second.prefix_variants.namespaces == first.prefix_variants.namespaces, "nothing was left"
    for record in (tmp_path / "models").iterdir():
        record.unlink()
    Layout(tmp_path).namespace_dir(first.prefix_variants.namespaces[2]).mkdir(parents=True)
    again = prepare_model(model, tmp_path)
    assert (first.drift_epoch, again.drift_epoch) == (0, 1) and again.namespace != first.namespace


def test_doctor_says_how_often_chunks_are_kept(tmp_path: Path) -> None:
    def told(**model: object) -> dict[str, tuple[Verdict, str]]:
        settings = Settings(data_dir=tmp_path, model=ModelSettings.model_validate(model))
        return {finding.name: (finding.verdict, finding.detail) for finding in examine(settings)}

    assert "rungs" not in told()
    verdict, detail = told(rungs="0,1,3")["rungs"]
    assert verdict is Verdict.WARN and "0, 1, 3: every chunk is prefilled and kept 3 times" in detail
    assert told(rungs=[0, 2], name="somewhere")["rungs"][0] is Verdict.OK
