"""The shift of chunks: where it begins, that nothing is nothing, and what its file is trusted with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.shift import KNOTS, PlaceShift, from_bytes, hat_weights
from desk_rag.kv.stitch import stitch
from desk_rag.model.language_model import LanguageModel
from tests.models import Family, build_model, each_family

TEXTS = ("The red key opens the shed.", "Tea is served at four.", "The lamp is broken.")


def filled(model: LanguageModel, shift: PlaceShift | None) -> SlabCache:
    """A cache with three chunks."""
    prefix, ids = prefill_prefix(model), [model.prompt.chunk_ids(text) for text in TEXTS]
    where = plan(prefix.num_tokens, [len(each) for each in ids])
    chunks = [quantize(prefill_chunk(model, prefix, each), QuantScheme.uniform(model.spec.num_layers)) for each in ids]
    cache = SlabCache(model, where.num_slots)
    stitch(model, where, prefix, chunks, build_tables(model, where.num_slots), cache, shift)
    return cache


def some_shift(model: LanguageModel, seed: int = 0) -> PlaceShift:
    spec = model.spec
    generator = torch.Generator().manual_seed(seed)
    shape = (len(KNOTS), spec.num_layers, spec.num_kv_heads, spec.head_dim)
    return PlaceShift(KNOTS, torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))


@each_family
def test_no_shift_and_a_shift_of_zero_are_the_same_bits(family: Family) -> None:
    model = build_model(family)
    spec = model.spec
    none, zero = filled(model, None), filled(model, PlaceShift.zero(spec.num_layers, spec.num_kv_heads, spec.head_dim))
    some = filled(model, some_shift(model))
    first = prefill_prefix(model).num_tokens + len(model.prompt.chunk_ids(TEXTS[0]))
    for left, right, other in zip(none.layers, zero.layers, some.layers, strict=True):
        for name in ("keys", "values"):
            plain, shifted = getattr(left, name), getattr(other, name)
            assert torch.equal(plain, getattr(right, name))
            assert torch.equal(plain[:, :, :first], shifted[:, :, :first]), "nothing stands before the first chunk"
            assert (plain[:, :, first:] - shifted[:, :, first:]).abs().amax() > 0.1


def test_values_are_shifted_by_the_tokens_before_their_chunk(reader: LanguageModel) -> None:
    shift = some_shift(reader)
    plain, shifted = filled(reader, None), filled(reader, shift)
    prefix, count = prefill_prefix(reader).num_tokens, len(reader.prompt.chunk_ids(TEXTS[0]))
    moved = shifted.layers[4].values[0, :, prefix + count] - plain.layers[4].values[0, :, prefix + count]
    assert count < KNOTS[0]
    torch.testing.assert_close(moved, shift.values[0, 4] * count / KNOTS[0], rtol=1e-3, atol=1e-4)


def test_weights_are_linear_between_knots_and_constant_past_the_last() -> None:
    assert hat_weights((64, 128), 0) == [0.0, 0.0]
    assert hat_weights((64, 128), 16) == [0.25, 0.0]
    assert hat_weights((64, 128), 64) == [1.0, 0.0]
    assert hat_weights((64, 128), 80) == [0.75, 0.25]
    assert hat_weights((64, 128), 128) == hat_weights((64, 128), 9999) == [0.0, 1.0]


def test_a_single_chunk_needs_no_shift(reader: LanguageModel) -> None:
    assert some_shift(reader).of_chunks(plan(7, [30])) is None
    assert some_shift(reader).of_chunks(plan(7, [])) is None


def test_a_file_comes_back_as_it_was_or_not_at_all(reader: LanguageModel) -> None:
    shift = some_shift(reader)
    data = shift.to_bytes({"model": "x"})
    again, facts = from_bytes(data)
    assert facts == {"model": "x"} and again.knots == KNOTS
    assert torch.equal(again.keys, shift.keys) and torch.equal(again.values, shift.values)
    damaged = bytearray(data)
    damaged[-3] ^= 4
    for other in (bytes(damaged), data[:-9], b"", data.replace(b"desk-rag shift 1", b"desk-rag shift 9")):
        with pytest.raises(ValueError):
            from_bytes(other)
    assert replace(shift, values=shift.values + 1).digest != shift.digest
