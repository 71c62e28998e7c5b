"""The walk lays the branch that model and gains like best together, and leaves the cache as decoding would have."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest
import torch

from desk_rag.answering.evidence.trie_decoding import (
    Candidate,
    Decoded,
    LookaheadConfig,
    TrieDecoder,
    log_probabilities,
)
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.runner import ModelPass
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, build_model
from tests.scripted_pass import Says, ScriptedPass

SIZE, END, START = 12, 2, 7
ONLY_HERE, EVERYWHERE = (
    LookaheadConfig(num_tokens=0),
    LookaheadConfig(margin=math.inf, max_candidates=100, num_tokens=100),
)


def favours(heights: Mapping[tuple[int, ...], Mapping[int, float]]) -> Says:
    return lambda ids: heights.get(ids, {})


def at_random(seed: int) -> Says:
    """Every token has a height of its own behind every beginning."""

    def says(ids: tuple[int, ...]) -> Mapping[int, float]:
        heights = random.Random(f"{seed} {ids}")
        return {token: heights.uniform(-4, 4) for token in range(SIZE)}

    return says


def laid(
    says: Says, branches: Sequence[Candidate], forks: LookaheadConfig = ONLY_HERE, ends: Sequence[int] = (END,)
) -> tuple[Decoded, ScriptedPass]:
    """Decode, and check what must hold of every walk; and that reading the best text at once changes nothing."""
    run = ScriptedPass(SIZE, says, START)
    at_once = ScriptedPass(SIZE, says, START, reads_at_once=True)
    other = TrieDecoder(at_once, forks, ends).decode_best(branches, log_probabilities(at_once.logits()), START)
    got = TrieDecoder(run, forks, ends).decode_best(branches, log_probabilities(run.logits()), START)
    assert got.token_ids in [branch.ids for branch in branches]
    kept = got.token_ids[:-1] if got.token_ids[-1] in ends else got.token_ids
    assert tuple(run.ids) == kept, "the id that ends an answer is never read"
    torch.testing.assert_close(log_probabilities(got.logits), log_probabilities(run.logits()))
    assert other.token_ids == got.token_ids and at_once.ids == run.ids
    torch.testing.assert_close(log_probabilities(other.logits), log_probabilities(got.logits))
    return got, run


def some_texts(seed: int) -> list[tuple[int, ...]]:
    """Texts of 1 to 6 tokens, each with the stop id behind it, so none is another's beginning; many share theirs."""
    draw = random.Random(seed)
    return list({(*draw.choices((3, 4, 5), k=draw.randint(1, 6)), END) for _ in range(8)})


