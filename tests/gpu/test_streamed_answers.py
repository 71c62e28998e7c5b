"""Answers on the GPU: loaded layer by layer while the question's pass runs, against files read whole and stitched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerMode
from desk_rag.answering.kv_connector import KVConnector, tier_bytes
from desk_rag.kv.lazy.memory import AttentionPath
from desk_rag.kv.recompute.policy import RecomputeChoice
from desk_rag.model.memory.device import free_gpu_bytes
from tests.answer_world import (
    BICYCLE,
    RENT,
    World,
    an_engine,
    ask,
    filled,
    first_logits,
    loader_of,
    make_world,
    streamed,
)
from tests.models import FAMILIES, Family, build_model, on_device
from tests.whole_files import WholeFiles

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), "cuda")


@pytest.fixture
def data(world: World, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(world.data, tmp_path / "data")
    return tmp_path / "data"


def test_the_gpu_takes_the_streamed_way_within_its_memory(world: World, data: Path) -> None:
    with an_engine(world, data) as engine:
        assert isinstance(engine._connector, KVConnector)
        resident, staging = tier_bytes(engine.settings.answer, engine.model.device)
        assert 0 < resident <= free_gpu_bytes(engine.model.device)
        assert staging >= 64 << 20
        assert "WTU-4471-B" in ask(engine, BICYCLE).text


def test_both_ways_fill_the_cache_alike_cold_and_from_every_tier(world: World, data: Path) -> None:
    with (
        an_engine(world, data, WholeFiles, lean=False) as mapped,
        an_engine(world, data, streamed, writer=False) as engine,
    ):
        for question in (BICYCLE, RENT):
            length, expected = filled(mapped, question)
            for empty in (
                engine.forget_loaded,
                lambda: None,
                lambda: loader_of(engine).forget(staged=False),
            ):
                empty()
                got_length, got = filled(engine, question)
                assert got_length == length
                # The question's own rows come out of two different forward passes in bf16.
                context = length - len(engine.model.prompt.question_ids(question))
                for one, other in zip(got, expected, strict=True):
                    torch.testing.assert_close(one[:, :, :context], other[:, :, :context], rtol=2e-2, atol=2e-2)
                    asked, wanted = one[:, :, context:].float(), other[:, :, context:].float()
                    assert (asked - wanted).norm() < 0.02 * wanted.norm()
            assert ask(engine, question).raw == ask(mapped, question).raw


def test_stages_are_all_there_and_waiting_is_told_apart(world: World, data: Path) -> None:
    with an_engine(world, data, streamed) as engine:
        for _ in range(3):
            engine.forget_loaded()
            timings = ask(engine, RENT).timings
            assert [stage.name for stage in timings.stages] == ["queue", "retrieve", "load", "stitch", "prefill"]
            assert all(stage.seconds >= 0 for stage in timings.stages)
        assert ask(engine, RENT, AnswerMode.FULL).timings.loaded_bytes == 0


def test_damage_and_fetching_ahead_change_no_answer(world: World, data: Path) -> None:
    with an_engine(world, data, streamed) as engine:
        expected = {question: ask(engine, question).raw for question in (RENT, BICYCLE)}
        engine.forget_loaded()
        engine.prefetch(BICYCLE)
        engine.settle()
        assert ask(engine, RENT).raw == expected[RENT]
        assert ask(engine, BICYCLE).raw == expected[BICYCLE]
        engine.forget_loaded()
        for file in sorted((data / "kv").rglob("*.safetensors")):
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.chmod(0o600)
            file.write_bytes(content)
        answer = ask(engine, BICYCLE)
        assert answer.raw == expected[BICYCLE]
        assert "live prefill" in [stage.name for stage in answer.timings.stages]
        engine.settle()
        assert "live prefill" not in [stage.name for stage in ask(engine, BICYCLE).timings.stages]


# Every first pass against the plain one: files read whole, stitched, transformers' own forward pass ---------------


DEVICE = "cuda"
QUESTIONS = (BICYCLE, RENT)


@dataclass(frozen=True, slots=True)
class Told:
    """An answer and the logits of its first token."""

    answer: Answer
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """A model's world, and how far rounding may move its logits, in standard deviations."""

    world: World
    tolerance: float
    exact_text: bool
    """False where text says nothing: a random model's best tokens are nearly level."""


