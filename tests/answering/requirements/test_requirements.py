"""Sentences about another year, number, sheet or person than the question's are told apart from the right one."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.requirements import Fit, Requirements

SHELVES = "shelf: 3; content: clay\nshelf: 32; content: cartons"
WORKBOOK = "2022\nItem: Rent; Amount: 7200\n2023\nItem: Rent; Amount: 7440"
MINUTES = "The rent was put at 620 euros. The house was bought in 1998."
HANDBOOK = "Kiln 1\nKiln 1 is large. The fuse is number 14.\n\nKiln 2\nThe fuse is number 17."
LETTER = "12 December 2022\nfrom 1 January 2023 the rent is 620 euros.\nThe meter was read at 5161 units."
POLICY = "Car insurance\nCover from 14 June 2022 to 13 June 2023, comprehensive Premium: 512 crowns"
CARDS = "Gus Lind, Birthday: 3 May 1980\nGus Lind, Notes: brother of Maud\nAna Lind, Phone: 55 190"
MAIL = "From: Ana Ruiz; To: Ben Okafor; Date: 4 March 2023; Subject: Kiln\nplease fire below 1220."


def fit(question: str, text: str, sentence: str, labels: str = "") -> Fit:
    begin = text.index(sentence)
    return Requirements(question).worst(Place(text, labels, 0), begin, begin + len(sentence))


@pytest.mark.parametrize(
    ("question", "text", "sentence", "labels", "expected"),
    [
        ("What is on shelf 3?", SHELVES, "shelf: 3; content: clay", "", Fit.STATED),
        ("What is on shelf 3?", SHELVES, "shelf: 32; content: cartons", "", Fit.OTHER),
        ("What is INV-2024-002?", "Total of INV-2024-001: 5\nINV-2024-002", "Total of INV-2024-001: 5", "", Fit.OTHER),
        ("What is INV-2024-002?", "Total: 5\nfor INV-2024-002", "Total: 5", "", Fit.NEARBY),
        ("What happened at 16:04?", "16:04:19 shutdown\n17:12:40 start", "16:04:19 shutdown", "", Fit.STATED),
        ("What happened at 16:04?", "16:04:19 shutdown\n17:12:40 start", "17:12:40 start", "", Fit.OTHER),
        ("What was the rent in 2022?", WORKBOOK, "Item: Rent; Amount: 7200", "budget", Fit.STATED),
        ("What was the rent in 2023?", WORKBOOK, "Item: Rent; Amount: 7200", "budget", Fit.OTHER),
        ("What was the rent in 2023?", WORKBOOK, "Item: Rent; Amount: 7440", "budget", Fit.STATED),
        ("What was the rent in 2023?", MINUTES, "The rent was put at 620 euros.", "minutes-2023", Fit.STATED),
        ("What was the rent in 2024?", MINUTES, "The rent was put at 620 euros.", "minutes-2023", Fit.OTHER),
        ("When was it bought, 1998?", MINUTES, "The house was bought in 1998.", "minutes-2023", Fit.STATED),
        ("What did it cost in 2023?", MINUTES, "The house was bought in 1998.", "minutes-2023", Fit.NEARBY),
        ("Which fuse has kiln 2?", HANDBOOK, "The fuse is number 17.", "handbook", Fit.STATED),
        ("Which fuse has kiln 2?", HANDBOOK, "The fuse is number 14.", "handbook", Fit.OTHER),
        ("What was the meter reading in 2023?", LETTER, "The meter was read at 5161 units.", "", Fit.NEARBY),
        ("What was the meter reading in 2022?", LETTER, "The meter was read at 5161 units.", "", Fit.MISSING),
        ("What was the premium in 2022?", POLICY, "Premium: 512 crowns", "car-2022", Fit.STATED),
        ("What was the premium in 2023?", POLICY, "Premium: 512 crowns", "car-2022", Fit.OTHER),
        ("What was the premium in 2023?", POLICY, "Premium: 512 crowns", "", Fit.NEARBY),
        ("When is Maud's birthday?", CARDS, "Gus Lind, Birthday: 3 May 1980", "", Fit.OTHER),
        ("When is Maud's brother born?", CARDS, "Gus Lind, Birthday: 3 May 1980", "", Fit.NEARBY),
        ("When is Gus's birthday?", CARDS, "Gus Lind, Birthday: 3 May 1980", "", Fit.STATED),
        ("Who spoke on 7 June?", "2025-06-07 10:00 Ben spoke", "2025-06-07 10:00 Ben spoke", "", Fit.STATED),
        ("Who spoke on 8 June?", "2025-06-07 10:00 Ben spoke", "2025-06-07 10:00 Ben spoke", "", Fit.OTHER),
        ("Who teaches on Monday?", "Weekday: Thursday; Teacher: Ana", "Weekday: Thursday; Teacher: Ana", "", Fit.OTHER),
        ("What does Maud charge?", "She asks 85 crowns.", "She asks 85 crowns.", "", Fit.MISSING),
        ("What does Maud charge?", "Maud came. She asks 85 crowns.", "She asks 85 crowns.", "", Fit.NEARBY),
        ("What did Ana write to Ben?", MAIL, "please fire below 1220.", "", Fit.STATED),
        ("What did Ben write to Ana?", MAIL, "please fire below 1220.", "", Fit.OTHER),
    ],
)
def test_a_sentence_is_about_what_the_question_names_or_not(
    question: str, text: str, sentence: str, labels: str, expected: Fit
) -> None:
    assert fit(question, text, sentence, labels) is expected


@pytest.mark.parametrize(
    "question", ["How much does it cost?", "What may we build, and when?", "Is it over 500 euros?", "where is the key"]
)
def test_a_question_without_names_demands_nothing(question: str) -> None:
    assert not Requirements(question)


def test_what_is_unmet_is_named_in_the_words_of_the_question() -> None:
    place = Place(SHELVES, "", 0)
    assert Requirements("What is on shelf 7 in 2021?").unmet(place, 0, 23) == ("2021", "shelf 7")


def test_the_number_of_a_thing_hides_no_digit_of_a_day() -> None:
    assert Requirements("Why did press 1 stop on 13 October?").asked == ["13 October", "press 1"]


def test_a_word_before_a_day_names_no_numbered_thing() -> None:
    assert Requirements("What was used in the period 1 January to 31 December?").asked == ["1 January", "31 December"]


def test_what_a_line_tells_of_one_person_it_does_not_tell_of_another() -> None:
    place = Place("Ola gets braces in spring.\nAllergies: Bruno - penicillin and cashews. Helen - none.", "health", 0)
    begin = place.text.index("Allergies")
    line = (begin, begin + len("Allergies: Bruno - penicillin and cashews."))
    assert Requirements("What is Ola allergic to?").unmet(place, *line) == ("Ola",)
    assert Requirements("What is Bruno allergic to?").unmet(place, *line) == ()


def test_a_letter_behind_a_digit_is_no_name() -> None:
    assert "B" not in Requirements("What did class 7B's trip cost?").asked


@pytest.mark.parametrize(
    ("question", "row", "is_met"),
    [
        ("What was the subscription in 2018?", "Name: Ben Yew; Joined: 2018; Subscription: 120", False),
        ("Who joined in 2018?", "Name: Ben Yew; Joined: 2018; Subscription: 120", True),
        ("What was the subscription in 2018?", "Name: Ben Yew; Joined: 2001; Year: 2018; Subscription: 120", True),
        ("What was paid in on 30 June 2025?", "Date: 30/06/2025; Description: BOX OFFICE; Paid in: 1576.00", True),
        ("What was paid in on 2 January 2025?", "Date: 02/01/2025; Description: SUBS; Paid in: 1150.00", True),
        ("What was paid in on 3 June 2025?", "Date: 30/06/2025; Description: BOX OFFICE; Paid in: 1576.00", False),
        ("What was paid in on 30 June 2025?", "Date: 30.06.2025; Description: BOX OFFICE; Paid in: 1576.00", True),
        ("What was the subscription in 2023?", "The subscription for 2024 will be £135.", False),
    ],
)
def test_a_day_in_digits_is_one_and_a_beginning_is_no_year_of_a_row(question: str, row: str, is_met: bool) -> None:
    unmet = Requirements(question).unmet(Place(row, "", 0), 0, len(row))
    assert not unmet if is_met else unmet
