"""Where memory runs out, an answer takes smaller steps and says so; it never ends in a fault of torch's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from desk_rag.answering.events import AnswerEvent, AnswerText, FirstToken
from desk_rag.answering.questions.less_memory import with_less_memory
from desk_rag.errors import OutOfMemory
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward import runner
from desk_rag.kv.forward.runner import ModelPass
from tests.answer_world import BICYCLE, World, an_engine, ask

CPU = torch.device("cpu")


def limited(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Let a pass over more than `most` tokens of context fail as a full GPU does; returns the contexts tried."""
    real, tried = ModelPass.forward, []

    def forward(self: ModelPass, token_ids: Sequence[int], start: int) -> torch.Tensor:
        if len(token_ids) > 1:
            tried.append(start)
        if start > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(self, token_ids, start)

    monkeypatch.setattr(ModelPass, "forward", forward)
    return tried


def test_fewer_passages_are_read_and_the_answer_says_so(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with an_engine(world, data) as engine:
        whole = ask(engine, BICYCLE)
        tried = limited(monkeypatch, whole.timings.context_tokens * 2 // 3)
        answer = ask(engine, BICYCLE)
    assert "WTU-4471-B" in answer.text and len(answer.sources) < len(whole.sources) == 3
    assert not whole.notices
    assert any("the best 1 of 3 were read" in notice and "quantised weights" in notice for notice in answer.notices)
    assert tried[0] == tried[1] > tried[2], "once more with everything after kept chunks were given up, then with less"


def test_what_does_not_fit_at_all_is_said_with_a_remedy(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with an_engine(world, data) as engine:
        with monkeypatch.context() as patch:
            limited(patch, 1)
            with pytest.raises(OutOfMemory, match="even from one passage") as refusal:
                ask(engine, BICYCLE)
        assert "smaller model" in refusal.value.remedy
        assert "WTU-4471-B" in ask(engine, BICYCLE).text, "and the next question is answered"


def test_a_slab_that_does_not_fit_is_halved_until_it_does(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    class Limited(SlabCache):
        def __init__(self, model: object, capacity: int, dtype: torch.dtype | None = None) -> None:
            tried.append(capacity)
            if capacity > 1200:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")
            super().__init__(model, capacity, dtype)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "SlabCache", Limited)
    with an_engine(world, data) as engine:
        assert len(tried) > 1 and tried == sorted(tried, reverse=True)
        assert engine._slab is not None and engine._slab.cache.capacity == tried[-1] <= 1200
        assert engine.context_tokens < 2000
        assert "WTU-4471-B" in ask(engine, BICYCLE).text


def test_no_room_for_one_chunk_is_an_error_in_words(world: World, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner, "SlabCache", full)
    with pytest.raises(OutOfMemory, match="not enough free memory for a context of"), an_engine(world, data):
        pass


def test_no_room_for_the_first_pass_is_an_error_in_words(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, 1)
    with pytest.raises(OutOfMemory, match="not enough memory for the model") as refusal, an_engine(world, data):
        pass
    assert "models fit" in refusal.value.remedy


def test_memory_that_ends_in_mid_answer_and_other_faults_are_not_tried_again() -> None:
    calls: list[str] = []

    def once(question: str, choose: object, under: Sequence[Path]) -> Iterator[AnswerEvent]:
        calls.append(question)
        if question == "fault":
            raise RuntimeError("sizes do not match")
        yield FirstToken(None)  # type: ignore[arg-type]
        yield AnswerText("The")
        raise torch.OutOfMemoryError("CUDA out of memory")

    forgotten: list[None] = []
    asked = with_less_memory(once, lambda: forgotten.append(None), CPU)
    with pytest.raises(RuntimeError, match="sizes"):
        list(asked("fault", lambda *_: [], ()))
    with pytest.raises(OutOfMemory):
        list(asked("late", lambda *_: [], ()))
    assert calls == ["fault", "late"] and not forgotten
