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
