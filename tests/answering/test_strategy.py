"""Answers by every kind of first pass: lean, lazy, with recompute; each against the plain one or full prefill."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from desk_rag.answering.auxiliary import open_auxiliary
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerMode
from desk_rag.answering.strategy import TimedRecompute, attention_path
from desk_rag.config import AnswerSettings, Settings
from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.kv.lazy.memory import AttentionPath
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.kv.prefix_variants.variants import PrefixVariant, PrefixVariants
from desk_rag.kv.quant import QuantScheme
from desk_rag.kv.recompute import auxiliary_model
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import RecomputeChoice, SelectorName
from desk_rag.kv.recompute.step import PrefillResult
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.types import Namespace
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory import device as device_memory
from desk_rag.store.store import Store
from tests.answer_world import BICYCLE, RENT, World, an_engine, ask, first_logits, streamed
from tests.models import FAMILIES, build_model
from tests.whole_files import WholeFiles

PLAIN_STAGES = ["queue", "retrieve", "load", "stitch", "prefill"]
CHOOSING_STAGES = ["queue", "retrieve", "choose", "load", "stitch", "prefill"]


@pytest.fixture(autouse=True, scope="module")
def _one_reading() -> Iterator[None]:
    """Every question takes one reading, which is what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("desk_rag.answering.questions.asking.convincing", lambda events: (yield from events))
        yield


