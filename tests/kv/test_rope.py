"""Rotation equals transformers' own, for every scaling we accept; positions compose; rotate_into is rotate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rope
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as phi3_rope

from desk_rag.errors import UnsupportedModel
from desk_rag.kv.rope import build_tables, rotate, rotate_into
from tests.models import FAMILIES, build_model

BY_NAME = {family.name: family for family in FAMILIES}
POSITIONS = 200


@pytest.mark.parametrize(
    "name", ["llama", "llama-linear", "llama-llama3", "llama-yarn", "qwen3", "phi3-partial", "phi3-longrope"]
)
def test_rotation_equals_that_of_transformers(name: str) -> None:
    model = build_model(BY_NAME[name])
    keys = torch.randn(1, 2, POSITIONS, model.spec.head_dim)
    with torch.inference_mode():
        cos, sin = model.module.model.rotary_emb(keys, torch.arange(POSITIONS)[None])
        apply = phi3_rope if name.startswith("phi3") else llama_rope
        _, expected = apply(keys, keys, cos, sin)
    tables = build_tables(model, POSITIONS)
    got = rotate(keys[0], tables.cos[0], tables.sin[0])
    torch.testing.assert_close(got, expected[0], rtol=1e-6, atol=1e-6)
    wrong_sign = rotate(keys[0], tables.cos[0], -tables.sin[0])
    assert (wrong_sign - expected[0]).abs().max() > 0.1


def test_partial_rotation_leaves_the_other_dimensions_alone() -> None:
    model = build_model(BY_NAME["phi3-partial"])
    tables = build_tables(model, POSITIONS)
    half = tables.cos[0].shape[1]
    assert 2 * half < model.spec.head_dim
    keys = torch.randn(2, POSITIONS, model.spec.head_dim)
    got = rotate(keys, tables.cos[0], tables.sin[0])
    assert got[..., 2 * half :].equal(keys[..., 2 * half :])
    assert not got[..., : 2 * half].equal(keys[..., : 2 * half])


def test_yarn_carries_its_attention_scaling() -> None:
    tables = build_tables(build_model(BY_NAME["llama-yarn"]), 10)
    stretch = tables.cos[0] ** 2 + tables.sin[0] ** 2
    assert (stretch > 1.01).all()


def test_local_and_global_layers_have_tables_of_their_own() -> None:
    model = build_model(BY_NAME["gemma3"])
    tables = build_tables(model, 50)
    assert len(tables.cos) == 2
    assert tables.table_of_layer == (1, 0, 1)  # full_attention sorts before sliding_attention
    assert not tables.cos[0].equal(tables.cos[1])
    for kind, table in (("full_attention", 0), ("sliding_attention", 1)):
        with torch.inference_mode():
            cos, _ = model.module.model.rotary_emb(torch.zeros(1), torch.arange(50)[None], kind)
        assert tables.cos[table].equal(cos[0, :, : cos.shape[-1] // 2])


def test_tables_end_where_the_model_does() -> None:
    model = build_model(BY_NAME["llama"])
    assert build_tables(model, model.spec.max_context).num_positions == 512
    with pytest.raises(UnsupportedModel, match="513"):
        build_tables(model, model.spec.max_context + 1)


def _angles(dim: int) -> torch.Tensor:
    frequency = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.arange(400, dtype=torch.float64)[:, None] * frequency


@settings(max_examples=40, deadline=None)
@given(first=st.integers(0, 150), second=st.integers(0, 150), tokens=st.integers(1, 20), seed=st.integers(0, 99))
def test_positions_compose_and_rotation_keeps_lengths(first: int, second: int, tokens: int, seed: int) -> None:
    """Moving by a and then by b is moving by a + b; moving back by the same undoes it."""
    keys = torch.randn(2, tokens, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    angles = _angles(8)

    def by(amount: int, sign: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        turn = angles[amount].expand(tokens, -1)
        return turn.cos(), sign * turn.sin()

    twice = rotate(rotate(keys, *by(first)), *by(second))
    torch.testing.assert_close(twice, rotate(keys, *by(first + second)), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rotate(rotate(keys, *by(first)), *by(first, -1)), keys, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rotate(keys, *by(first)).norm(dim=-1), keys.norm(dim=-1), rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(query=st.integers(0, 100), key=st.integers(0, 100), shift=st.integers(0, 100), seed=st.integers(0, 99))
def test_scores_depend_on_distance_alone(query: int, key: int, shift: int, seed: int) -> None:
    """Why chunk KV may be moved at all."""
    q, k = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    angles = _angles(8)

    def at(vector: torch.Tensor, position: int) -> torch.Tensor:
        return rotate(vector, angles[position].cos()[None], angles[position].sin()[None])

    here = (at(q, query) * at(k, key)).sum()
    moved = (at(q, query + shift) * at(k, key + shift)).sum()
    torch.testing.assert_close(here, moved, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama-yarn", "phi3-partial"])
@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_rotate_into_is_rotate_with_one_rounding(dtype: torch.dtype, name: str, tokens: int) -> None:
    model = build_model(BY_NAME[name])
    tables = build_tables(model, 100)
    cos, sin = tables.cos[0][30 : 30 + tokens], tables.sin[0][30 : 30 + tokens]
    keys = torch.randn(2, tokens, model.spec.head_dim) * 20
    slab = torch.zeros(2, 90, model.spec.head_dim, dtype=dtype)
    rotate_into(keys, cos, sin, slab[:, 5 : 5 + tokens])
    # addcmul may fuse the product with the sum, which moves the last bit of fp32 and hence, rarely, a rounding.
    expected = rotate(keys, cos, sin)
    last_place = torch.finfo(dtype).eps * expected.abs().clamp_min(1)
    assert ((slab[:, 5 : 5 + tokens].float() - expected).abs() <= last_place + 1e-5).all()
    assert slab[:, :5].count_nonzero() == 0
    assert slab[:, 5 + tokens :].count_nonzero() == 0
