"""Packing query heads is stock attention in another order: the same numbers over odd shapes and masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from desk_rag.kv.cache import SlabCache
from desk_rag.model import sdpa
from desk_rag.model.sdpa import Scratch, one_query, packed_sdpa
from tests.models import build_model, each_family


class Layer(torch.nn.Module):
    """Stand-in for the `module` that transformers passes: how often keys are shared; the layer is causal."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = groups
        self.is_causal = True
        self.training = False


def inputs(kv_heads: int, groups: int, queries: int, keys: int, dim: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(1, kv_heads * groups, queries, dim), (1, kv_heads, keys, dim), (1, kv_heads, keys, dim)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def by_hand(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """softmax(q k^T) v, head by head, in float64."""
    groups = query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        q, k, v = query[0, head].double(), key[0, head // groups].double(), value[0, head // groups].double()
        scores = (q @ k.T * scale).masked_fill(~visible, float("-inf"))
        heads.append(scores.softmax(-1) @ v)
    return torch.stack(heads, 1)[None]


def causal(queries: int, keys: int) -> torch.Tensor:
    """The last `queries` of `keys` tokens look back."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def additive(visible: torch.Tensor) -> torch.Tensor:
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]


@settings(max_examples=60, deadline=None)
@given(
    kv_heads=st.sampled_from([1, 2, 3]),
    groups=st.sampled_from([1, 2, 4, 7]),
    queries=st.sampled_from([1, 2, 5, 64, 65]),
    past=st.sampled_from([0, 1, 31, 100]),
    dim=st.sampled_from([4, 8, 16]),
    boolean=st.booleans(),
    seed=st.integers(0, 99),
)
def test_masked_attention_is_that_of_the_formula(
    kv_heads: int, groups: int, queries: int, past: int, dim: int, boolean: bool, seed: int
) -> None:
    query, key, value = inputs(kv_heads, groups, queries, queries + past, dim, seed)
    visible = causal(queries, queries + past)
    if past:
        visible[:, past // 2] = False
    mask = visible[None, None] if boolean else additive(visible)
    got, _ = packed_sdpa(Layer(groups), query, key, value, mask, scaling=0.3)
    expected = by_hand(query, key, value, visible, 0.3)
    assert got.shape == (1, queries, kv_heads * groups, dim)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("queries", [1, 2, 63, 64, 65, 130])
def test_without_a_mask_whole_prompts_are_causal_and_single_tokens_see_all(groups: int, queries: int) -> None:
    """transformers passes no mask for a whole prompt without a past, and for one token over a cache."""
    keys = 33 if queries == 1 else queries
    query, key, value = inputs(2, groups, queries, keys, 16)
    got, _ = packed_sdpa(Layer(groups), query, key, value, None, scaling=0.25)
    torch.testing.assert_close(
        got.double(), by_hand(query, key, value, causal(queries, keys), 0.25), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("keys", [1, 2047, 2048, 5003])
def test_one_token_over_a_slab_is_that_of_the_formula(groups: int, keys: int) -> None:
    """From 2,048 keys on another order of reading takes over; slabs are longer than what is in use of them."""
    query, key, value = inputs(2, groups, 1, keys + 100, 16)
    got, _ = packed_sdpa(Layer(groups), query, key[:, :, :keys], value[:, :, :keys], None, scaling=0.4)
    expected = by_hand(query, key[:, :, :keys], value[:, :, :keys], torch.ones(1, keys, dtype=torch.bool), 0.4)
    assert got.shape == (1, 1, 2 * groups, 16)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 4, 7])
@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("keys", [31, 2500])
def test_kept_memory_is_written_anew_by_every_token(groups: int, dim: int, keys: int) -> None:
    scratch = Scratch.of(2 * groups * 2600)
    for memory in (scratch.scores, scratch.weights):
        memory.fill_(float("nan"))
    query, key, value = inputs(2, groups, 1, 2600, dim)
    rows = query.view(2, groups, dim) * dim**-0.5
    for length in (keys, keys + 1):
        got = one_query(rows, key[0, :, :length], value[0, :, :length], scratch)
        seen = torch.ones(1, length, dtype=torch.bool)
        expected = by_hand(query, key[:, :, :length], value[:, :, :length], seen, dim**-0.5)
        torch.testing.assert_close(got.view_as(expected).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("queries", "keys"), [(1, 40), (7, 40), (64, 90), (65, 90), (40, 40)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_it_equals_stock_sdpa(queries: int, keys: int, groups: int) -> None:
    query, key, value = inputs(2, groups, queries, keys, 8)
    mask = additive(causal(queries, keys))
    got, _ = packed_sdpa(Layer(groups), query, key, value, mask, scaling=0.5)
    stock, _ = sdpa_attention_forward(Layer(groups), query, key, value, mask, scaling=0.5)
    torch.testing.assert_close(got, stock, rtol=1e-4, atol=1e-5)
    blind, _ = packed_sdpa(Layer(groups), query, key, value, torch.zeros_like(mask), scaling=0.5)
    assert queries == 1 or (blind - stock).abs().max() > 1e-2  # the mask above is not idle


def test_a_mask_per_head_is_not_packed_away() -> None:
    query, key, value = inputs(2, 2, 3, 10, 8)
    mask = torch.zeros(1, 4, 3, 10)
    mask[:, 1, :, 4:] = torch.finfo(torch.float32).min
    got, _ = packed_sdpa(Layer(2), query, key, value, mask, scaling=1.0)
    stock, _ = sdpa_attention_forward(Layer(2), query, key, value, mask, scaling=1.0)
    torch.testing.assert_close(got, stock, rtol=1e-4, atol=1e-5)


def test_a_mask_longer_than_the_keys_is_cut() -> None:
    query, key, value = inputs(2, 2, 3, 10, 8)
    visible = causal(3, 10)
    longer = torch.cat([additive(visible), torch.zeros(1, 1, 3, 6)], -1)
    got, _ = packed_sdpa(Layer(2), query, key, value, longer, scaling=1.0)
    torch.testing.assert_close(got.double(), by_hand(query, key, value, visible, 1.0), rtol=1e-4, atol=1e-5)


@each_family
def test_models_compute_with_it_what_they_compute_with_stock_attention(family) -> None:  # type: ignore[no-untyped-def]
    """Whole prompt, several tokens over a cache (causality!), one token over a cache."""
    model = build_model(family)
    if model.spec.support.needs_eager:
        pytest.skip("runs on eager attention, as transformers demands")
    assert model.module.config._attn_implementation == sdpa.NAME
    ids = torch.arange(20, 70)
    results = []
    for implementation in (sdpa.NAME, "sdpa"):
        model.module.set_attn_implementation(implementation)
        cache = SlabCache(model, 50)
        parts = ((0, 30), (30, 49), (49, 50))
        results.append(torch.cat([model.forward_all(ids[a:b], cache, a) for a, b in parts]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)


def test_registering_twice_is_harmless() -> None:
    sdpa.register()
    sdpa.register()
