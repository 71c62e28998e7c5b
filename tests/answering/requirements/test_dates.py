"""Answers that count from the day on which a document was written."""

from __future__ import annotations

from datetime import date

import pytest

from desk_rag.answering.requirements.dates import Date, dates, days_until, past_note, relative_note, when_asked

WRITTEN = date(2023, 11, 30)


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        ("two years from today", "“today” is 30 November 2023 in a.txt, so this is 30 November 2025 (computed)"),
        ("3 months from now", "“now” is 30 November 2023 in a.txt, so this is 29 February 2024 (computed)"),
        ("a week after this day", "“this day” is 30 November 2023 in a.txt, so this is 7 December 2023 (computed)"),
        ("by next Friday", "“next Friday” was written on 30 November 2023 in a.txt"),
        ("two years from 3 May 2024", ""),
        ("two years", ""),
    ],
)
def test_the_day_that_is_meant(answer: str, note: str) -> None:
    assert relative_note(answer, WRITTEN, "a.txt") == note


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("due on 2024-05-31", [Date(2024, 5, 31)]),
        ("the tax for 2024-25", []),
        ("version 2024-00-12", []),
        ("on 45 May", []),
        ("by 31st May 2024", [Date(2024, 5, 31)]),
    ],
)
def test_only_months_and_days_of_a_calendar_are_dates(text: str, expected: list[Date]) -> None:
    assert dates(text) == expected


@pytest.mark.parametrize(
    ("question", "answer", "is_past"),
    [
        ("When is the next meeting?", "13 February 2023", True),
        ("When does the next course begin?", "in March 2023", True),
        ("When is the next meeting?", "30 November 2023", False),
        ("When is the next meeting?", "November 2023", False),
        ("When is the next meeting?", "13 February", False),
        ("When is the meeting?", "13 February 2023", False),
        ("When was the next meeting?", "13 February 2023", False),
        ("When is the next meeting after 3 January 2023?", "13 February 2023", False),
    ],
)
def test_a_next_day_that_is_over_is_said_to_be_past(question: str, answer: str, is_past: bool) -> None:
    expected = f"“{answer}” is past, today is 30 November 2023" if is_past else ""
    assert past_note(question, answer, WRITTEN) == expected


def test_how_long_until_asks_for_a_day_and_is_counted() -> None:
    assert when_asked("How long until Harold retires?") == "When Harold retires?"
    assert when_asked("How many weeks are there until the lease ends?") == "When the lease ends?"
    assert when_asked("How long is the lease?") == ""
    assert when_asked("Is the lease still valid?") == "Until when is the lease valid?"
    assert when_asked("Has the lease expired?") == "Until when is the lease valid?"
    assert when_asked("Is it still raining?") == ""
    today = date(2026, 11, 26)
    assert days_until("on 6 December 2026", today) == "Today is 26 November 2026, so that is in 10 days (computed)"
    assert days_until("25 November 2026", today).endswith("so that was 1 day ago (computed)")
    assert days_until("in December", today) == ""
    assert days_until("from 1 May 2024 to 6 December 2026", today).endswith("so that is in 10 days (computed)")
