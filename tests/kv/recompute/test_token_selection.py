"""Budgets, chunk beginnings and the window rule."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from desk_rag.kv.recompute import token_selection


def test_budget() -> None:
    assert [token_selection.budget_of(ratio, 50) for ratio in (0.0, 0.001, 0.2, 0.5, 1.0, 2.0)] == [
        0,
        1,
        10,
        25,
        50,
        50,
    ]
    assert token_selection.budget_of(0.5, 0) == 0


def test_best_are_the_highest_and_of_equals_the_earlier() -> None:
    assert token_selection.best(np.array([0.1, 0.7, 0.3, 0.7, 0.3], np.float32), 3) == [1, 3, 2]


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 45))
def test_best_is_sorting_all_of_them(scores: list[int], budget: int) -> None:
    """Few different values: most are equal to others, also where the budget ends."""
    expected = sorted(range(len(scores)), key=lambda token: (-scores[token], token))[:budget]
    assert token_selection.best(np.array(scores, np.float32), budget) == expected


def test_scores_on_the_host_may_be_written_to() -> None:
    scores = torch.tensor([0.5, 0.25], dtype=torch.bfloat16)
    kept = token_selection.on_host(scores)
    kept[0] = np.inf
    assert kept.dtype == np.float32 and scores[0].item() == 0.5
    single = torch.tensor([0.5])
    token_selection.on_host(single)[0] = np.inf
    assert single.item() == 0.5


@given(st.lists(st.integers(0, 12), max_size=6), st.integers(0, 60))
def test_an_even_share_is_the_largest_that_fits(lengths: list[int], budget: int) -> None:
    each = token_selection.even_share(lengths, budget)
    assert len(token_selection.beginnings(lengths, each)) <= budget
    assert each == max(lengths, default=0) or len(token_selection.beginnings(lengths, each + 1)) > budget


def test_beginnings_count_over_all_chunks() -> None:
    assert token_selection.beginnings([5, 1, 4], 2) == [0, 1, 5, 6, 7]
    assert token_selection.even_share([5, 1, 4], 5) == 2
    assert token_selection.even_share([5, 1, 4], 6) == 2
    assert token_selection.even_share([5, 1, 4], 2) == 0
    assert token_selection.even_share([5, 1, 4], 100) == 5


def test_a_window_is_taken_when_more_than_five_of_eight_are_picked() -> None:
    lengths = [16, 8]
    assert token_selection.windows([0, 1, 2, 3, 4], lengths) == []
    assert token_selection.windows([0, 1, 2, 3, 4, 7], lengths) == list(range(8))
    # Six neighbours across a border of windows, or of chunks, are six tokens in two windows.
    assert token_selection.windows([5, 6, 7, 8, 9, 10], lengths) == []
    assert token_selection.windows([13, 14, 15, 16, 17, 18], lengths) == []
    assert token_selection.windows([16, 17, 18, 19, 20, 23], lengths) == list(range(16, 24))


def test_a_short_last_window_is_held_to_the_same_share() -> None:
    # 5/8 of 4 tokens is 2.5, of 3 it is 1.875.
    assert token_selection.windows([8, 9], [12]) == []
    assert token_selection.windows([8, 9, 11], [12]) == [8, 9, 10, 11]
    assert token_selection.windows([8, 9], [11]) == [8, 9, 10]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 10_000), st.integers(0, 40))
def test_filling_takes_whole_windows_within_the_budget(lengths: list[int], seed: int, budget: int) -> None:
    scores = np.random.default_rng(seed).random(sum(lengths), np.float32)
    chosen = token_selection.windows_within(scores, lengths, budget)
    assert len(chosen) == len(set(chosen)) <= budget
    assert chosen == token_selection.windows(chosen, lengths)
    published = token_selection.windows(token_selection.best(scores, budget), lengths)
    assert set(published) <= set(chosen) or len(published) > budget


def test_filling_comes_near_the_budget_where_the_published_rule_does_not() -> None:
    scores = np.random.default_rng(1).random(800, np.float32)
    assert len(token_selection.windows(token_selection.best(scores, 160), [400, 400])) < 20
    assert 150 <= len(token_selection.windows_within(scores, [400, 400], 160)) <= 160
