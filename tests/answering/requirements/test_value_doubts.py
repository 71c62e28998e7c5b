"""What the words around a value say against it as the answer to a question."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.amounts import not_the_sum
from desk_rag.answering.requirements.correspondence import asks_of_header
from desk_rag.answering.requirements.objections import Objections
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.rows import rows_alike
from desk_rag.answering.requirements.statements.drafts import is_draft
from desk_rag.answering.requirements.statements.matters import is_contrary
from desk_rag.answering.requirements.statements.value_doubts import ValueDoubts

QUAD = "Pip drives the quad bike, Josh may not."
EXCESS = "The excess from May is not 250 pounds but 350 pounds."
HOURS = "The office is open from 8.30 to 10.30, and closed on Sundays."
CAT = "animals: name: Duchess; breed: Persian; owner: Felicity Arkwright; brushing: daily"
BITE = "On Friday Pepper (collie, owner Amina Yusuf) was bitten by Bruno in the field."


@pytest.mark.parametrize(
    ("question", "sentence", "value", "reason"),
    [
        ("Who may not drive the quad bike?", QUAD, "Pip", "does not say “not”"),
        ("Who may not drive the quad bike?", QUAD, "Josh", ""),
        ("Who drives the quad bike?", QUAD, "Josh", "it is not “Josh”"),
        ("Who drives the quad bike?", QUAD, "Pip", ""),
        ("What is not included?", "Excluded: towels.", "towels", ""),
        ("Which invoice is not paid?", "Invoice: A-7; Status: unpaid", "A-7", ""),
        ("How much is the excess?", EXCESS, "250 pounds", "it is not “250 pounds”"),
        ("How much is the excess?", EXCESS, "350 pounds", ""),
        ("How much is charged for it?", "Late return after 17.30 is charged.", "17.30", "a time of day"),
        ("How much is charged for it?", "It costs 17.30 crowns.", "17.30", ""),
        ("When does Ana come in August 2024?", "Date: 1 July 2024", "1 July 2024", "another time"),
        ("When does Ana come in August 2024?", "Ana comes on 3 August.", "3 August", ""),
        ("When was the invoice of May paid?", "It was paid on 3 June.", "3 June", ""),
        ("When did it happen on Boxing Day?", "It was on 26 December.", "26 December", ""),
        (
            "What is Gus Lind's mobile number?",
            "Gus Lind, Phone (work): 0555 190 336",
            "0555 190 336",
            "a mobile number",
        ),
        ("What is Gus Lind's mobile number?", "Gus Lind, mobile: 0555 190 336", "0555 190 336", ""),
        ("When is the office closed?", HOURS, "8.30", "of the opposite"),
        ("When is the office closed?", HOURS, "Sundays", ""),
        ("When is the office open?", HOURS, "8.30", ""),
        ("Who was bitten by Pepper?", BITE, "Bruno", "it was done by “Bruno”"),
        ("Who bit Pepper?", BITE, "Bruno", ""),
        ("Who treated Pepper?", BITE, "Amina Yusuf", "is the owner"),
        ("Which animal is brushed daily?", CAT, "Persian", "stands under “breed”"),
        ("Which animal is brushed daily?", CAT, "Duchess", ""),
        ("Who owns Pepper?", BITE, "Amina Yusuf", ""),
    ],
)
def test_what_speaks_against_a_value(question: str, sentence: str, value: str, reason: str) -> None:
    begin = sentence.index(value)
    said = ValueDoubts(question, sentence).reason(begin, begin + len(value))
    assert reason in said and bool(said) == bool(reason)


@pytest.mark.parametrize(
    ("question", "sentence", "is_other"),
    [
        ("Who is the insurer?", "Insured: Hobbs Lane, Philippa Marsh.", True),
        ("Who is the insurer?", "Insured: Hobbs Lane; Insurer: Petersgate", False),
        ("Who is the employee?", "Employer: Hobbs Lane", True),
        ("Who is the painter?", "The hall was painted by Tovey.", False),
    ],
)
def test_one_party_is_not_the_other(question: str, sentence: str, is_other: bool) -> None:
    assert is_contrary(question, sentence) is is_other


def test_the_head_of_a_mail_says_who_wrote_when_and_nothing_else() -> None:
    head = "From: Ana Lind; To: Ben Carrow; Date: 19 December 2023; Subject: Shift"
    assert not asks_of_header("Who did the morning shift?") and asks_of_header("When did Ana tell Ben?")
    assert asks_of_header("Who is the composer of the music?") and not asks_of_header("Who composed the music?")
    assert Objections("Who did the morning shift?").penalty(head) > 0
    assert Objections("Who wrote about the shift?").penalty(head) == 0


def test_a_named_day_is_its_date() -> None:
    place = Place("Date: 2023-12-26; Morning: Kieran", "rota", 0)
    (asked, *_) = Requirements("Who was there on Boxing Day?").timed
    assert asked.fit(place, 0, len(place.text)) is Fit.STATED


def test_pounds_are_no_litres() -> None:
    assert not_the_sum("How many litres of oil did we get?", "4890", "Item: Heating oil; Amount: 4890")
    assert not not_the_sum("How many litres of oil did we get?", "2000", "2 October 2023    2000 litres   79.9 p")


@pytest.mark.parametrize(
    ("labels", "text", "draft"),
    [
        ("prices\nterms 2024 draft v2", "Deposit: 30 per cent", True),
        ("prices\nterms (copy)", "Deposit: 30 per cent", True),
        ("old\nterms", "Deposit: 30 per cent", True),
        ("letters\nOld Rectory invoice", "Total 30", False),
        ("shop\ndraught beer", "Total 30", False),
        ("prices\nterms 2024 FINAL", "The draft was 30 per cent.", False),
    ],
)
def test_names_say_what_is_a_draft(labels: str, text: str, draft: bool) -> None:
    assert is_draft(Place(text, labels, 0)) is draft
    assert is_draft(Place(f"Terms (DRAFT)\n{text}", "prices", 14))


def test_lines_in_columns_that_fit_as_well_are_counted() -> None:
    text = "Oil\n8 January 2023    1500 litres\n2 October 2023    2000 litres\n17 January 2024   1500 litres"
    quote = "2 October 2023    2000 litres"
    assert rows_alike("How many litres were delivered in 2023?", quote, "2000", [text]) == 1
    assert rows_alike("How many litres were delivered on 2 October 2023?", quote, "2000", [text]) == 0
