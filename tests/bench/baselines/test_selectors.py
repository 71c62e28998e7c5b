"""Selectors for comparison choose chunk tokens within their ratio and leave the stitched cache alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from desk_rag.bench.baselines import selectors
from desk_rag.bench.baselines.selectors import select
from desk_rag.errors import ConfigError
from desk_rag.kv.recompute.run import NOTHING, Selection
from tests.kv.recompute.test_selectors import case_of
from tests.kv.stitched_cases import Case


@pytest.mark.parametrize("name", ["first-k", "delta-kv", "query"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_within_the_ratio_and_without_a_trace(name: str, family: str) -> None:
    case = case_of(family)
    end = case.stitched.plan.num_slots
    before = [layer.key_slab[:, :, :end].clone() for layer in case.stitched.cache.layers]
    selection = select(name, 0.3, case.context)
    after = [layer.key_slab[:, :, :end] for layer in case.stitched.cache.layers]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert set(selection.slots) <= set(case.chunk_slots)
    assert 0.15 < selection.ratio <= 0.31
    assert select(name, 0.3, case.context) == selection
    assert select(name, 0.0, case.context) == NOTHING
    assert select(name, 1.0, case.context) == Selection.everything(case.stitched.plan)


def test_first_k_takes_the_same_number_from_every_chunk() -> None:
    case = case_of()
    places = case.stitched.plan.placements
    chosen = select("first-k", 0.2, case.context)
    each = len(chosen.slots) // len(places)
    assert each > 1
    assert chosen.slots == tuple(place.slot + at for place in places for at in range(each))


def test_delta_kv_knows_what_came_out_differently() -> None:
    """Its deviation is that of a full prefill, and nothing deviates in a chunk that stands right behind the prefix."""
    case = case_of("qwen2")
    scores = selectors.deviation(case.model, case.stitched, case.chunk_ids)
    first = case.stitched.plan.placements[0].num_tokens
    assert scores[:first].max() < 1e-6
    assert scores[first:].max() > 1e-2
    fresh = full_prefill_slabs(case, layer=1)
    expected = torch.zeros_like(scores)
    slab = case.stitched.cache.layers[1]
    for exact, stored in zip(fresh, (slab.key_slab, slab.value_slab), strict=True):
        here = slice(case.chunk_slots.start, case.chunk_slots.stop)
        gap = (exact[0, :, here] - stored[0, :, here]).square().sum((0, 2))
        expected += gap / exact[0, :, here].square().sum((0, 2)).mean()
    assert torch.allclose(scores, expected, rtol=1e-3, atol=1e-5)
    chosen = select("delta-kv", 0.25, case.context)
    kept = [slot - case.chunk_slots.start for slot in chosen.slots]
    assert expected[kept].min() >= expected.sort(descending=True).values[len(kept)] - 1e-5


def full_prefill_slabs(case: Case, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    from desk_rag.kv.cache import SlabCache

    cache = SlabCache(case.model, len(case.all_ids))
    case.model.forward(torch.tensor(case.all_ids), cache, 0, logits=False)
    return cache.layers[layer].key_slab, cache.layers[layer].value_slab


def test_deviation_ends_with_its_layer() -> None:
    case = case_of()
    layers_run: list[int] = []

    def note(index: int) -> Callable[..., None]:
        return lambda *_: layers_run.append(index)

    handles = [layer.register_forward_pre_hook(note(index)) for index, layer in enumerate(case.model.decoder_layers)]
    selectors.deviation(case.model, case.stitched, case.chunk_ids)
    assert layers_run == [0, 1]
    for handle in handles:
        handle.remove()


def test_the_product_s_selectors_are_known_too_and_others_refused() -> None:
    case = case_of()
    assert select("edge-query", 0.3, case.context).ratio > 0.15
    with pytest.raises(ConfigError, match="'luck'"):
        select("luck", 0.3, case.context)
