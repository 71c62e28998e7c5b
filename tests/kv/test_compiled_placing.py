"""Placing a chunk by the compiled kernels writes what torch writes, and nothing beside it."""

from __future__ import annotations

import pytest
import torch

from desk_rag.kv import compiled_placing
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import Placement
from desk_rag.kv.quant import LayerScheme, QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import place_layer
from desk_rag.kv.types import ChunkKV
from desk_rag.model.embedded import kernels
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, Family, build_model

needs_kernels = pytest.mark.skipif(kernels.library() is None, reason="no kernels for this CPU, or no C compiler")
SLOTS = 400


def shaped(heads: int, dim: int) -> LanguageModel:
    model_class, config = next(one for one in FAMILIES if one.name == "qwen3").build()
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = heads, heads, dim
    config.max_position_embeddings = 1000
    return build_model(Family("shaped", lambda: (model_class, config)))


@needs_kernels
@pytest.mark.parametrize("group", [None, 16, 64])
@pytest.mark.parametrize(("heads", "dim", "tokens"), [(2, 64, 230), (3, 32, 1), (1, 128, 65)])
def test_slots_are_those_of_torch(
    heads: int, dim: int, tokens: int, group: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(tokens)
    model = shaped(heads, dim)
    layers = model.spec.num_layers
    chunk = ChunkKV(*(torch.randn(layers, heads, tokens, dim) * torch.rand(dim) * 9 + 2 for _ in range(2)))
    coded = quantize(chunk, QuantScheme.uniform(layers, LayerScheme(group=group)))
    tables, placement = build_tables(model, 900), Placement(77, 411, tokens)
    slabs = []
    for compiled in (True, False):
        cache = SlabCache(model, SLOTS)
        for layer in cache.layers:
            layer.key_slab.fill_(7.0)
            layer.value_slab.fill_(8.0)
        if compiled:
            assert compiled_placing.place(1, placement, coded.layers[1], tables, cache)
        else:
            monkeypatch.setattr(kernels, "library", lambda: None)
            place_layer(1, placement, coded, tables, cache)
        slabs.append([(layer.key_slab.clone(), layer.value_slab.clone()) for layer in cache.layers])
    torch.testing.assert_close(slabs[0], slabs[1], rtol=0, atol=0)
    assert (slabs[0][1][0][:, :, 77 : 77 + tokens] != 7.0).all()


@needs_kernels
def test_others_are_left_to_torch() -> None:
    model = shaped(2, 64)
    layers, tables = model.spec.num_layers, build_tables(model, 50)
    chunk = ChunkKV(*(torch.randn(layers, 2, 20, 64) for _ in range(2)))
    coded, raw = (quantize(chunk, QuantScheme.uniform(layers, LayerScheme(raw=raw))) for raw in (False, True))
    place = Placement(5, 5, 20)
    assert not compiled_placing.place(0, place, raw.layers[0], tables, SlabCache(model, 50))
    assert not compiled_placing.place(0, place, coded.layers[0], tables, SlabCache(model, 50, torch.bfloat16))
    narrow = shaped(2, 48)
    odd = quantize(ChunkKV(*(torch.randn(layers, 2, 20, 48) for _ in range(2))), QuantScheme.uniform(layers))
    assert not compiled_placing.place(0, place, odd.layers[0], build_tables(narrow, 50), SlabCache(narrow, 50))
    with pytest.raises(AssertionError, match="slab too small"):
        compiled_placing.place(0, place, coded.layers[0], tables, SlabCache(model, 24))
