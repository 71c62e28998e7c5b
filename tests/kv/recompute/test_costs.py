"""Three numbers of a machine, from passes over a cache that is given up for it."""

from __future__ import annotations

import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.recompute import costs as recompute_costs
from tests.models import FAMILIES, build_model


def test_costs_predict_what_was_measured() -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "qwen3"))
    cache = SlabCache(model, 400)
    for layer in cache.layers:
        layer.key_slab.fill_(float("nan"))
    costs = recompute_costs.measure(model, cache)
    assert min(costs.fixed, costs.per_row, costs.per_pair) >= 0
    assert costs.seconds(200, 400) > 0
    assert cache.layers[0].length == 0
    assert torch.isfinite(cache.layers[0].key_slab).all()


def test_a_pass_may_be_as_long_as_its_cache() -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "gemma3"))
    cache = SlabCache(model, 32)
    assert recompute_costs.timed(model, cache, 32, 32) > 0
    assert recompute_costs.timed(model, cache, 1, 32) > 0
    assert min(vars_of(recompute_costs.measure(model, cache))) >= 0


def vars_of(costs: recompute_costs.PassCosts) -> tuple[float, ...]:
    return costs.fixed, costs.per_row, costs.per_pair