@pytest.fixture(scope="module", params=["reader", "qwen3", "llama-llama3"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The embedded reader in the dtype it has here, and tiny random models in fp32."""
    root = tmp_path_factory.mktemp("case")
    if request.param == "reader":
        return Case(make_world(root, DEVICE), 0.3, True)
    tiny = build_model(with_longer_context(next(family for family in FAMILIES if family.name == request.param)))
    return Case(make_world(root, DEVICE, on_device(tiny)), 0.05, False)


def with_longer_context(family: Family) -> Family:
    """The quality gate's canaries are long in bytes; the rotary forms used here do not depend on the limit."""

    def build() -> Any:
        model_class, config = family.build()
        config.max_position_embeddings = 4096
        return model_class, config

    return Family(family.name, build)


@pytest.fixture
def files(case: Case, tmp_path: Path) -> Path:
    shutil.copytree(case.world.data, tmp_path / "data")
    return tmp_path / "data"


def told(
    engine: AnswerEngine, question: str, mode: AnswerMode = AnswerMode.CACHED, recompute: RecomputeChoice | None = None
) -> Told:
    with first_logits() as seen:
        answer = ask(engine, question, mode, recompute)
    return Told(answer, seen[-1])


def assert_alike(one: Told, other: Told, case: Case) -> None:
    gap = float((one.logits - other.logits).abs().max() / other.logits.std())
    assert gap < case.tolerance
    if case.exact_text:
        assert one.answer.raw == other.answer.raw


def plain(case: Case, files: Path) -> dict[tuple[str, AnswerMode | float], Told]:
    """By question and mode; a number is a ratio of recompute."""
    with an_engine(case.world, files, WholeFiles, writer=False, lean=False, attention="materialize") as engine:
        by_mode = {(q, mode): told(engine, q, mode) for q in QUESTIONS for mode in AnswerMode}
        recomputed = {(q, r): told(engine, q, recompute=RecomputeChoice(r)) for q in QUESTIONS for r in (0.2, 1.0)}
        return {**by_mode, **recomputed}


def spoil(data: Path) -> None:
    files = sorted((data / "kv").rglob("*.safetensors"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.chmod(0o600)
        file.write_bytes(content)


def test_the_lean_pass_over_the_streamed_way(case: Case, files: Path) -> None:
    expected = plain(case, files)
    with an_engine(case.world, files, streamed) as engine:
        slab = engine._slab
        assert slab is not None
        assert slab.fused is not None
        assert slab.fused.uses_graphs
        for question in QUESTIONS:
            for cold in (True, False):
                if cold:
                    engine.forget_loaded()
                assert_alike(told(engine, question), expected[question, AnswerMode.CACHED], case)
                full = told(engine, question, AnswerMode.FULL)
                assert_alike(full, expected[question, AnswerMode.FULL], case)
                assert_alike(told(engine, question), expected[question, AnswerMode.CACHED], case)
        engine.forget_loaded()
        spoil(files)
        damaged = told(engine, BICYCLE)
        assert_alike(damaged, expected[BICYCLE, AnswerMode.CACHED], case)
        assert "live prefill" in [stage.name for stage in damaged.answer.timings.stages]


def test_lazy_attention_over_the_streamed_way(case: Case, files: Path) -> None:
    expected = plain(case, files)
    with an_engine(case.world, files, streamed, attention="lazy") as engine:
        assert engine.attention is AttentionPath.LAZY
        for question in QUESTIONS:
            for cold in (True, False):
                if cold:
                    engine.forget_loaded()
                assert_alike(told(engine, question), expected[question, AnswerMode.CACHED], case)
        assert_alike(told(engine, RENT, AnswerMode.FULL), expected[RENT, AnswerMode.FULL], case)
        engine.forget_loaded()
        spoil(files)
        damaged = told(engine, BICYCLE)
        assert_alike(damaged, expected[BICYCLE, AnswerMode.CACHED], case)
        assert "live prefill" in [stage.name for stage in damaged.answer.timings.stages]


def test_recompute_over_the_streamed_way(case: Case, files: Path) -> None:
    expected = plain(case, files)
    with an_engine(case.world, files, streamed, recompute=0.2) as engine:
        for question in QUESTIONS:
            for cold in (True, False):
                if cold:
                    engine.forget_loaded()
                some = told(engine, question)
                # Which tokens are chosen hangs on rounding as well: only how many they are is compared, and the text.
                ratio = expected[question, 0.2].answer.timings.recompute_ratio
                assert ratio > 0
                assert some.answer.timings.recompute_ratio == pytest.approx(ratio)
                assert not case.exact_text or some.answer.raw == expected[question, 0.2].answer.raw
                first = told(engine, question, recompute=RecomputeChoice(0.0))
                assert_alike(first, expected[question, AnswerMode.CACHED], case)
                whole = told(engine, question, recompute=RecomputeChoice(1.0))
                assert_alike(whole, expected[question, 1.0], case)
                assert_alike(whole, expected[question, AnswerMode.FULL], case)
        engine.forget_loaded()
        spoil(files)
        damaged = told(engine, BICYCLE)
        assert damaged.answer.timings.recompute_ratio > 0
        assert "live prefill" in [stage.name for stage in damaged.answer.timings.stages]
        assert "choose" in [stage.name for stage in damaged.answer.timings.stages]
