"""Chunk KV of several rungs: what they are, what they are called, and that the stitch of them is exact."""

from __future__ import annotations

import pytest
import torch

from desk_rag.config import MOST_PRIMERS
from desk_rag.errors import ConfigError
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.identity import identify
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.prefix_variants.filler_passages import FILLER_PASSAGES
from desk_rag.kv.prefix_variants.variants import (
    PrefixVariants,
    build_prefix_variants,
    parse_variants,
    variant_prefix_ids,
)
from desk_rag.kv.quant import QuantScheme, keep_exact
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.model.language_model import LanguageModel
from tests.kv.oracle import masked_forward
from tests.models import FAMILIES, Family, build_model, each_family

TEXTS = ("The boiler was serviced.", "Rent is due on Monday.", "Anna moved to Porto, then to Lyon.")
SHORT = ("Beans are kept dry.", "It rained all day.", "The pump runs at night.")
"""Primers of a length that small models have room for."""
QUESTION = "When is rent due?"
LLAMA = next(family for family in FAMILIES if family.name == "llama")


def ladder_of(model: LanguageModel, counts: tuple[int, ...], passages: tuple[str, ...] = SHORT) -> PrefixVariants:
    scheme = QuantScheme.uniform(model.spec.num_layers)
    return build_prefix_variants(model, prefill_prefix(model), counts, scheme, passages=passages)


@each_family
def test_stitched_from_rungs_equals_masked_forward(family: Family) -> None:
    """Chunk j has its own copy of prefix and filler passages right before it; nobody else sees that copy."""
    model = build_model(family)
    ladder = ladder_of(model, (0, 1, 2))
    ids = [model.prompt.chunk_ids(text) for text in TEXTS]
    question = model.prompt.question_ids(QUESTION)
    where = plan(len(model.prompt.prefix_ids), [len(chunk) for chunk in ids])
    prefixes = [ladder.for_place(place).prefix for place in range(len(ids))]
    chunks = [keep_exact(prefill_chunk(model, *pair)) for pair in zip(prefixes, ids, strict=True)]
    cache = SlabCache(model, where.num_slots + len(question))
    tables = build_tables(model, cache.capacity)
    stitch(model, where, ladder.variants[0].prefix, chunks, tables, cache)
    got = model.forward_all(torch.tensor(question), cache, where.next_position)
    starts = [placement.position for placement in where.placements]
    before = [list(variant_prefix_ids(model.prompt, place, SHORT)) for place in range(3)]
    expected = masked_forward(model, ids, question, starts, where.next_position, before)
    error = (got - expected).abs().max().item()
    assert error < 1e-4 * max(expected.std().item(), 1.0)

    plain = masked_forward(model, ids, question, starts, where.next_position)
    difference = (plain - expected).abs().max().item()
    assert difference > max(100 * error, 1e-3 * expected.std().item()), "the passages do matter"


def test_variant_0_is_plain_chunk_kv_to_the_bit() -> None:
    model = build_model(LLAMA)
    prefix = prefill_prefix(model)
    scheme = QuantScheme.uniform(model.spec.num_layers)
    for counts in ((0,), (0, 2)):
        first = build_prefix_variants(model, prefix, counts, scheme, drift_epoch=3, passages=SHORT).variants[0]
        assert first.prefix is prefix
        assert first.namespace == identify(model.spec, model.prompt.prefix_ids, scheme, drift_epoch=3).namespace()


def test_a_variant_is_the_same_numbers_whatever_stands_above_it() -> None:
    model = build_model(LLAMA)
    low, high = ladder_of(model, (0, 1)), ladder_of(model, (0, 1, 3))
    ids = model.prompt.chunk_ids(TEXTS[0])
    one, other = (prefill_chunk(model, ladder.for_place(1).prefix, ids) for ladder in (low, high))
    assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)
    top = prefill_chunk(model, high.for_place(3).prefix, ids)
    assert not torch.allclose(top.values, other.values)


def test_every_variant_has_a_name_of_its_own_that_changes_with_its_passages() -> None:
    model = build_model(LLAMA)
    names = [variant.namespace for variant in ladder_of(model, (0, 1, 2, 3)).variants]
    assert len(set(names)) == 4
    changed = ladder_of(model, (0, 1, 2, 3), (SHORT[0], "Other words.", SHORT[2]))
    other = [variant.namespace for variant in changed.variants]
    assert [a == b for a, b in zip(names, other, strict=True)] == [True, True, False, False]


def test_which_variant_serves_which_place() -> None:
    ladder = ladder_of(build_model(LLAMA), (0, 1, 3))
    assert [ladder.for_place(place).count for place in range(6)] == [0, 1, 1, 3, 3, 3]
    assert [variant.count for variant in ladder.candidates_for(2)] == [1, 0]
    assert not ladder.is_plain and ladder_of(build_model(LLAMA), (0,)).is_plain


@pytest.mark.parametrize("given", ["", "1,2", "0,2,1", "0,1,1", "0,x", "0,-1", "0,1.5", f"0,{MOST_PRIMERS + 1}"])
def test_variants_that_make_no_sense_are_refused_by_name(given: str) -> None:
    with pytest.raises(ConfigError, match="--rungs") as caught:
        parse_variants(given, "--rungs")
    assert "[0, 1, 3]" in str(caught.value)


def test_a_variant_that_the_context_has_no_room_for_is_refused() -> None:
    model = build_model(LLAMA)
    assert parse_variants("0, 1,7") == (0, 1, 7)
    with pytest.raises(ConfigError, match="rungs: 1 filler passages take .* of the 512 positions") as caught:
        ladder_of(model, (0, 1), FILLER_PASSAGES)
    assert caught.value.remedy == "Lower the last number of `rungs` under [model]."


def test_there_are_as_many_passages_as_settings_allow() -> None:
    assert len(FILLER_PASSAGES) == len(set(FILLER_PASSAGES)) == MOST_PRIMERS
    assert all(700 < len(text) < 1100 for text in FILLER_PASSAGES), "about the length of a chunk"
