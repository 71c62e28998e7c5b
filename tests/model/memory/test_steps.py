"""A prompt that is read in steps leaves the keys, values and logits of one pass, and steps get smaller with memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from desk_rag.config import GIB
from desk_rag.errors import OutOfMemory
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward import full_prefill
from desk_rag.kv.forward.families import supports
from desk_rag.kv.forward.runner import Before, FusedPass, ModelRunner
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.recompute.run import Selection, recompute
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory import steps
from desk_rag.model.memory.plan import PassShape, prefill_step
from tests.models import FAMILIES, Family, build_model, each_family

QWEN_7B = PassShape(3584, 18944, 28, 128, 2, keeps_scores=False, writes_weights=True)
COUNT = 150


def ids(count: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(5, 200, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Plan steps of so many tokens; the smallest has so many."""

    def set_to(planned: int, smallest: int) -> None:
        monkeypatch.setattr(steps, "SMALLEST", smallest)
        monkeypatch.setattr(steps, "_UNPLANNED", smallest)
        monkeypatch.setattr(steps, "prefill_step", lambda _free, _shape, _slots, count: min(planned, count))

    return set_to


def assert_same_cache(one: SlabCache, other: SlabCache, count: int) -> None:
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        assert mine.get_seq_length() == theirs.get_seq_length() == count
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-4)


def assert_same_logits(actual: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    assert actual is not None and expected is not None
    assert float((actual - expected).abs().max()) < 1e-4 * float(expected.std())


class OutOfMemoryAbove:
    """Lets passes of more than `most` tokens run out of memory in the second layer; collects their sizes."""

    def __init__(self, model: LanguageModel, most: int) -> None:
        self.sizes: list[int] = []
        self._most = most
        layer = model.decoder_layers[1]
        self.handle = layer.register_forward_pre_hook(self._enter, with_kwargs=True)

    def _enter(self, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], kwargs: dict[str, Any]) -> None:
        count = (inputs[0] if inputs else kwargs["hidden_states"]).shape[1]
        self.sizes.append(count)
        if count > self._most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@each_family
def test_transformers_pass_in_steps_is_the_pass(family: Family, tight: Callable[[int, int], None]) -> None:
    model = build_model(family)
    whole, stepped = SlabCache(model, COUNT), SlabCache(model, COUNT)
    prompt = ids(COUNT)
    expected = model.forward_step(prompt, whole, 0, logits=True)
    tight(41, 8)
    actual = model.forward(prompt, stepped, 0, logits=True)
    assert_same_cache(stepped, whole, COUNT)
    assert_same_logits(actual, expected)
    # The control: without what the last step attends to, it gives other logits.
    alone = model.forward_step(prompt[-27:], SlabCache(model, 27), 0, logits=True)
    assert alone is not None and expected is not None
    assert float((alone - expected).abs().max()) > 1e-2 * float(expected.std())


@each_family
def test_a_chunk_and_recomputed_tokens_in_steps_are_those_of_one_pass(
    family: Family, tight: Callable[[int, int], None]
) -> None:
    model = build_model(family)
    prefix, first, second = prefill_prefix(model), ids(60, seed=5).tolist(), ids(50, seed=6).tolist()
    question = ids(20, seed=7).tolist()
    where = plan(prefix.num_tokens, [60, 50])
    tables = build_tables(model, where.num_slots + 20)

    def answer() -> tuple[torch.Tensor, SlabCache]:
        cache = SlabCache(model, where.num_slots + 20)
        model.forward(torch.tensor([*model.prompt.prefix_ids, *first, *second]), cache, 0, logits=False)
        for layer in cache.layers:  # what is recomputed has to be written anew
            layer.key_slab[:, :, prefix.num_tokens : prefix.num_tokens + 60] += 0.25
        slots = range(prefix.num_tokens + 7, where.num_slots, 2)
        selection = Selection.of(slots, where)
        logits = recompute(model, StitchedCache(cache, where), [first, second], question, selection, tables)
        return logits.clone(), cache

    expected_chunk, (expected, whole) = prefill_chunk(model, prefix, first), answer()
    tight(17, 8)
    chunk, (actual, stepped) = prefill_chunk(model, prefix, first), answer()
    torch.testing.assert_close(chunk.keys, expected_chunk.keys, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(chunk.values, expected_chunk.values, rtol=1e-4, atol=1e-4)
    assert_same_cache(stepped, whole, where.num_slots + 20)
    assert_same_logits(actual, expected)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_fused_pass_in_steps_is_the_pass(
    family: Family, tight: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(family)
    if not supports(model):
        pytest.skip("runs through transformers' pass")
    prompt, prefix = ids(COUNT), prefill_prefix(model)
    runner = ModelRunner(model, prefix, build_tables(model, COUNT), COUNT, fused=True)
    assert runner.fused is not None
    whole = SlabCache(model, COUNT)
    expected = model.forward_step(prompt, whole, 0, logits=True)
    tight(41, 8)
    monkeypatch.setattr(full_prefill, "_WINDOWED_STEP", 16)
    for prefill in full_prefill.implementations(model, runner.cache, runner.fused, prompt).values():
        for layer in runner.cache.layers:
            layer.key_slab.fill_(float("nan"))
            layer.value_slab.fill_(float("nan"))
        assert_same_logits(prefill(), expected)
        assert_same_cache(runner.cache, whole, COUNT)


def test_a_step_without_memory_is_repeated_with_half_of_its_tokens(tight: Callable[[int, int], None]) -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "qwen2"))
    whole, stepped = SlabCache(model, COUNT), SlabCache(model, COUNT)
    prompt = ids(COUNT)
    expected = model.forward_step(prompt, whole, 0, logits=True)
    tight(100, 8)
    memory = OutOfMemoryAbove(model, 30)
    actual = model.forward(prompt, stepped, 0, logits=True)
    assert memory.sizes == [100, 50, 25, 25, 25, 25, 25, 25]
    assert_same_cache(stepped, whole, COUNT)
    assert_same_logits(actual, expected)
    memory.sizes.clear()
    prefix = prefill_prefix(model)
    memory.handle.remove()
    expected_chunk = prefill_chunk(model, prefix, prompt.tolist())
    OutOfMemoryAbove(model, 30)
    chunk = prefill_chunk(model, prefix, prompt.tolist())
    torch.testing.assert_close(chunk.keys, expected_chunk.keys, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(chunk.values, expected_chunk.values, rtol=1e-4, atol=1e-4)


def test_where_the_smallest_step_finds_no_memory_the_message_names_a_remedy(
    tight: Callable[[int, int], None],
) -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "qwen2"))
    tight(100, 8)
    memory = OutOfMemoryAbove(model, 0)
    with pytest.raises(OutOfMemory, match="150 tokens, even 8 at a time") as refusal:
        model.forward(ids(COUNT), SlabCache(model, COUNT), 0, logits=True)
    assert "context_tokens" in refusal.value.remedy
    assert memory.sizes == [100, 50, 25, 13, 8]
    with pytest.raises(torch.OutOfMemoryError):  # nothing to divide: whoever called says what would help
        model.forward(ids(7), SlabCache(model, 7), 0, logits=True)


