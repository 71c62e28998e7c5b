"""Both passes over one slab agree, the prefix is written when it has to be, and full prefill takes the fastest way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from desk_rag.errors import OutOfMemory
from desk_rag.kv.forward import full_prefill, runner
from desk_rag.kv.forward.runner import FusedPass, ModelPass, ModelRunner
from desk_rag.kv.prefill import PrefixKV, prefill_prefix
from desk_rag.kv.rope import build_tables
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, build_model

PROMPT = [(7 * index) % 190 + 5 for index in range(40)]
ROOM = 64


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return build_model(next(family for family in FAMILIES if family.name == "qwen3"))


@pytest.fixture(scope="module")
def prefix(model: LanguageModel) -> PrefixKV:
    return prefill_prefix(model)


def a_slab(model: LanguageModel, prefix: PrefixKV, *, fused: bool | None = None, capacity: int = ROOM) -> ModelRunner:
    return ModelRunner(model, prefix, build_tables(model, capacity), capacity, fused=fused)


def steps(slab: ModelRunner, asked: list[int]) -> list[torch.Tensor]:
    """A prompt, then two tokens one by one; `asked` collects what the first pass asks for."""
    run = slab.run(asked.append if slab.fused is not None else None)
    logits = [run.forward(PROMPT, 0).clone()]
    logits += [run.forward([token], len(PROMPT) + index).clone() for index, token in enumerate((9, 12))]
    assert slab.cache.get_seq_length() == len(PROMPT) + 2
    return logits


def test_both_passes_give_the_same_logits_and_only_the_first_one_waits(model: LanguageModel, prefix: PrefixKV) -> None:
    calls: list[int] = []
    theirs, ours = a_slab(model, prefix), a_slab(model, prefix, fused=True)
    assert isinstance(theirs.run(), ModelPass)
    assert isinstance(ours.run(), FusedPass)
    for one, other in zip(steps(ours, calls), steps(theirs, calls), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert calls == list(range(model.spec.num_layers))


def test_a_model_without_a_lean_pass_keeps_its_own(prefix: PrefixKV) -> None:
    sliding = build_model(next(family for family in FAMILIES if family.name.startswith("gemma")))
    slab = a_slab(sliding, prefill_prefix(sliding), fused=True)
    assert slab.fused is None
    slab.prepare(PROMPT)


def test_the_prefix_is_written_where_something_else_may_have_been(model: LanguageModel, prefix: PrefixKV) -> None:
    slab = a_slab(model, prefix)
    first = slab.cache.layers[0].key_slab[0, :, : prefix.num_tokens]
    slab.lay_prefix()
    assert torch.equal(first, prefix.keys[0])
    first.zero_()
    slab.lay_prefix()
    assert not first.any(), "nobody said that it was gone"
    for lose in (slab.forget_prefix, lambda: slab.whole(PROMPT)()):
        lose()
        slab.lay_prefix()
        assert torch.equal(first, prefix.keys[0])


def test_full_prefill_takes_the_fastest_way_that_there_is(
    model: LanguageModel, prefix: PrefixKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = a_slab(model, prefix).whole(PROMPT)()
    known: dict[int, str] = {}
    taken: list[str] = []
    seconds = {"fused": 3.0, "transformers": 2.0}
    real = full_prefill.implementations

    def named(*arguments: object) -> dict[str, Callable[[], torch.Tensor]]:
        def noted(name: str, way: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
            def run() -> torch.Tensor:
                taken.append(name)
                return way()

            return run

        return {name: noted(name, way) for name, way in real(*arguments).items()}  # type: ignore[arg-type]

    def clocked(way: Callable[[], torch.Tensor]) -> float:
        way()
        if taken[-1] not in seconds:
            raise RuntimeError("no kernel for this")
        return seconds[taken[-1]]

    monkeypatch.setattr(full_prefill, "implementations", named)
    monkeypatch.setattr(full_prefill, "_timed", clocked)
    for fastest in ("transformers", "fused"):
        slab = ModelRunner(model, prefix, build_tables(model, ROOM), ROOM, fused=True, known=known)
        torch.testing.assert_close(slab.whole(PROMPT)(), expected, rtol=1e-4, atol=1e-4)
        assert taken[-1] == fastest
        assert slab.cache.get_seq_length() == len(PROMPT)
        tried = len(taken)
        slab.whole(PROMPT[1:])()
        assert len(taken) == tried + 1, "known by now"
        known.clear()
        del seconds["transformers" if fastest == "transformers" else "fused"]
    slab.whole(PROMPT)()
    assert taken[-1] == "fused", "where nothing can be timed the first way has to do"


def test_no_room_is_told_with_a_remedy(
    model: LanguageModel, prefix: PrefixKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner, "SlabCache", full)
    with pytest.raises(OutOfMemory, match="64 tokens"):
        a_slab(model, prefix)


def test_a_lean_pass_that_finds_no_room_is_left_out(
    model: LanguageModel, prefix: PrefixKV, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner, "FusedDecoder", full)
    slab = a_slab(model, prefix, fused=True)
    assert slab.fused is None and "Not enough memory for the fused pass" in caplog.text
    assert isinstance(slab.run(), ModelPass)


def test_a_lean_pass_has_to_prove_itself(
    model: LanguageModel, prefix: PrefixKV, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sound = a_slab(model, prefix, fused=True)
    sound.prepare(PROMPT)
    assert sound.fused is not None and not caplog.records
    wrong = a_slab(model, prefix, fused=True)
    assert wrong.fused is not None
    right = wrong.fused.run
    monkeypatch.setattr(wrong.fused, "run", lambda *args, **how: right(*args, **how).roll(1, -1))
    wrong.prepare(PROMPT)
    assert wrong.fused is None and "differs from the reference by" in caplog.text
    broken = a_slab(model, prefix, fused=True)
    assert broken.fused is not None

    class OutOfResources(Exception):
        """As Triton's: no RuntimeError."""

    def fails(*_: object, **__: object) -> torch.Tensor:
        raise OutOfResources("no such kernel")

    monkeypatch.setattr(broken.fused, "run", fails)
    released: list[torch.device] = []
    monkeypatch.setattr(runner, "release_unused", released.append)
    broken.prepare(PROMPT)
    assert broken.fused is None and "no such kernel" in caplog.text
    assert released == [model.device], "its graphs would leave no room for the other pass"
