"""Calendar entries that repeat have all their days, and an age in a question is counted from today."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from desk_rag.answering.questions.folder.days import lines_of_day
from desk_rag.answering.questions.folder.reading.events import Event, events
from desk_rag.answering.questions.folder.reading.periods import take_period
from desk_rag.answering.requirements.dates import Date, later
from desk_rag.documents.chunking import Chunk, ChunkId, Location
from desk_rag.store.types import FileStamp, Passage

TODAY = date(2026, 3, 31)


def entries(line: str) -> list[Event]:
    chunk = Chunk(ChunkId("c"), 0, f"Title\n{line}", 9, Location())
    return list(events([Passage(chunk, Path("/desk/team.ics"), "", FileStamp(1, 2, 3, "p"))]))


@pytest.mark.parametrize(
    ("rule", "last", "count", "is_endless"),
    [
        ("freq=weekly, count=8", date(2025, 1, 21), 8, False),
        ("freq=weekly, interval=2, count=3", date(2024, 12, 31), 3, False),
        ("freq=weekly, byday=tu,fr, count=4", date(2024, 12, 13), 4, False),
        ("freq=daily, until=20241205t170000z", date(2024, 12, 5), 3, False),
        ("freq=monthly, count=2", date(2025, 1, 3), 2, False),
        ("freq=yearly", date(2045, 12, 3), 22, True),
    ],
)
def test_an_entry_has_all_its_days(rule: str, last: date, count: int, is_endless: bool) -> None:
    (event,) = entries(f"Class: 3 December 2024 18:30 to 20:00; Repeats: {rule}")
    assert (event.days[-1], len(event.days), event.is_endless) == (last, count, is_endless)
    assert event.at(event.days[0]) == "3 December 2024 18:30"


def test_a_rule_that_is_not_read_gives_no_days_rather_than_wrong_ones() -> None:
    assert entries("Rent: 3 December 2024; Repeats: freq=monthly, byday=1fr, count=3") == []


def test_days_that_were_called_off_or_moved_are_no_days_of_the_series() -> None:
    series = "Class: 3 December 2024 18:30; Repeats: freq=weekly, count=4; Not on: 10 December 2024 18:30"
    moved = "Class: 18 December 2024 19:00; Instead of: 17 December 2024 18:30"
    first, second = entries(f"{series}\n{moved}")
    assert first.days == (date(2024, 12, 3), date(2024, 12, 24)) and second.days == (date(2024, 12, 18),)


def test_a_month_later_ends_with_its_month() -> None:
    assert later(TODAY, -1, "month") == date(2026, 2, 28)


@pytest.mark.parametrize(
    ("question", "rest", "inside", "outside"),
    [
        ("invoices more than 30 days old", "invoices", Date(2026, 2, 28), Date(2026, 3, 1)),
        ("invoices that are older than a year", "invoices", Date(2025, 3, 30), Date(2025, 3, 31)),
        ("invoices less than two weeks old", "invoices", Date(2026, 3, 18), Date(2026, 3, 17)),
        ("invoices of 2024 older than 30 days", "invoices", Date(2024, 5, 1), Date(2025, 5, 1)),
    ],
)
def test_an_age_is_counted_from_today(question: str, rest: str, inside: Date, outside: Date) -> None:
    left, period = take_period(question, TODAY)
    assert left == rest
    assert period is not None
    assert (period.holds(inside), period.holds(outside)) == (True, False)


def test_a_length_of_time_is_no_age() -> None:
    assert take_period("contracts longer than two years", TODAY)[1] is None


def test_what_happened_on_a_day_shows_its_lines_of_a_diary() -> None:
    text = "4 May 2024 Quiet. Otto came. 5 May 2024 The vet came. All is well. " + "6 May 2024 Rain again. " * 12
    chunk = Chunk(ChunkId("c"), 0, f"Diary\n{text}", 9, Location())
    diary = Passage(chunk, Path("/desk/diary 2024.md"), "Diary", FileStamp(1, 2, 3, "p"))
    period = take_period("What happened on 5 May 2024", TODAY)[1]
    assert period is not None
    assert [one.row.text for one in lines_of_day(diary, set(), period)] == ["5 May 2024 The vet came.", "All is well."]
    assert [one.row.text for one in lines_of_day(diary, {"vet"}, period)] == ["5 May 2024 The vet came."]