def test_a_question_waits_for_chunks_until_a_pass_has_gone_through_all_layers(
    tight: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "qwen3"))
    prefix = prefill_prefix(model)
    runner = ModelRunner(model, prefix, build_tables(model, COUNT), COUNT, fused=True)
    assert runner.fused is not None
    expected = runner.fused.run(ids(40)[None], 0)[0].clone()
    monkeypatch.setattr(steps, "SMALLEST", 8)
    real, asked = runner.fused.run, []

    class Short:
        """The fused pass, out of memory in layer 1 above 25 tokens."""

        def run(self, token_ids: torch.Tensor, start: int, *, before: Before | None = None) -> torch.Tensor:
            def noted(layer: int) -> None:
                if before is not None:
                    before(layer)
                if layer == 1 and token_ids.shape[1] > 25:
                    raise torch.OutOfMemoryError("CUDA out of memory")

            return real(token_ids, start, before=noted)

    run = FusedPass(Short(), runner.cache, asked.append)
    assert_same_logits(run.forward(ids(40).tolist(), 0), expected)
    assert asked == [0, 1, 0, 1, 2] and runner.cache.get_seq_length() == 40


def test_steps_are_planned_from_free_memory() -> None:
    enough = prefill_step(4 * GIB, QWEN_7B, 8192, 8192)
    assert enough == 8192
    taken = [prefill_step(int(gib * GIB / 16), QWEN_7B, 8192, 8192) for gib in range(4, 48, 2)]
    assert taken == sorted(taken) and taken[0] == 512 and 2048 in taken
    for gib, step in zip(range(4, 48, 2), taken, strict=True):
        needed = step * QWEN_7B.bytes_per_token(8192) + QWEN_7B.written_weights
        assert step == 512 or needed <= gib * GIB / 16, "what was planned has room"
        assert -(-8192 // step) * step < 8192 + step, "no empty step"
    eager = PassShape(2304, 9216, 8, 256, 2, keeps_scores=True, writes_weights=False)
    assert prefill_step(GIB, eager, 8192, 8192) < prefill_step(GIB, eager, 2048, 8192), "scores grow with the context"
    assert prefill_step(0, QWEN_7B, 300, 300) == 300


def test_every_family_has_a_shape() -> None:
    for family in FAMILIES:
        shape = steps.shape_of(build_model(family))
        assert shape.hidden > 0 and shape.gates > 0 and shape.bytes_per_token(100) > 0, family.name


_WITHOUT_MEMORY = """
import logging, resource, sys
from pathlib import Path
import torch
from desk_rag.bench.models import shapes
from desk_rag.kv.cache import SlabCache
from desk_rag.model.memory.device import release_unused

sizes = []
handler = logging.Handler()
handler.emit = lambda record: sizes.append(record.args[1])
logging.getLogger("desk_rag.model.memory.steps").addHandler(handler)
logging.getLogger("desk_rag.model.memory.steps").setLevel(logging.INFO)
model = shapes.build("small", torch.device("cpu"))
ids = shapes.random_ids(model, 1, 3000)[0]
cache = SlabCache(model, 3000)
expected = model.forward_step(ids, SlabCache(model, 3000), 0, logits=True)
release_unused(model.device)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
for mebibytes in range(120, 0, -10):
    resource.setrlimit(resource.RLIMIT_AS, (taken + (mebibytes << 20), -1))
    cache.set_length(0)
    actual = model.forward(ids, cache, 0, logits=True)
    assert float((actual - expected).abs().max() / expected.std()) < 1e-4
    if sizes:
        break
print(sizes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space as Linux does")
def test_a_process_that_gets_no_more_memory_reads_a_prompt_in_smaller_steps() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_MEMORY], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = json.loads(done.stdout)
    assert sizes and sizes[0] == 1500, "memory ran out, and half of the tokens were tried next"