def told_of(says: Says, text: Sequence[int]) -> float:
    """Log-probability of a text."""
    rows = [ScriptedPass(SIZE, says) for _ in text]
    for place, row in enumerate(rows):
        row.ids += text[:place]
    return sum(float(row.logits().log_softmax(-1)[token]) for row, token in zip(rows, text, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_without_gains_and_look_ahead_it_is_greedy_among_the_branches(seed: int) -> None:
    texts, says, expected = some_texts(seed), at_random(seed), list[int]()
    while expected[-1:] != [END]:
        ways = {text[len(expected)] for text in texts if text[: len(expected)] == tuple(expected)}
        expected.append(max(ways, key=lambda token: says(tuple(expected))[token]))
    got, run = laid(says, [Candidate(text, 0.0) for text in texts])
    assert got.token_ids == tuple(expected) and run.looked == []


@pytest.mark.parametrize("seed", range(20))
def test_with_all_that_can_be_seen_the_best_of_all_is_laid(seed: int) -> None:
    """Where all branches part at once, so that each is looked into to its end."""
    draw, says = random.Random(seed), at_random(seed)
    texts = [(first, *draw.choices(range(3, SIZE), k=draw.randint(0, 6)), END) for first in range(3, 9)]
    branches = [Candidate(text, draw.uniform(-6, 6)) for text in texts]
    got, _ = laid(says, branches, EVERYWHERE)
    assert got.token_ids == max(branches, key=lambda branch: branch.bonus + told_of(says, branch.ids)).ids


@pytest.mark.parametrize(("gain", "chosen"), [(0.0, 3), (4.9, 3), (5.1, 4), (math.inf, 4), (-math.inf, 3)])
def test_a_gain_is_worth_as_many_nats_of_the_models(gain: float, chosen: int) -> None:
    says = favours({(): {3: 6.0, 4: 1.0}})
    got, _ = laid(says, [Candidate((4, 4, END), gain), Candidate((3, 3, END), 0.0)])
    assert got.token_ids[0] == chosen


def test_branches_that_nothing_speaks_for_are_laid_all_the_same() -> None:
    got, _ = laid(favours({(): {4: 1.0}}), [Candidate((3, 3), -math.inf), Candidate((4, 4), -math.inf)], EVERYWHERE)
    assert len(got.token_ids) == 2


def test_of_the_texts_below_a_child_the_greatest_gain_counts_and_not_their_number() -> None:
    many = [Candidate((3, token, END), 1.0) for token in range(3, 9)]
    got, _ = laid(favours({}), [*many, Candidate((4, 4, END), 1.5)])
    assert got.token_ids == (4, 4, END)
    lost = Candidate((4, 5, END), -9.0)
    got, _ = laid(favours({}), [*many, lost, Candidate((4, 4, END), 1.5)])
    assert got.token_ids == (4, 4, END)


# One text is another's beginning -----------------------------------------------------------------------------------

SHORT, LONG = (3, 4, END), (3, 4, 5, 6, END)


@pytest.mark.parametrize(("end", "on", "chosen"), [(2.0, 1.0, SHORT), (1.0, 2.0, LONG)])
def test_the_model_says_whether_a_text_ends_or_goes_on(end: float, on: float, chosen: tuple[int, ...]) -> None:
    says = favours({(3, 4): {END: end, 5: on}})
    for branches in ([SHORT, LONG], [LONG, SHORT]):
        got, run = laid(says, [Candidate(ids, 0.0) for ids in branches])
        assert got.token_ids == chosen
        assert run.read == ([(3, 4)] if chosen == SHORT else [(3, 4), (5, 6)])


@pytest.mark.parametrize(("gains", "chosen"), [((1.5, 0.0), SHORT), ((0.5, 0.0), LONG), ((0.0, -1.5), SHORT)])
def test_gains_weigh_with_it(gains: tuple[float, float], chosen: tuple[int, ...]) -> None:
    says = favours({(3, 4): {END: 1.0, 5: 2.0}})
    got, _ = laid(says, [Candidate(SHORT, gains[0]), Candidate(LONG, gains[1])])
    assert got.token_ids == chosen


def test_going_on_costs_what_the_tokens_behind_it_cost_where_it_is_looked_into() -> None:
    """An end has nothing behind it."""
    says = favours({(3, 4): {END: 1.0, 5: 2.0}, (3, 4, 5): {9: 8.0}})
    got, run = laid(says, [Candidate(SHORT, 0.0), Candidate(LONG, 0.0)], EVERYWHERE)
    assert got.token_ids == SHORT and run.looked == [(3, 4, 5, 6)]
    says = favours({(3, 4): {END: 1.0, 5: 2.0}, (3, 4, 5): {6: 8.0}, (3, 4, 5, 6): {END: 9.0}})
    got, _ = laid(says, [Candidate(SHORT, 0.0), Candidate(LONG, 0.0)], EVERYWHERE)
    assert got.token_ids == LONG


def test_an_end_alone_runs_no_pass() -> None:
    got, run = laid(favours({(): {END: 1.0}}), [Candidate((END,), 0.0), Candidate((5, END), 0.0)])
    assert got.token_ids == (END,) and run.read == []


# Passes ------------------------------------------------------------------------------------------------------------


def test_what_has_no_fork_is_laid_in_one_pass() -> None:
    says = favours({(3, 4, 5): {6: 1.0, 7: 9.0}})
    _, run = laid(says, [Candidate((3, 4, 5, 6, 6, 6), 0.0), Candidate((3, 4, 5, 7, 8, 9, 8), 0.0)])
    assert run.read == [(3, 4, 5), (7, 8, 9, 8)]
    _, run = laid(favours({}), [Candidate((3,) * 40, 0.0)], EVERYWHERE)
    assert run.read == [(3,) * 40] and run.looked == []


def test_only_close_branches_are_looked_into_and_only_so_many_so_far() -> None:
    branches = [Candidate((first, first, 9, 9, 9, END), 0.0) for first in (3, 4, 5, 6)]
    heights: dict[tuple[int, ...], dict[int, float]] = {(): {3: 6.0, 4: 5.5, 5: 5.0, 6: 2.0}}
    _, run = laid(favours(heights), branches, LookaheadConfig(margin=0.4))
    assert run.looked == []
    _, run = laid(favours(heights), branches, LookaheadConfig(margin=0.6, max_candidates=2, num_tokens=2))
    assert run.looked == [(3, 3), (4, 4)]
    heights[(4,)] = {4: 9.0}
    got, run = laid(favours(heights), branches, LookaheadConfig(margin=0.6, max_candidates=3, num_tokens=1))
    assert got.token_ids[0] == 4 and run.looked == [(3,), (4,), (5,)]


def test_of_a_branch_that_parts_again_the_text_with_the_greatest_gain_is_looked_into() -> None:
    branches = [Candidate((3, 5, END), 0.0), Candidate((3, 6, END), 1.0), Candidate((4, 7, END), 0.8)]
    _, run = laid(favours({}), branches, EVERYWHERE)
    assert run.looked[:2] == [(3, 6), (4, 7)]


@pytest.fixture(scope="module")
def small() -> LanguageModel:
    return build_model(next(family for family in FAMILIES if family.name == "qwen2"))


@pytest.mark.parametrize(
    "forks", [ONLY_HERE, EVERYWHERE, LookaheadConfig(margin=math.inf, max_candidates=2, num_tokens=1)], ids=str
)
@pytest.mark.parametrize("seed", range(4))
def test_the_cache_holds_what_token_by_token_decoding_puts_there(
    small: LanguageModel, seed: int, forks: LookaheadConfig
) -> None:
    """A real model's keys and values, behind branches that were looked into and given up again."""
    context, draw = list(range(40, 60)), random.Random(seed)
    texts = list({(*draw.choices((90, 91, 92), k=draw.randint(2, 6)), END) for _ in range(8)})
    caches = SlabCache(small, 40), SlabCache(small, 40)
    run, other = (ModelPass(small, cache) for cache in caches)
    logits = run.forward(context, 0)
    expected = other.forward(context, 0)
    branches = [Candidate(text, draw.uniform(-1, 1)) for text in texts]
    got = TrieDecoder(run, forks, (END,)).decode_best(branches, log_probabilities(logits), len(context))
    for place, token in enumerate(got.token_ids[:-1]):
        expected = other.forward([token], len(context) + place)
    torch.testing.assert_close(log_probabilities(got.logits), log_probabilities(expected), atol=1e-4, rtol=1e-3)
    for one, two in zip(caches[0].layers, caches[1].layers, strict=True):
        assert one.length == two.length == len(context) + len(got.token_ids) - 1
        torch.testing.assert_close(one.keys, two.keys, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(one.values, two.values, atol=1e-4, rtol=1e-3)


def test_log_probabilities_are_memory_of_their_own() -> None:
    logits = torch.tensor([0.0, 1.0])
    logs = log_probabilities(logits)
    logits[:] = 5.0
    torch.testing.assert_close(logs.exp(), torch.tensor([0.0, 1.0]).softmax(-1))


def test_a_text_that_is_anothers_beginning_is_laid_where_it_is_worth_more() -> None:
    short, long = (3, 4), (3, 4, 5, 6)
    for gains, chosen in (((2.0, 1.0), short), ((1.0, 2.0), long), ((1.0, 1.0), long)):
        got, run = laid(favours({}), [Candidate(short, gains[0]), Candidate(long, gains[1])])
        assert got.token_ids == chosen and tuple(run.ids) == chosen


# Reading ahead -----------------------------------------------------------------------------------------------------


def test_the_text_with_the_best_bonus_takes_one_pass_and_is_read_on_where_it_loses() -> None:
    texts = [Candidate((3, 4, 5, 6, END), 2.0), Candidate((3, 4, 7, 8, END), 1.0), Candidate((3, 9, END), 0.0)]
    run = ScriptedPass(SIZE, favours({}), START, reads_at_once=True)
    got = TrieDecoder(run, ONLY_HERE, (END,)).decode_best(texts, log_probabilities(run.logits()), START)
    assert got.token_ids == (3, 4, 5, 6, END)
    assert run.looked == [(3, 4, 5, 6)] and run.read == []
    run = ScriptedPass(SIZE, favours({(3, 4): {7: 5.0}}), START, reads_at_once=True)
    got = TrieDecoder(run, ONLY_HERE, (END,)).decode_best(texts, log_probabilities(run.logits()), START)
    assert got.token_ids == (3, 4, 7, 8, END) and run.ids == [3, 4, 7, 8]
    assert run.looked == [(3, 4, 5, 6)] and run.read == [(7, 8)]


def test_what_is_expected_behind_a_text_is_read_with_it_and_used_or_dropped() -> None:
    quotes = [Candidate((3, 4), 2.0), Candidate((5, 6), 0.0)]
    answers = [Candidate((7, 8, END), 1.0), Candidate((7, 9, END), 0.0)]
    for expected, used, passes in (((7, 8, END), True, 1), ((7, 9, END), True, 2), ((7, 8, END), False, 2)):
        run = ScriptedPass(SIZE, favours({}), START, reads_at_once=True)
        decoder = TrieDecoder(run, ONLY_HERE, (END,))
        quote = decoder.decode_best(quotes, log_probabilities(run.logits()), START, lambda _, ids=expected: ids)
        assert quote.token_ids == (3, 4) and tuple(run.ids) == (3, 4, *expected[:-1])
        if not used:
            decoder.drop_from(START + 2)
            assert run.ids == [3, 4]
        answer = decoder.decode_best(answers, log_probabilities(quote.logits), START + 2)
        assert answer.token_ids == (7, 8, END) and run.ids == [3, 4, 7, 8]
        assert run.looked[0] == (3, 4, *expected[:-1]) and len(run.looked) + len(run.read) == passes
