"""The cell that a question asks for is looked up by the words of question and table."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.rows import look_up

COURSES = Place(
    "Beginners\nWeekday; Teacher; Fee\nWeekday: Monday; Teacher: Ana; Fee: 95\n"
    "Weekday: Thursday; Teacher: Cleo; Fee: 90\n"
    "Advanced\nWeekday; Teacher; Fee\nWeekday: Monday; Teacher: Ben; Fee: 130\n"
    "Weekday: Thursday; Teacher: Ana; Fee: 125\n"
    "Children\nWeekday; Teacher; Fee\nWeekday: Saturday; Teacher: Cleo; Fee: 40",
    "courses",
    0,
)
SHELVES = Place("shelf: 1; content: earthenware; boxes: 3\nshelf: 3; content: clay; boxes: 1", "shelves", 0)
SALES = [
    Place("month: May; pieces: 77; income: 2460\nmonth: June; pieces: 52; income: 1580", f"sales-{year}", 0)
    for year in (2023, 2024)
]


INVOICES = Place(
    "2024\nNumber: INV-2024-001; Date: 2024-01-31; Client: Friends of Bethel; Gross: 6810; Paid on: 2024-02-20\n"
    "Number: INV-2024-002; Date: 2024-03-28; Client: Harrow; Gross: 6240; Paid on: 2024-04-15\n"
    "Number: INV-2024-003; Date: 2024-05-06; Client: Ines Pemberton; Gross: 3468; Paid on: OPEN",
    "accounts\n2024",
    0,
)
TAX = Place("Tax 2023/24\nIncome from self-employment 58,902\nIncome tax due 5,177\nProfit 38,455", "tax 2024", 0)
MINUTES = Place(
    "Minutes of 19 March\nPresent: Ana Ruiz, Gus (carpenter)\nThe premium is 20 (last year: 19).\n"
    "Martha Hollins, who wrote the report, may be reached on 01632 960 417.",
    "minutes",
    0,
)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When was INV-2024-002 paid?", "2024-04-15"),
        ("When did Friends of Bethel pay INV-2024-001?", "2024-02-20"),
        ("When was INV-2024-003 paid?", "OPEN"),
        ("When was INV-2024-009 paid?", None),
        ("How much income tax do I have to pay for 2023/24?", "5,177"),
        ("How much income tax do I have to pay for 2021/22?", None),
        ("How much income is there?", None),  # a tax is none
        ("Who was present on 19 March?", "Ana Ruiz, Gus (carpenter)"),
        ("What is the premium?", "20"),
        ("What is the phone number of Martha Hollins?", "01632 960 417"),
        ("What is the email address of Martha?", None),
        ("What is the phone number of Ana Ruiz?", None),
    ],
)
def test_a_line_that_says_what_is_asked(question: str, expected: str | None) -> None:
    lookup = look_up(question, [INVOICES, TAX, MINUTES])
    assert (lookup and lookup.place.text[slice(*lookup.value)]) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the fee of the advanced course on Thursday?", "125"),
        ("Who teaches the beginners on Monday?", "Ana"),
        ("What is the fee of the advanced course on Saturday?", None),
        ("What is the fee on Thursday?", None),  # two courses
        ("What is on shelf 3?", "clay"),
        ("How many boxes are on shelf 1?", "3"),
        ("What is on shelf 2?", None),
        ("What was the income in June 2023?", "1580"),
        ("What was the income in July 2023?", None),
        ("How old is Ana?", None),
    ],
)
def test_a_cell_is_looked_up_if_one_row_is_clearly_meant(question: str, expected: str | None) -> None:
    lookup = look_up(question, [COURSES, SHELVES, *SALES])
    assert (lookup and lookup.place.text[slice(*lookup.value)]) == expected


def test_the_other_of_two_cells_is_meant_if_row_and_file_name_have_all_words() -> None:
    selectors = Place(
        "selector: edge-query (default); selects: the first tokens of every passage\nselector: last; selects: the end",
        "recompute",
        0,
    )
    lookup = look_up("What does the selector edge-query recompute?", [selectors])
    assert lookup is not None and selectors.text[slice(*lookup.value)] == "the first tokens of every passage"
    assert look_up("What does the selector edge-query contain?", [selectors]) is None


def test_what_something_is_is_no_setting_of_that_name() -> None:
    settings = Place("stitched: several", "context", 0)
    assert look_up("What is a stitched context?", [settings]) is None
    assert look_up("What is stitched in the context?", [settings]) is not None
