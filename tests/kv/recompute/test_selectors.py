"""Every selector chooses chunk tokens within its ratio and leaves the stitched cache alone; each for its own reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from desk_rag.errors import ConfigError
from desk_rag.kv.recompute import attention_scores
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import SelectorName
from desk_rag.kv.recompute.run import NOTHING, Selection
from desk_rag.kv.recompute.selectors import observed_layers, select
from tests.kv.stitched_cases import Case, stitched_case
from tests.models import FAMILIES, build_model


def case_of(name: str = "qwen3") -> Case:
    return stitched_case(build_model(next(family for family in FAMILIES if family.name == name)))


@pytest.fixture(scope="module")
def auxiliary() -> AuxiliaryModel:
    return AuxiliaryModel(build_model(next(family for family in FAMILIES if family.name == "llama-mqa"), seed=3))


@pytest.mark.parametrize("name", list(SelectorName))
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gemma2"])
def test_within_the_ratio_and_without_a_trace(name: SelectorName, family: str, auxiliary: AuxiliaryModel) -> None:
    case = case_of(family)
    context = replace(case.context, auxiliary=auxiliary)
    end = case.stitched.plan.num_slots
    before = [layer.key_slab[:, :, :end].clone() for layer in case.stitched.cache.layers]
    chosen = select(name, 0.3, context)
    after = [layer.key_slab[:, :, :end] for layer in case.stitched.cache.layers]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert set(chosen.slots) <= set(case.chunk_slots)
    assert chosen.ratio <= 0.31
    if name is not SelectorName.AUX_STRICT:
        assert chosen.ratio > 0.15
    assert select(name, 0.3, context) == chosen
    assert select(name, 0.0, context) == NOTHING
    assert select(name, 1.0, context) == Selection.everything(case.stitched.plan)


@pytest.mark.parametrize("family", ["llama-yarn", "qwen3", "gemma2", "mistral-sliding"])
def test_the_question_is_watched_exactly(family: str) -> None:
    """The weights are those that the model's own eager attention reports over the same cache."""
    case = case_of(family)
    layers = range(case.model.spec.num_layers)
    seen = attention_scores.question_attention(case.model, case.stitched, case.question_ids, layers)
    model, start = case.model, case.stitched.plan.next_position
    case.stitched.cache.set_length(start)
    before = model.module.config._attn_implementation
    model.module.set_attn_implementation("eager")
    positions = torch.arange(start, start + len(case.question_ids))[None]
    with torch.inference_mode():
        outputs = model.module(
            torch.tensor(case.question_ids)[None], past_key_values=case.stitched.cache, position_ids=positions,
            output_attentions=True, use_cache=True,
        ).attentions  # fmt: skip
    model.module.set_attn_implementation(before)
    assert seen.shape == (len(layers), model.spec.num_heads, len(case.question_ids), len(case.chunk_slots))
    for layer in layers:
        expected = outputs[layer][0, :, :, case.chunk_slots.start : case.chunk_slots.stop]
        assert torch.allclose(seen[layer], expected, atol=1e-5)


def test_watching_ends_with_the_last_layer_watched() -> None:
    """Layers above need not even be loaded: their own hooks are not asked."""
    case = case_of()
    calls: list[int] = []

    def note(index: int) -> Callable[..., None]:
        return lambda *_: calls.append(index)

    handles = [layer.register_forward_pre_hook(note(index)) for index, layer in enumerate(case.model.decoder_layers)]
    attention_scores.question_attention(case.model, case.stitched, case.question_ids, [0, 1])
    assert calls == [0, 1]
    for handle in handles:
        handle.remove()


def test_the_default_takes_beginnings_first_and_looks_hardest_next() -> None:
    case = case_of()
    places = case.stitched.plan.placements
    chosen = set(select(SelectorName.EDGE_QUERY, 0.4, case.context).slots)
    edges = {place.slot + at for place in places for at in range(4)}
    assert edges < chosen
    seen = attention_scores.question_attention(
        case.model, case.stitched, case.question_ids, observed_layers(case.model)
    ).amax(2).mean((0, 1))  # fmt: skip
    others = [slot for slot in case.chunk_slots if slot not in edges]

    def ranked_by(slot: int) -> float:
        return -float(seen[slot - case.chunk_slots.start])

    ranked = sorted(others, key=ranked_by)
    assert chosen - edges == set(ranked[: len(chosen) - len(edges)])
    # Of a small ratio beginnings get no more than three quarters, the same number in every chunk.
    few = set(select(SelectorName.EDGE_QUERY, 0.1, case.context).slots)
    each = max(each for each in range(5) if each * len(places) <= len(few) * 3 // 4)
    first = {place.slot + at for place in places for at in range(each)}
    assert 0 < each < 4 and first <= few
    rest = sorted((slot for slot in case.chunk_slots if slot not in first), key=ranked_by)
    assert few - first == set(rest[: len(few) - len(first)])


def test_sliding_layers_are_not_watched_where_others_can_be() -> None:
    assert observed_layers(case_of("gemma3").model) == [1]
    assert observed_layers(case_of("mistral-sliding").model) == [0, 1]


def test_the_auxiliary_selector_says_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="auxiliary"):
        select(SelectorName.AUX, 0.2, case_of().context)
