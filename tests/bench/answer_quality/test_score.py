"""Scores of texts: values worked out by hand."""

from __future__ import annotations

import pytest

from desk_rag.bench.answer_quality import metrics as words
from desk_rag.bench.answer_quality.data.sample import Sample
from desk_rag.bench.answer_quality.score import Judge, mark
from desk_rag.model.prompt import NO_ANSWER

CONTEXTS = ("The ferry leaves at 7.40 from Harwick pier.", "Beans are kept dry in the blue jar.")


def sample(**changes: object) -> Sample:
    values: dict[str, object] = {
        "question": "When does the ferry leave?", "answers": (("7.40", "twenty to eight"),), "contexts": CONTEXTS,
        "task": "t", "gold": (0,),
    }  # fmt: skip
    return Sample(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "wanted", "exact", "f1", "rouge"),
    [
        ("The Blue Jar.", "blue jar", 1, 1, 1),
        ("in the blue jar", "blue jar", 0, 0.8, 0.8),
        ("jar blue", "blue jar", 0, 1, 0.5),
        ("jar", "jar jar", 0, 2 / 3, 2 / 3),  # a word pairs with one other
        ("red", "blue", 0, 0, 0),
        ("", "", 1, 1, 1),
        ("", "blue", 0, 0, 0),
        ("香港大学", "香港", 0, 2 / 3, 2 / 3),
    ],
)
def test_scores(said: str, wanted: str, exact: float, f1: float, rouge: float) -> None:
    assert words.exact(said, wanted) == exact
    assert words.f1(said, wanted) == pytest.approx(f1)
    assert words.rouge_l(said, wanted) == pytest.approx(rouge)


@pytest.mark.parametrize(
    ("said", "wanted", "held"),
    [
        ("It costs 120 crowns", "12", False),
        ("It costs £12.", "12", True),
        ("the Blue  JAR, there", "blue jar", True),
        ("bluejar", "blue", False),
        ("在2022年1月3日上午", "1月3日", True),
        ("It is in Kölner Straße", "Köln", False),
        ("Ganz änn nicht", "nn", False),
        ("서울에서", "서울", True),
    ],
)
def test_contains_whole_words(said: str, wanted: str, held: bool) -> None:
    assert words.contains(said, wanted) is held


def test_common_length_is_that_of_the_longest_common_subsequence() -> None:
    assert words.common_length("abcde", "bxdey") == 3
    assert words.recall_l("the ferry at 7.40 leaves", CONTEXTS[0]) == pytest.approx(3 / 7)  # 'the' does not count


def test_the_short_answer_is_scored_apart_from_the_quote() -> None:
    marks = mark(sample(), '"The ferry leaves at 7.40 from Harwick pier."\n7.40')
    assert (marks.exact, marks.f1, marks.rouge_l, marks.contains) == (1, 1, 1, 1)
    assert (marks.right_quote, marks.false_refusal, marks.refused) == (1, 0, None)
    other = mark(sample(), '"Beans are kept dry in the blue jar."\ntwenty to nine')
    assert other.right_quote == 0
    assert other.f1 == pytest.approx(2 / 3)
    assert other.contains == 0


def test_several_parts_are_all_wanted() -> None:
    two = sample(answers=(("7.40",), ("Harwick", "the pier")))
    marks = mark(two, "7.40, somewhere")
    assert (marks.contains, marks.recall) == (0, 0.5)
    assert mark(two, "from the pier at 7.40").contains == 1
    assert mark(two, "7.40, Harwick").exact == 1


def test_coverage_is_the_share_of_evidence_that_is_quoted() -> None:
    marks = mark(sample(evidence=("The ferry leaves at 7.40", "kept dry")), "The ferry leaves early")
    assert marks.coverage == pytest.approx((2 / 4 + 0) / 2)
    assert mark(sample(), "7.40").coverage == 1


def test_refusals() -> None:
    asked, hopeless = sample(), sample(answers=(), gold=())
    assert mark(asked, NO_ANSWER).false_refusal == 1
    assert mark(hopeless, NO_ANSWER).refused == 1
    assert mark(hopeless, "The documents do not mention a ferry.").refused == 1
    assert mark(hopeless, "At noon.").refused == 0
    assert mark(hopeless, "At noon.").f1 is None
    quoting = '"Beans are kept dry in the blue jar."\nThe documents do not mention more.'
    assert mark(asked, quoting).false_refusal == 0


def test_a_planted_wrong_answer_is_counted() -> None:
    assert mark(sample(wrong=("8.15",)), "It leaves at 8.15").misled == 1
    assert mark(sample(wrong=("8.15",)), "It leaves at 7.40").misled == 0
    assert mark(sample(), "8.15").misled is None


def test_the_judge_withholds_what_the_evidence_does_not_support() -> None:
    hopeless = sample(question="Which dentist did Aunt Isolde see?", answers=(), gold=())
    output = '"Beans are kept dry in the blue jar."\nthe blue jar'
    assert (mark(hopeless, output).refused, mark(hopeless, output, Judge(None)).refused) == (0, 1)
    right = '"The ferry leaves at 7.40 from Harwick pier."\n7.40'
    assert mark(sample(), right, Judge(None)) == mark(sample(), right)
    withheld = mark(sample(), output, Judge(None))
    assert (withheld.false_refusal, withheld.f1, withheld.right_quote) == (1, 0, 0)
