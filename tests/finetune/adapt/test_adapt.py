"""A model never taught to read chunks apart: a shift brings it nearer to full prefill, or is dropped."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest
import torch

from desk_rag.answering.serving_model import prepare_model
from desk_rag.errors import Cancelled, DeskRagError
from desk_rag.finetune.adapt.learning import Learner
from desk_rag.finetune.adapt.lessons import Lesson, Shifted
from desk_rag.finetune.adapt.run import Amounts, Gap, Progress, adapt, verdict
from desk_rag.finetune.data import QA, Sample
from desk_rag.finetune.rows import Asked, Context
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.shift import PlaceShift
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, Family, build_model

KNOTS = (32, 128)
PLACES = ("shed", "mill", "barn", "loft", "well", "pond", "gate", "yard", "attic", "cellar", "garden", "bridge")
SAMPLES = tuple(
    Sample((text := f"The {place} was painted {number} times in {1900 + number}.",),
           (QA(f"When was the {place} painted?", str(1900 + number), (text,)),))
    for number, place in enumerate((*PLACES, *(f"{place} door" for place in PLACES)))
)  # fmt: skip


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> ServingModel:
    """A random model, whose chunk KV depends on what stands before."""
    model_class, config = next(family for family in FAMILIES if family.name == "llama").build()
    config.max_position_embeddings = 2048  # the built-in questions of the judge stand behind 1,300 tokens
    model = build_model(Family("llama-long", lambda: (model_class, config)))
    return prepare_model(model, tmp_path_factory.mktemp("data"))


def context(model: LanguageModel) -> Context:
    chunks = tuple(tuple(model.prompt.chunk_ids(sample.chunks[0])) for sample in SAMPLES[:3])
    asked = Asked(tuple(model.prompt.question_ids("When?")), tuple(model.prompt.answer_ids("1901")))
    return Context(tuple(model.prompt.prefix_ids), chunks, (asked,), True)


def test_full_prefills_own_keys_and_values_have_no_divergence(serving: ServingModel) -> None:
    lesson = Lesson(serving, context(serving.model), KNOTS)
    with torch.no_grad():
        apart, count, _ = lesson.divergence(0, None)
        for mine, full in zip(lesson.stitched.layers, lesson.full.layers, strict=True):
            mine.key_slab.copy_(full.key_slab[:, :, : mine.length])
            mine.value_slab.copy_(full.value_slab[:, :, : mine.length])
        whole, _, same = lesson.divergence(0, None)
    assert float(apart) > 1e-3 and count == same == len(serving.model.prompt.answer_ids("1901"))
    assert abs(float(whole)) < 1e-5 * float(apart) + 1e-6


def test_what_is_learned_is_what_placing_adds(serving: ServingModel) -> None:
    """The lesson's own way to shift, which carries gradients, against `stitch`."""
    from desk_rag.kv.cache import SlabCache
    from desk_rag.kv.prefill import prefill_chunk
    from desk_rag.kv.quant import quantize
    from desk_rag.kv.stitch import stitch

    model, lesson = serving.model, Lesson(serving, context(serving.model), KNOTS)
    spec = model.spec
    shape = (len(KNOTS), spec.num_layers, spec.num_kv_heads, spec.head_dim)
    keys, values = torch.randn(shape), torch.randn(shape)
    cache = SlabCache(model, lesson.plan.num_slots)
    chunks = [quantize(prefill_chunk(model, serving.prefix, ids), serving.scheme) for ids in context(model).chunks]
    stitch(model, lesson.plan, serving.prefix, chunks, lesson.tables, cache, PlaceShift(KNOTS, keys, values))
    for index, layer in enumerate(cache.layers):
        for mine, placed in zip(lesson.layer(index, Shifted(keys, values)), (layer.keys, layer.values), strict=True):
            torch.testing.assert_close(mine, placed, rtol=1e-4, atol=1e-4)


def test_the_estimate_finds_a_shift_that_is_there(serving: ServingModel) -> None:
    lesson = Lesson(serving, context(serving.model), KNOTS)
    truth = torch.randn(serving.model.spec.num_layers, serving.model.spec.num_kv_heads, serving.model.spec.head_dim)
    for index, (full, own) in enumerate(zip(lesson.full.layers, lesson.stitched.layers, strict=True)):
        full.value_slab[:, :, : own.length] = own.values
        for share, place in zip(lesson.weights.sum(1), lesson.plan.placements, strict=True):
            slots = slice(place.slot, place.slot + place.num_tokens)
            full.value_slab[0, :, slots] += float(share) * truth[index][:, None]
    learner = Learner(serving, KNOTS, 1)
    learner.collect(lesson)
    learner.estimate()
    torch.testing.assert_close(learner.shift.values[0], truth, rtol=0.15, atol=0.05)
    assert not learner.shift.keys.any()


def test_a_run_brings_answers_nearer_and_leaves_the_weights_alone(serving: ServingModel) -> None:
    def weights() -> str:
        digest = hashlib.blake2b()
        for tensor in serving.model.module.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    before, seen = weights(), list[Progress]()
    outcome = adapt(serving, SAMPLES, top_k=3, amounts=Amounts(6, 24, 8), on_progress=seen.append)
    assert outcome.after is not None
    assert outcome.after.nats < outcome.before.nats and outcome.shift is not None
    assert weights() == before
    assert [event.done for event in seen if event.stage == "learning"] == list(range(1, 25))
    assert outcome.contexts == 6 + 24 + 2 * 8 and outcome.tokens > 1000
    assert outcome.reason.startswith("Kept") and outcome.refined
    assert "per_question" not in outcome.as_json()["before"]


def test_weights_that_give_no_gradient_get_the_estimate_alone(
    serving: ServingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def packed(*_: object) -> float:
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")

    monkeypatch.setattr(Learner, "step", packed)
    outcome = adapt(serving, SAMPLES, top_k=3, amounts=Amounts(6, 24, 8))
    assert not outcome.refined and outcome.after is not None and outcome.contexts == 6 + 1 + 2 * 8


def test_an_answer_that_is_waited_for_comes_first(serving: ServingModel) -> None:
    calls = 0

    def before_context() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        adapt(serving, SAMPLES, top_k=3, amounts=Amounts(6, 24, 8), before_context=before_context)
    assert calls == 4


def test_too_few_passages_are_said(serving: ServingModel) -> None:
    with pytest.raises(DeskRagError, match="too few indexed passages"):
        adapt(serving, SAMPLES[:2], top_k=3)


def test_only_what_is_better_beyond_chance_is_kept() -> None:
    before = Gap(0.5, 0.9, 3, (0.4, 0.5, 0.6))
    better = Gap(0.1, 0.95, 3, (0.1, 0.1, 0.1))
    assert verdict(before, better) == (True, "Kept: answers come nearer to full prefill's.")
    for worse, reason in (
        ({"per_question": (0.0, 0.9, 0.4)}, "beyond chance"),
        ({"same": 0.89}, "fewer tokens"),
        ({"canaries": 2}, "built-in question"),
    ):
        kept, words = verdict(before, dataclasses.replace(better, **worse))
        assert not kept and reason in words


@pytest.mark.slow
def test_a_model_that_loses_nothing_is_left_alone(reader: LanguageModel, tmp_path: Path) -> None:
    served = prepare_model(reader, tmp_path)
    outcome = adapt(served, SAMPLES, top_k=3, amounts=Amounts(2, 2, 8))
    assert outcome.shift is None and outcome.after is None and "nothing worth a remedy" in outcome.reason