@pytest.fixture(scope="module")
def plainly(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Answer, torch.Tensor]]:
    """Answers and first logits by the plain path: stitched whole, the model's own pass."""
    data = tmp_path_factory.mktemp("plain") / "data"
    shutil.copytree(world.data, data)
    with an_engine(world, data, WholeFiles) as engine, first_logits() as seen:
        return {question: (ask(engine, question), seen[-1]) for question in (BICYCLE, RENT)}


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference in standard deviations of the other."""
    return float((one - other).abs().max() / other.std())


def stages(answer: Answer) -> list[str]:
    return [stage.name for stage in answer.timings.stages]


def damage(engine: AnswerEngine) -> None:
    """One bit of the last layers of every file."""
    files = sorted((engine.settings.data_dir / "kv").rglob("*.safetensors"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[-1] ^= 0x10
        file.chmod(0o600)
        file.write_bytes(content)


@pytest.mark.parametrize("loading", [WholeFiles, streamed])
def test_the_lean_pass_answers_as_the_models_own(world: World, data: Path, loading, plainly) -> None:  # type: ignore[no-untyped-def]
    with an_engine(world, data, loading, lean=True) as engine, first_logits() as seen:
        slab = engine._slab
        assert slab is not None
        assert slab.fused is not None
        for question, (expected, logits) in plainly.items():
            for mode in (AnswerMode.CACHED, AnswerMode.FULL, AnswerMode.CACHED):
                answer = ask(engine, question, mode)
                if mode is AnswerMode.CACHED:
                    assert answer.raw == expected.raw
                    assert gap(seen[-1], logits) < 1e-3
                    assert stages(answer) == PLAIN_STAGES
                else:
                    assert gap(seen[-1], logits) > 1e-3, "the comparison above can fail"
    if loading is streamed:
        with an_engine(world, data, loading, lean=True, writer=False) as engine:
            damage(engine)
            answer = ask(engine, BICYCLE)
            assert answer.raw == plainly[BICYCLE][0].raw
            assert "live prefill" in stages(answer)


def test_the_prefix_is_written_once_and_again_after_full_prefill(world: World, data: Path) -> None:
    with an_engine(world, data, streamed, lean=True) as engine:
        slab = engine._slab
        assert slab is not None
        expected = ask(engine, RENT)
        kept = engine.prefix.keys.clone()
        try:
            engine.prefix.keys.zero_()
            assert ask(engine, RENT).raw == expected.raw, "it lies there already"
            ask(engine, RENT, AnswerMode.FULL)
            ask(engine, RENT)
            width = engine.prefix.num_tokens
            assert not slab.cache.layers[0].key_slab[:, :, :width].any(), "it was written again"
        finally:
            engine.prefix.keys.copy_(kept)
        ask(engine, RENT, recompute=RecomputeChoice(0.3))
        assert ask(engine, RENT).raw == expected.raw


@pytest.mark.parametrize("loading", [WholeFiles, streamed])
def test_lazy_attention_answers_as_a_slab_does(world: World, data: Path, loading, plainly) -> None:  # type: ignore[no-untyped-def]
    with an_engine(world, data, loading, attention="lazy") as engine, first_logits() as seen:
        assert engine.attention is AttentionPath.LAZY
        assert engine._slab is None
        for question, (expected, logits) in plainly.items():
            answer = ask(engine, question)
            assert answer.raw == expected.raw
            assert gap(seen[-1], logits) < 2e-2
            assert answer.timings.loaded_bytes == pytest.approx(expected.timings.loaded_bytes, rel=0.1)
            assert stages(answer) == PLAIN_STAGES
        assert "WTU-4471-B" in ask(engine, BICYCLE, AnswerMode.FULL).text
        engine.forget_loaded()
        damage(engine)
        answer = ask(engine, BICYCLE)
        assert answer.raw == plainly[BICYCLE][0].raw
        assert "live prefill" in stages(answer)


def test_an_abandoned_lazy_answer_gives_its_chunks_back(world: World, data: Path) -> None:
    with an_engine(world, data, streamed, attention="lazy") as engine:
        expected = ask(engine, RENT)
        events = engine.ask(RENT)
        next(events)
        next(events)
        events.close()  # type: ignore[attr-defined]
        assert not engine.turn.answer_waits()
        assert ask(engine, RENT).raw == expected.raw


def test_lazy_attention_over_chunks_of_which_none_was_on_disk(world: World, data: Path, plainly) -> None:  # type: ignore[no-untyped-def]
    for file in sorted((data / "kv").rglob("*.safetensors")):
        file.unlink()
    with an_engine(world, data, streamed, attention="lazy") as engine:
        answer = ask(engine, BICYCLE)
        assert answer.cold_chunks == len(answer.sources) > 0
        assert answer.raw == plainly[BICYCLE][0].raw


def test_recomputing_everything_is_full_prefill(world: World, data: Path) -> None:
    with an_engine(world, data, streamed) as engine, first_logits() as seen:
        for question in (BICYCLE, RENT):
            full = ask(engine, question, AnswerMode.FULL)
            recomputed = ask(engine, question, recompute=RecomputeChoice(1.0))
            plain = ask(engine, question)
            assert recomputed.raw == full.raw
            assert gap(seen[-2], seen[-3]) < 1e-2
            assert gap(seen[-1], seen[-3]) > 1e-2, "the plain path is another"
            assert (recomputed.timings.recompute_ratio, plain.timings.recompute_ratio) == (1.0, 0.0)
            assert stages(recomputed) == CHOOSING_STAGES
            assert stages(plain) == PLAIN_STAGES
            assert all(stage.seconds >= 0 for stage in recomputed.timings.stages)


@pytest.mark.parametrize("lean", [False, True])
def test_some_recompute_over_the_streamed_way_and_damaged_files(world: World, data: Path, lean: bool) -> None:
    with an_engine(world, data, WholeFiles, recompute=0.2, writer=False) as mapped:
        expected = {question: ask(mapped, question) for question in (BICYCLE, RENT)}
    with an_engine(world, data, streamed, recompute=0.2, lean=lean) as engine:
        for question, answer in expected.items():
            got = ask(engine, question)
            assert got.raw == answer.raw
            assert got.timings.recompute_ratio == answer.timings.recompute_ratio
            assert 0.15 < got.timings.recompute_ratio < 0.25
        engine.forget_loaded()
        damage(engine)
        got = ask(engine, BICYCLE)
        assert got.raw == expected[BICYCLE].raw
        assert got.timings.recompute_ratio == expected[BICYCLE].timings.recompute_ratio
        assert "live prefill" in stages(got)


def test_the_auxiliary_model_chooses_through_the_engine(world: World, data: Path) -> None:
    helper = AuxiliaryModel(world.prepared.model, world.prepared.prefix)
    with an_engine(world, data, streamed, auxiliary=helper, recompute=0.2, selector="aux") as engine:
        everything = ask(engine, BICYCLE, recompute=RecomputeChoice(1.0, SelectorName.AUX))
        assert everything.timings.recompute_ratio == 1.0 and not everything.notices, "there is nothing to select"
        ask(engine, BICYCLE)
        engine.settle()
        chosen = ask(engine, BICYCLE)
        assert 0 < chosen.timings.recompute_ratio < 0.4
        assert (chosen.timings.selector, chosen.notices) == ("aux", ())
    with an_engine(world, data, streamed, recompute=0.2, selector="aux", writer=False) as engine:
        with pytest.raises(ConfigError, match="auxiliary"):
            ask(engine, BICYCLE)
        assert not engine.turn.answer_waits()


class Apart:
    """A world whose auxiliary model is another than the answering one, without any chunk KV."""

    def __init__(self, world: World) -> None:
        small = build_model(FAMILIES[0])
        gate = replace(world.prepared.gate, scheme=QuantScheme.uniform(small.spec.num_layers))
        plain = PrefixVariant(0, prefill_prefix(small), Namespace("0" * 32))
        self.auxiliary = ServingModel(small, PrefixVariants((plain,)), gate)
        self._world = replace(world, prepared=replace(world.prepared, auxiliary=self.auxiliary))

    @contextmanager
    def engine(self, data: Path, *, writer: bool) -> Iterator[tuple[AnswerEngine, AuxiliaryModel]]:
        """An engine, as after a restart."""
        with Store.open(data, Settings().store, writer=False) as store:
            opened = open_auxiliary(self.auxiliary, store)
            with an_engine(
                self._world, data, streamed, auxiliary=opened, recompute=0.2, selector="aux", writer=writer
            ) as engine:
                yield engine, opened


def test_what_the_auxiliary_model_lacks_is_made_after_the_answer(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart, prefilled = Apart(world), []
    real = auxiliary_model.prefill_chunk

    def prefill_chunk(*args: object) -> object:
        prefilled.append(engine.turn.answer_waits())
        return real(*args)  # type: ignore[arg-type]

    with an_engine(world, data, streamed, recompute=0.2) as plain:
        by_edges = ask(plain, BICYCLE)
    monkeypatch.setattr(auxiliary_model, "prefill_chunk", prefill_chunk)
    with apart.engine(data, writer=True) as (engine, _):
        first = ask(engine, BICYCLE)
        assert first.raw == by_edges.raw and first.timings.selector == "edge-query"
        assert first.timings.recompute_ratio == by_edges.timings.recompute_ratio
        assert "live prefill" not in stages(first)
        (notice,) = first.notices
        assert f"no cache of {len(first.sources)} passages yet, so `edge-query` selected" in notice
        engine.settle()
        assert prefilled == [False] * len(first.sources), "once each, and while no answer waited"
        assert (engine.store.auxiliary_share() or (0, 0))[1] == len(first.sources) > 0
        second = ask(engine, BICYCLE)
        assert second.timings.selector == "aux" and not second.notices
    with apart.engine(data, writer=True) as (engine, _):
        again = ask(engine, BICYCLE)
        assert again.timings.selector == "aux" and again.raw == second.raw, "from the store it selects the same"
        assert again.timings.recompute_ratio == second.timings.recompute_ratio
        engine.settle()
        assert len(prefilled) == len(first.sources)


def test_who_may_not_write_asks_for_the_auxiliary_model_s_caches_and_keeps_them_in_memory(
    world: World, data: Path
) -> None:
    apart = Apart(world)
    with apart.engine(data, writer=False) as (engine, _):
        first = ask(engine, BICYCLE)
        engine.settle()
        assert ask(engine, BICYCLE).timings.selector == "aux" != first.timings.selector
        assert not (engine.store.auxiliary_share() or (0, 0))[1]
    with Store.open(data, Settings().store, writer=True) as store:
        chunks = store.chunks_without_kv(apart.auxiliary.namespace, 99)
        assert {chunk.chunk_id for chunk in chunks[: len(first.sources)]} == {s.chunk_id for s in first.sources}


@pytest.mark.parametrize("closed_meanwhile", [False, True])
def test_making_the_auxiliary_model_s_caches_gives_way_to_an_answer(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, closed_meanwhile: bool
) -> None:
    tried: list[object] = []
    begun, may_end = threading.Event(), threading.Event()
    real = auxiliary_model.prefill_chunk

    def answer() -> None:
        with engine.turn.answering():
            begun.set()
            may_end.wait(60)

    answering = threading.Thread(target=answer)

    def prefill_chunk(*args: Any) -> object:
        tried.append(args[2])
        if len(tried) == 1:
            answering.start()
            while not engine.turn.answer_waits():
                time.sleep(0.001)
        return real(*args)

    monkeypatch.setattr(auxiliary_model, "prefill_chunk", prefill_chunk)
    with Apart(world).engine(data, writer=True) as (engine, opened):
        texts = [source.text for source in ask(engine, BICYCLE).sources]
        assert begun.wait(60), "it was interrupted"
        assert not any(opened.has(texts)) and len(tried) == 1
        if not closed_meanwhile:
            may_end.set()
            engine.settle()
            assert all(opened.has(texts)) and tried[0] == tried[1] and len(tried) == len(texts) + 1
    assert not closed_meanwhile or len(tried) == 1, "the end of the process does not wait for another answer"
    may_end.set()
    answering.join()


def test_no_recompute_runs_no_recompute(world: World, data: Path, plainly) -> None:  # type: ignore[no-untyped-def]
    with an_engine(world, data, recompute=0.4) as engine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedRecompute, "prefill", lambda _self: pytest.fail("recomputed all the same"))
        answer = ask(engine, RENT, recompute=RecomputeChoice(0.0))
        assert answer.raw == plainly[RENT][0].raw
        assert stages(answer) == PLAIN_STAGES


def test_recompute_and_lazy_attention_exclude_each_other(world: World, data: Path) -> None:
    with (
        pytest.raises(ConfigError, match="recompute = '0.2'.*attention"),
        an_engine(world, data, attention="lazy", recompute=0.2),
    ):
        pass
    with an_engine(world, data, attention="lazy") as engine:
        with pytest.raises(ConfigError, match="recompute = '0.5'.*attention"):
            ask(engine, RENT, recompute=RecomputeChoice(0.5))
        assert not engine.turn.answer_waits()
        assert "Mill Lane" in ask(engine, RENT).raw


def test_an_adapted_model_is_served_from_a_slab(world: World, data: Path) -> None:
    spec = world.prepared.model.spec
    shift = PlaceShift.zero(spec.num_layers, spec.num_kv_heads, spec.head_dim)
    adapted = replace(world, prepared=replace(world.prepared, shift=shift))
    with pytest.raises(ConfigError, match="adapted.*lazy"), an_engine(adapted, data, attention="lazy"):
        pass
    with an_engine(world, data) as engine:
        plain = ask(engine, RENT)
    with an_engine(adapted, data) as engine:
        same = ask(engine, RENT)
        assert same.raw == plain.raw and same.warm_chunks == plain.warm_chunks > 1
    loud = replace(shift, values=shift.values + 30.0)
    with an_engine(replace(world, prepared=replace(world.prepared, shift=loud)), data) as engine:
        assert ask(engine, RENT).raw != plain.raw, "what was learned reaches the cache"
        whole = ask(engine, RENT, mode=AnswerMode.FULL)
        assert whole.raw == ask(engine, RENT, recompute=RecomputeChoice(1.0)).raw, "recomputed tokens carry no shift"


def test_the_path_follows_settings_device_and_free_memory(
    reader: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = plan(10, [2000])
    on_gpu = cast("LanguageModel", SimpleNamespace(spec=reader.spec, module=reader.module, device=torch.device("cuda")))

    def path(model: LanguageModel, **asked: object) -> AttentionPath:
        return attention_path(AnswerSettings.model_validate(asked), model, where, 400)

    monkeypatch.setattr(device_memory, "free_gpu_bytes", lambda _device: 1 << 20)
    assert path(reader) is AttentionPath.MATERIALIZE
    assert path(reader, attention="lazy") is AttentionPath.LAZY
    assert path(on_gpu) is AttentionPath.LAZY
    assert path(on_gpu, recompute=0.5) is AttentionPath.MATERIALIZE
    assert path(on_gpu, attention="materialize") is AttentionPath.MATERIALIZE
    monkeypatch.setattr(device_memory, "free_gpu_bytes", lambda _device: 5 << 30)
    assert path(on_gpu) is AttentionPath.MATERIALIZE
    sliding = build_model(next(family for family in FAMILIES if family.name.startswith("gemma")))
    with pytest.raises(UnsupportedModel, match="sliding"):
        path(sliding, attention="lazy")


def test_waiting_within_choosing_counts_once() -> None:
    done = PrefillResult(torch.zeros(1), SimpleNamespace(ratio=0.25), 0.5)  # type: ignore[arg-type]
    step: Any = SimpleNamespace(prefill=lambda: done)
    early, late = TimedRecompute(step, SelectorName.AUX), TimedRecompute(step, SelectorName.EDGE_QUERY)
    assert (early.ratio, early.choosing(0.2)) == (0.0, 0.0)
    for recompute in (early, late):
        recompute.prefill()
        assert recompute.ratio == 0.25
    assert early.choosing(0.2) == 0.5
    assert late.choosing(0.2) == pytest.approx(0.3)
    assert late.choosing(0.7) == 0.0
