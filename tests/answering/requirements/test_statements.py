"""What a sentence says of the thing asked about: that it is over, its contrary, another kind, an entry's date."""

from __future__ import annotations

from datetime import date

import pytest

from desk_rag.answering.requirements.objections import Objections
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.statements.dated_lines import dated_heading
from desk_rag.answering.requirements.statements.matters import is_contrary, is_of_another_kind
from desk_rag.answering.requirements.statements.offices import office_asked
from desk_rag.answering.requirements.statements.standing import asks_what_holds, asks_when_done, is_over, only_planned

TODAY = date(2026, 3, 1)
LOG = Place("Log\n\n2 March 2025\nFirst outing.\n\nSunday, 16 March 2025\nThe quad capsized at 10.15. Two swam.", "", 0)
LETTER = Place("4 May 2025\n\nDear Ana,\n\nthe roof is mended.", "", 0)
RULES = Place("Members may bring no dog. One barbecue is allowed.", "rules", 0)


@pytest.mark.parametrize(
    ("sentence", "over"),
    [
        ("I no longer use the drops (timolol).", True),
        ("We don't buy from Brask any more.", True),
        ("Ana was chair until 2023.", True),
        ("The rent was £575 until February 2026.", True),
        ("The rent is £575 until December 2026.", False),
        ("The fee is no longer £20 but £25.", False),
        ("Marten retired and Sofie was elected president.", False),
        ("The knife is used to cut rope.", False),
        ("The rent is £610.", False),
    ],
)
def test_what_is_over(sentence: str, over: bool) -> None:
    assert is_over(sentence, TODAY) is over


@pytest.mark.parametrize(
    ("question", "holds"),
    [
        ("Which drops do I use now?", True),
        ("Who is the chair?", True),
        ("Who was the chair?", False),
        ("Who was chair until 2023?", False),
        ("Do I still use the drops?", False),
        ("Why do I no longer use the drops?", False),
        ("When is the meeting?", False),
    ],
)
def test_a_question_for_what_holds(question: str, holds: bool) -> None:
    assert asks_what_holds(question) is holds


def test_what_is_over_loses_where_the_question_asks_for_what_holds() -> None:
    sentence = "I no longer use the drops for my eyes (timolol)."
    assert Objections("Which drops do I use for my eyes?").penalty(sentence) > 0
    assert Objections("Which drops did I use for my eyes?").penalty(sentence) == 0


@pytest.mark.parametrize(
    ("question", "sentence", "name"),
    [
        ("Who is the chair?", "Present: Peter Oakes (chair), Otto, Ruth.", "Peter Oakes"),
        ("Who conducts the choir now?", "Conductor: Helena Marsh.", "Helena Marsh"),
        ("Who manages the shop?", "Ole Brandt became manager in May.", "Ole Brandt"),
        ("Who conducts the choir?", "Clara will stand in for a term.", None),
    ],
)
def test_who_holds_an_office(question: str, sentence: str, name: str | None) -> None:
    office = office_asked(question)
    assert office is not None and office.holder_in(sentence) == name


def test_the_contrary_of_what_is_asked_loses() -> None:
    assert is_contrary("What is the rent for a half plot?", "The rent for a full plot is £42.")
    assert not is_contrary("What is the rent for a half plot?", "A full plot costs £42 and a half plot £25.")
    assert not is_contrary("What do adults pay?", "Grown-ups pay 18 crowns, children stay at nine.")
    assert not is_contrary("What is the rent?", "The rent for a full plot is £42.")


@pytest.mark.parametrize(
    ("question", "sentence", "another"),
    [
        ("May I bring a dog?", "One barbecue is allowed.", True),
        ("May I bring a dog?", "Members may bring no dog.", False),
        ("May I have a barbecue?", "Members may bring no dog.", True),
        ("May I bring a boat?", "Members may bring no dog.", False),  # the passage speaks of none
        ("Which dog may I bring?", "One barbecue is allowed.", False),
    ],
)
def test_a_question_for_yes_or_no_is_about_its_kind_of_thing(question: str, sentence: str, another: bool) -> None:
    assert is_of_another_kind(question, sentence, RULES) is another


def test_a_diary_says_its_day_above_the_entry() -> None:
    assert dated_heading(LOG, "Two swam.") == "Sunday, 16 March 2025"
    assert dated_heading(LOG, "First outing.") == "2 March 2025"
    assert dated_heading(LETTER, "the roof is mended.") == ""
    objections = Objections("When did two swim?")
    assert objections.penalty("Two swam.") + objections.of_origin(LOG, "Two swam.") == 0
    assert objections.penalty("Two swam.") > 0


@pytest.mark.parametrize(
    ("sentence", "planned"),
    [
        ("The annex was to be finished on 29 September 2023.", True),
        ("The painting should be done by 4 June 2024.", True),
        ("The pool is due to open on 3 May 2024.", True),
        ("The pool was due to open on 3 May 2024, but it opened on 9 May 2024.", False),
        ("The annex was finished on 10 November 2023.", False),
    ],
)
def test_a_plan_does_not_say_when_something_was_done(sentence: str, planned: bool) -> None:
    assert only_planned(sentence) is planned
    assert (Objections("When was it finished?").penalty(sentence) >= 5) is planned
    assert Objections("When was it due to be finished?").penalty(sentence) < 5


def test_only_questions_for_what_was_done_ask_when_it_was() -> None:
    assert asks_when_done("On what day was the pool opened?")
    assert not asks_when_done("When is the pool opened?")
    assert not asks_when_done("When was the pool to be opened?")
