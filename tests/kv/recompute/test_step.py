"""Deciding, choosing and recomputing in one step, as an answer takes it."""

from __future__ import annotations

import pytest
import torch

from desk_rag.errors import ConfigError
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import RecomputeChoice, SelectorName
from desk_rag.kv.recompute.run import NOTHING, recompute
from desk_rag.kv.recompute.selectors import select
from desk_rag.kv.recompute.step import Recomputer, RecomputeRequest
from tests.kv.stitched_cases import QUESTION, Case, stitched_case
from tests.models import FAMILIES, build_model


def model_of(name: str = "qwen3", seed: int = 7):  # type: ignore[no-untyped-def]
    return build_model(next(family for family in FAMILIES if family.name == name), seed=seed)


def recomputer(case: Case, choice: RecomputeChoice, auxiliary: AuxiliaryModel | None = None) -> Recomputer:
    return Recomputer(case.model, case.stitched.cache, case.tables, choice, auxiliary)


def ask(case: Case, question: str = QUESTION) -> RecomputeRequest:
    return RecomputeRequest(case.stitched.plan, case.texts, case.chunk_ids, question, case.question_ids)


@pytest.mark.parametrize("selector", [SelectorName.EDGE_QUERY, SelectorName.AUX])
def test_the_step_is_selecting_and_recomputing(selector: SelectorName) -> None:
    model = model_of()
    auxiliary = AuxiliaryModel(model_of("llama", seed=3))
    case, other = stitched_case(model), stitched_case(model)
    step = recomputer(case, RecomputeChoice(0.3, selector), auxiliary)
    got = step.begin(ask(case)).prefill()
    context = other.context
    expected = select(selector, 0.3, type(context)(
        model, other.stitched, other.chunk_ids, other.question_ids, other.texts, QUESTION, auxiliary
    ))  # fmt: skip
    assert got.selection == expected and got.selection.ratio > 0.1
    logits = recompute(model, other.stitched, other.chunk_ids, other.question_ids, expected, other.tables)
    assert torch.equal(got.logits, logits)
    assert got.choosing_seconds >= 0
    step.close()


def test_a_model_that_is_its_own_auxiliary_chooses_as_a_second_copy_of_it_does() -> None:
    model = model_of()
    results = []
    for auxiliary in (AuxiliaryModel(model), AuxiliaryModel(model_of())):
        case = stitched_case(model)
        step = recomputer(case, RecomputeChoice(0.3, SelectorName.AUX), auxiliary)
        results.append(step.begin(ask(case)).prefill())
        step.close()
    shared, apart = results
    assert shared.selection == apart.selection and shared.selection.ratio > 0.1
    assert torch.equal(shared.logits, apart.logits)


def test_the_auxiliary_model_needs_no_chunk_to_be_there_yet() -> None:
    """The auxiliary is asked before any chunk is laid, and the answer waits for it."""
    model = model_of()
    case, ready = stitched_case(model), stitched_case(model)
    for layer in case.stitched.cache.layers:
        layer.key_slab.fill_(float("nan"))
        layer.value_slab.fill_(float("nan"))
    step = recomputer(case, RecomputeChoice(0.3, SelectorName.AUX), AuxiliaryModel(model_of("llama", seed=3)))
    begun = step.begin(ask(case))
    for layer, source in zip(case.stitched.cache.layers, ready.stitched.cache.layers, strict=True):
        layer.key_slab.copy_(source.key_slab)
        layer.value_slab.copy_(source.value_slab)
    assert torch.isfinite(begun.prefill().logits).all()
    step.close()


def test_a_choice_for_one_answer_overrides_the_engine_s() -> None:
    case = stitched_case(model_of())
    step = recomputer(case, RecomputeChoice(0.5))
    assert step.begin(ask(case), RecomputeChoice(0.0)).prefill().selection == NOTHING
    assert step.begin(ask(case), RecomputeChoice(1.0)).prefill().selection.ratio == 1.0
    with pytest.raises(ConfigError, match="auxiliary"):
        step.begin(ask(case), RecomputeChoice(0.2, SelectorName.AUX)).prefill()


def test_the_model_is_worked_out_once_and_only_where_something_is_recomputed() -> None:
    case = stitched_case(model_of())
    step = recomputer(case, RecomputeChoice(0.0))
    step.rehearse()
    step.begin(ask(case)).prefill()
    assert "decoder" not in vars(step)
    step.begin(ask(case), RecomputeChoice(0.2)).prefill()
    first = step.decoder
    assert first is not None and first.model is case.model
    step.begin(ask(case), RecomputeChoice(0.3)).prefill()
    assert step.decoder is first


def test_rehearsing_loses_the_cache_and_nothing_else() -> None:
    model = model_of()
    case = stitched_case(model)
    step = recomputer(case, RecomputeChoice(0.2))
    step.rehearse()
    again, fresh = stitched_case(model), stitched_case(model)
    for layer, source in zip(case.stitched.cache.layers, again.stitched.cache.layers, strict=True):
        layer.key_slab.copy_(source.key_slab)
        layer.value_slab.copy_(source.value_slab)
    got = step.begin(ask(case)).prefill()
    expected = recomputer(fresh, RecomputeChoice(0.2)).begin(ask(fresh)).prefill()
    assert torch.equal(got.logits, expected.logits)
