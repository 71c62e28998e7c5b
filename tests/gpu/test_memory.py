"""Little GPU memory: plans keep to it, smaller ways are taken, and what cannot fit is an error in words."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from desk_rag.answering.kv_connector import tier_bytes
from desk_rag.answering.strategy import attention_path
from desk_rag.bench.models import shapes
from desk_rag.config import AnswerSettings, ModelSettings
from desk_rag.errors import OutOfMemory
from desk_rag.kv.forward.runner import ModelRunner
from desk_rag.kv.lazy.memory import AttentionPath
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.kv.rope import build_tables
from desk_rag.model.loading import load_model
from desk_rag.model.memory import page_locked
from desk_rag.model.memory.device import free_gpu_bytes, release_unused
from desk_rag.model.memory.page_locked import keep_embeddings_in_ram
from tests.answer_world import BICYCLE, World, an_engine, ask, make_world

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]
GPU = torch.device("cuda", 0)
MIB = 1 << 20


@pytest.fixture
def leave() -> Iterator[Callable[[int], None]]:
    """A function that leaves this process so many more bytes of GPU memory than it has now."""
    _, total = torch.cuda.mem_get_info(GPU)

    def limit(nbytes: int) -> None:
        release_unused(GPU)
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(GPU) + nbytes) / total, GPU)

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0, GPU)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), "cuda")


@pytest.fixture
def data(world: World, tmp_path: Path) -> Path:
    shutil.copytree(world.data, tmp_path / "data")
    return tmp_path / "data"


def test_plans_keep_to_the_share_of_the_process(world: World, leave: Callable[[int], None]) -> None:
    model = world.prepared.model
    large = plan(10, [200_000])
    assert attention_path(AnswerSettings(), model, large, 400) is AttentionPath.MATERIALIZE
    leave(256 * MIB)
    assert 0 < free_gpu_bytes(GPU) <= 256 * MIB
    assert tier_bytes(AnswerSettings(), GPU)[0] <= 64 * MIB
    assert attention_path(AnswerSettings(), model, large, 400) is AttentionPath.LAZY


def test_a_model_that_does_not_fit_is_refused_with_a_remedy(leave: Callable[[int], None]) -> None:
    leave(4 * MIB)
    with pytest.raises(OutOfMemory) as refusal:
        load_model(ModelSettings(device="cuda"))
    assert "nf4" in refusal.value.remedy


def test_input_embeddings_in_ram_change_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = shapes.build("small", GPU)
    weight = model.module.get_input_embeddings().weight
    words = weight.detach().clone()
    prefix = prefill_prefix(model)
    ids = shapes.random_ids(model, 1, 40)[0].tolist()

    def first_logits() -> list[torch.Tensor]:
        runner = ModelRunner(model, prefix, build_tables(model, 256), 256)
        runner.prepare(ids[:16])
        return [runner.whole(ids)().float().clone(), runner.run().forward([ids[3]], len(ids)).float().clone()]

    before = first_logits()
    release_unused(GPU)
    assert keep_embeddings_in_ram(model.module) == 0, "a small table stays where memory is plenty"
    del weight
    monkeypatch.setattr(page_locked, "belongs_in_ram", lambda *_: True)
    taken = torch.cuda.memory_allocated(GPU)
    assert keep_embeddings_in_ram(model.module) == words.nbytes
    moved = model.module.get_input_embeddings().weight
    assert moved.device == GPU and torch.equal(moved, words)
    assert torch.cuda.memory_allocated(GPU) <= taken - words.nbytes
    for expected, logits in zip(before, first_logits(), strict=True):
        assert torch.equal(expected, logits)


@pytest.mark.parametrize("left", [512 * MIB, 24 * MIB, 4 * MIB, 0])
def test_with_ever_less_memory_an_answer_is_right_or_an_error_in_words(
    left: int, world: World, data: Path, leave: Callable[[int], None]
) -> None:
    leave(left)
    try:
        with an_engine(world, data) as engine:
            answer = ask(engine, BICYCLE)
            assert "WTU-4471-B" in answer.text
            print(f"{left // MIB} MiB: {engine.attention.value}, {engine.context_tokens} tokens, {answer.notices}")
    except OutOfMemory as error:
        assert left < 512 * MIB and error.remedy
        print(f"{left // MIB} MiB: {error}")


def test_memory_taken_between_questions_is_given_way_to(world: World, data: Path, leave: Callable[[int], None]) -> None:
    with an_engine(world, data) as engine:
        before = ask(engine, BICYCLE).text
        leave(2 * MIB)
        try:
            assert "WTU-4471-B" in ask(engine, BICYCLE).text
        except OutOfMemory as error:
            assert error.remedy
        leave(1024 * MIB)
        assert ask(engine, BICYCLE).text == before
