"""A fact of a sentence is held against others of its kind in the passage, and a swapped one is noticed."""

from __future__ import annotations

import pytest

from desk_rag.answering.events import Support
from desk_rag.answering.evidence.span_scorer import load_span_scorer
from desk_rag.answering.writing import facts
from desk_rag.answering.writing.support import SupportChecker
from desk_rag.config import Settings
from desk_rag.retrieval.embedding import load_embedder
from tests.answering.writing.sample_passages import sources

PASSAGE = (
    "The loft costs 450 crowns a month and has 3 rooms; the cellar costs 80 crowns. Part AB-12 fits, AB-19 does not. "
    "Signed in 2019 by Ida Holm and in 2024 by Per Strand, at 14:30 and at 3 pm, for 12.50 and 7.25, in Tidwell."
)


def rivals(claim: str, word: str) -> set[str]:
    fact = next(each for each in facts.facts(claim) if each.text == word)
    return {PASSAGE[begin:end] for begin, end in facts.rivals(fact, claim, PASSAGE)}


@pytest.mark.parametrize(
    ("claim", "word", "expected"),
    [
        ("The loft costs 80 crowns.", "80", {"450"}),  # of the unit that it has in the passage
        ("The loft has 80 windows.", "80", {"450", "3"}),
        ("The loft costs 80 crowns and not 450 crowns.", "80", set()),  # the sentence has it itself
        ("The part is AB-12.", "AB-12", {"AB-19"}),
        ("It was signed in 2019.", "2019", {"2024"}),
        ("It was signed at 14:30.", "14:30", {"3 pm"}),
        ("It was 7.25 in all.", "7.25", {"12.50"}),
        ("The cellar belongs to Ida Holm.", "Ida", {"Per Strand"}),
        ("It belongs to the firm CD-7.", "CD", set()),
        ("It has two rooms.", "two", {"3"}),
    ],
)
def test_only_facts_of_the_same_kind_compete(claim: str, word: str, expected: set[str]) -> None:
    assert rivals(claim, word) == expected


@pytest.mark.parametrize(
    ("right", "swapped"),
    [
        ("The fan has number CL-2005.", "The fan has part number CL-4420."),
        ("The fan is sold for 187 crowns.", "The pressure sensor costs 34 crowns."),
        ("Dinner in Alder Hut is 18 crowns.", "Fenna Hut is the smallest and has 24 beds."),
    ],
)
def test_a_swapped_fact_is_doubted(right: str, swapped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would pass if it were not for its rivals."""
    embedder = load_embedder(Settings().model)
    checker = SupportChecker("What is in the files?", sources(), embedder, load_span_scorer(embedder))
    assert checker.check(right).support is Support.SUPPORTED
    assert checker.check(swapped).support is Support.UNSUPPORTED
    monkeypatch.setattr(facts, "rivals", lambda *_: [])
    assert checker.check(swapped).support is Support.SUPPORTED


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        ("Since September 2025 it is closed.", "Minutes of 2025-09-09: it is closed."),
        ("Until March 2024 it is open.", "Open until 2024-03-31."),
        ("It was flooded in 1958.", "It was flooded in the spring of fifty-eight."),
        ("It was flooded in 1958.", "ask gran about the flood of '58"),
        ("Breakfast is at 7:30.", "Breakfast is at half past seven."),
        ("The train comes at 16:00.", "I come with the four o'clock train."),
        ("Elle coûte 23 400 couronnes.", "It costs 23,400 crowns."),
    ],
)
def test_a_fact_is_known_in_the_form_of_the_passage(claim: str, text: str) -> None:
    assert not facts.missing(facts.facts(claim), text)


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        ("It was flooded in 1947.", "It was flooded in the spring of fifty-eight."),
        ("Breakfast is at 8:30.", "Breakfast is at half past seven."),
        ("It closed in October 2025.", "Minutes of 2025-09-09: it is closed."),
        ("Elle coûte 23 500 couronnes.", "It costs 23,400 crowns."),
    ],
)
def test_another_fact_is_not(claim: str, text: str) -> None:
    assert facts.missing(facts.facts(claim), text)


def test_a_date_is_one_fact() -> None:
    claim = "It ran on 14 October 1987 for 3 hours."
    joined = facts.whole_dates(claim, facts.facts(claim))
    assert [fact.text for fact in joined] == ["14 October 1987", "3"]
    text = "Turned on on 14 October 1987, repaired on 2 May 1990 and on 1991-10-14."
    assert [text[begin:end] for begin, end in facts.occurrences(joined[0], text)] == ["14 October 1987", "1991-10-14"]
    assert [text[begin:end] for begin, end in facts.rivals(joined[0], claim, text)] == ["2 May 1990"]
