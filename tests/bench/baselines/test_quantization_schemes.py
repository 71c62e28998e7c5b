"""The codings that are compared: right by themselves, and the product's row is the product's code."""

from __future__ import annotations

import pytest
import torch

from desk_rag.bench.baselines.quantization_schemes import CODINGS, Axis, Coding, Source, Zero
from desk_rag.bench.models.outlier_model import FIRST, LAST, MIDDLE, planted_qwen2
from desk_rag.kv.quant import QuantScheme, dequantize, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.types import ChunkKV
from desk_rag.model.language_model import LanguageModel


@pytest.fixture(scope="module")
def planted() -> LanguageModel:
    return planted_qwen2(num_layers=3)


@pytest.fixture(scope="module")
def source(planted: LanguageModel) -> Source:
    biases = torch.stack([layer.self_attn.k_proj.bias.detach().view(2, 64) for layer in planted.decoder_layers])
    return Source(build_tables(planted, 200), 11, biases)


def chunk(source: Source) -> ChunkKV:
    generator = torch.Generator().manual_seed(3)
    assert source.biases is not None
    keys = torch.randn(3, 2, 100, 64, generator=generator) + source.biases[:, :, None]
    return ChunkKV(keys, torch.randn(3, 2, 100, 64, generator=generator))


def off(coding: Coding, source: Source) -> float:
    exact = chunk(source)
    back = coding.apply(exact, source)
    return float((back.keys - exact.keys).norm() / exact.keys.norm())


def test_the_first_row_is_what_desk_rag_stores(source: Source) -> None:
    product = [coding for coding in CODINGS if coding.is_product]
    assert product == [CODINGS[0]]
    exact = chunk(source)
    stored = dequantize(quantize(exact, QuantScheme.uniform(3)))
    got = product[0].apply(exact, source)
    assert got.keys.equal(stored.keys)
    assert got.values.equal(stored.values)


def test_its_bytes_are_those_of_the_stored_tensors(source: Source) -> None:
    exact = chunk(source)
    assert Coding().bytes_per_token(100, 3, 2, 64) * 100 == quantize(exact, QuantScheme.uniform(3)).nbytes


@pytest.mark.parametrize("coding", CODINGS, ids=lambda coding: coding.name)
def test_every_coding_comes_back_near_and_in_its_shape(coding: Coding, source: Source) -> None:
    exact = chunk(source)
    assert coding.applies(source)
    back = coding.apply(exact, source)
    assert back.keys.shape == exact.keys.shape
    assert back.keys.dtype is torch.float32
    assert 0 < off(coding, source) < 0.2
    values = float((back.values - exact.values).norm() / exact.values.norm())
    assert 0 < values < (0.01 if coding.bits == 8 else 0.2)
    assert len({other.name for other in CODINGS}) == len(CODINGS)


def test_centring_matters_where_biases_are_large(source: Source) -> None:
    centred = off(Coding(), source)
    assert off(Coding(zero=Zero.BIAS), source) < 3 * centred
    assert off(Coding(zero=Zero.NONE), source) > 5 * centred
    assert off(Coding(axis=Axis.TOKEN_AFTER), source) > 20 * centred
    assert off(Coding(bits=4), source) > 5 * centred
    assert off(Coding(group=32), source) < centred


def test_codings_after_rope_are_turned_back_to_where_they_were(source: Source) -> None:
    """With enough bits nothing but the rotation there and back is left."""
    fine = Coding(bits=8, axis=Axis.TOKEN_AFTER)
    plain = Source(source.tables, source.start, None)
    small = ChunkKV(torch.randn(1, 2, 50, 64), torch.randn(1, 2, 50, 64))
    back = fine.apply(small, plain)
    assert float((back.keys - small.keys).norm() / small.keys.norm()) < 0.01


def test_a_model_without_a_bias_is_not_offered_one(source: Source) -> None:
    assert not Coding(zero=Zero.BIAS).applies(Source(source.tables, 0, None))


def test_planted_biases_have_the_published_norms(planted: LanguageModel) -> None:
    norms = [layer.self_attn.k_proj.bias.norm().item() for layer in planted.decoder_layers]
    assert norms == pytest.approx([FIRST, MIDDLE, LAST], rel=1e-4)
