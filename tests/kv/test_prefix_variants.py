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
from desk_rag.kv.prefix_variants.filler_passages import PRIMERS
from desk_rag.kv.prefix_variants.variants import Ladder, build_ladder, parse_rungs, primed_ids
from desk_rag.kv.quant import QuantScheme, keep_exact
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.model.language_model import LanguageModel
from tests.kv.oracle import masked_forward
from tests.models import FAMILIES, Family, build_model

TEXTS = ("The boiler was serviced.", "Rent is due on Monday.", "Anna moved to Porto, then to Lyon.")
SHORT = ("Beans are kept dry.", "It rained all day.", "The pump runs at night.")
"""Primers of a length that small models have room for."""
QUESTION = "When is rent due?"
LLAMA = next(family for family in FAMILIES if family.name == "llama")


def ladder_of(model: LanguageModel, counts: tuple[int, ...], primers: tuple[str, ...] = SHORT) -> Ladder:
    scheme = QuantScheme.uniform(model.spec.num_layers)
    return build_ladder(model, prefill_prefix(model), counts, scheme, primers=primers)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_stitched_from_rungs_equals_masked_forward(family: Family) -> None:
    """Chunk j has its own copy of prefix and primers right before it; nobody else sees that copy."""
    model = build_model(family)
    ladder = ladder_of(model, (0, 1, 2))
    ids = [model.prompt.chunk_ids(text) for text in TEXTS]
    question = model.prompt.question_ids(QUESTION)
    where = plan(len(model.prompt.prefix_ids), [len(chunk) for chunk in ids])
    chunks = [keep_exact(prefill_chunk(model, ladder.at(place).prefix, chunk)) for place, chunk in enumerate(ids)]
    cache = SlabCache(model, where.num_slots + len(question))
    tables = build_tables(model, cache.capacity)
    stitch(model, where, ladder.rungs[0].prefix, chunks, tables, cache)
    got = model.forward_all(torch.tensor(question), cache, where.next_position)
    starts = [placement.position for placement in where.placements]
    before = [list(primed_ids(model.prompt, place, SHORT)) for place in range(3)]
    expected = masked_forward(model, ids, question, starts, where.next_position, before)
    error = (got - expected).abs().max().item()
    assert error < 1e-4 * max(expected.std().item(), 1.0)

    plain = masked_forward(model, ids, question, starts, where.next_position)
    assert (plain - expected).abs().max().item() > max(100 * error, 1e-3 * expected.std().item()), "primers do matter"


def test_rung_0_is_plain_chunk_kv_to_the_bit() -> None:
    model = build_model(LLAMA)
    prefix = prefill_prefix(model)
    scheme = QuantScheme.uniform(model.spec.num_layers)
    for counts in ((0,), (0, 2)):
        first = build_ladder(model, prefix, counts, scheme, drift_epoch=3, primers=SHORT).rungs[0]
        assert first.prefix is prefix
        assert first.namespace == identify(model.spec, model.prompt.prefix_ids, scheme, drift_epoch=3).namespace()


def test_a_rung_is_the_same_numbers_whatever_stands_above_it() -> None:
    model = build_model(LLAMA)
    low, high = ladder_of(model, (0, 1)), ladder_of(model, (0, 1, 3))
    ids = model.prompt.chunk_ids(TEXTS[0])
    one, other = (prefill_chunk(model, ladder.at(1).prefix, ids) for ladder in (low, high))
    assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)
    top = prefill_chunk(model, high.at(3).prefix, ids)
    assert not torch.allclose(top.values, other.values)


def test_every_rung_has_a_name_of_its_own_that_changes_with_its_primers() -> None:
    model = build_model(LLAMA)
    names = [rung.namespace for rung in ladder_of(model, (0, 1, 2, 3)).rungs]
    assert len(set(names)) == 4
    other = [rung.namespace for rung in ladder_of(model, (0, 1, 2, 3), (SHORT[0], "Other words.", SHORT[2])).rungs]
    assert [a == b for a, b in zip(names, other, strict=True)] == [True, True, False, False]


def test_which_rung_serves_which_place() -> None:
    ladder = ladder_of(build_model(LLAMA), (0, 1, 3))
    assert [ladder.at(place).count for place in range(6)] == [0, 1, 1, 3, 3, 3]
    assert [rung.count for rung in ladder.serving(2)] == [1, 0]
    assert not ladder.is_plain and ladder_of(build_model(LLAMA), (0,)).is_plain


@pytest.mark.parametrize("given", ["", "1,2", "0,2,1", "0,1,1", "0,x", "0,-1", "0,1.5", f"0,{MOST_PRIMERS + 1}"])
def test_ladders_that_make_no_sense_are_refused_by_name(given: str) -> None:
    with pytest.raises(ConfigError, match="--rungs") as caught:
        parse_rungs(given, "--rungs")
    assert "[0, 1, 3]" in str(caught.value)


def test_a_ladder_that_the_context_has_no_room_for_is_refused() -> None:
    model = build_model(LLAMA)
    assert parse_rungs("0, 1,7") == (0, 1, 7)
    with pytest.raises(ConfigError, match="rungs: 1 primers take .* of the 512 positions") as caught:
        ladder_of(model, (0, 1), PRIMERS)
    assert caught.value.remedy == "Lower the last of the rungs."


def test_there_are_as_many_primers_as_settings_allow() -> None:
    assert len(PRIMERS) == len(set(PRIMERS)) == MOST_PRIMERS
    assert all(700 < len(text) < 1100 for text in PRIMERS), "about the length of a chunk"
