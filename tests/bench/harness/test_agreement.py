"""Texts are compared by their words, answers by what they should hold."""

from __future__ import annotations

import pytest

from desk_rag.answering.events import Answer, AnswerMode, Timings
from desk_rag.bench.harness.agreement import Agreement, is_right, token_f1
from desk_rag.bench.harness.corpus import Question


def answer(raw: str, *, found: bool = True) -> Answer:
    return Answer("q", raw, found, (), (), (), Timings(()), 0, 0, AnswerMode.FULL, "m", raw)


@pytest.mark.parametrize(
    ("one", "other", "score"),
    [
        ("The rent is due", "the rent is due.", 1.0),
        ("", "", 1.0),
        ("", "something", 0.0),
        ("alpha beta", "gamma", 0.0),
        ("a b c d", "a b", 2 / 3),
        ("a a b", "a b b", 2 / 3),
    ],
)
def test_token_f1(one: str, other: str, score: float) -> None:
    assert token_f1(one, other) == pytest.approx(score)
    assert token_f1(other, one) == pytest.approx(score)


def test_an_answer_is_right_if_it_holds_what_is_expected_or_admits_that_there_is_nothing() -> None:
    question = Question("Which code?", ("F28", "code 28"))
    assert is_right(question, answer('"It is f28."\nF28'))
    assert not is_right(question, answer("G12"))
    assert not is_right(question, answer("F28", found=False))
    nothing = Question("Which dentist?", ())
    assert is_right(nothing, answer("I could not find that in the documents.", found=False))
    assert not is_right(nothing, answer("Dr Gum"))


def test_agreement_counts_pairs_and_right_answers_on_both_sides() -> None:
    one, two, open_end = Question("One?", ("1",)), Question("Two?", ("2",)), Question("Why?")
    cached = {one: answer("it is 1"), two: answer("it is 7"), open_end: answer("because")}
    full = {one: answer("it is 1"), two: answer("it is 2"), open_end: answer("because")}
    got = Agreement.of(cached, full)
    assert got.equal == pytest.approx(2 / 3)
    assert got.token_f1 == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert (got.pairs, got.judged, got.right_cached, got.right_full) == (3, 2, 1, 2)
