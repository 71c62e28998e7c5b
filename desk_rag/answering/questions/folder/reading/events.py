"""Read the entries of calendars, each with all its days: a weekly class of eight evenings has eight."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING

from desk_rag.answering.requirements.dates import Date, dates, later
from desk_rag.documents.formats import Format, format_of_name

if TYPE_CHECKING:
    from desk_rag.store.types import Passage

_ENTRY = re.compile(r"^(?P<name>.+?): (?P<when>\d{1,2} [A-Z][a-z]+ \d{4}(?: \d\d:\d\d)?)(?=[;\s]|$)")
_TASK = re.compile(r"^(?P<name>.+?); Due: (?P<when>\d{1,2} [A-Z][a-z]+ \d{4}(?: \d\d:\d\d)?)(?=[;\s]|$)")
_RULE = re.compile(r"; Repeats: (?P<rule>[^;]+)")
_LEFT_OUT = re.compile(r"; (?:Not on|Instead of): (?P<days>[^;]+)")
_UNITS = {"daily": "day", "weekly": "week", "monthly": "month", "yearly": "year"}
_WEEKDAYS = ("mo", "tu", "we", "th", "fr", "sa", "su")
_MOST_DAYS, _MOST_YEARS = 1000, 20
"""Days of an entry without an end that are known."""


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of a calendar."""

    passage: Passage
    line: str
    name: str
    when: str
    """Day and time at which it begins first: '3 December 2024 18:30'."""
    days: tuple[date, ...]
    """All its days, at most a thousand."""
    repeats: str
    """'weekly'; '' for an entry of one day."""
    is_endless: bool

    def at(self, day: date) -> str:
        """Return the day and time in words: '21 January 2025 18:30'."""
        clock = self.when.rpartition(" ")[2]
        return f"{day.day} {day:%B %Y}{f' {clock}' if ':' in clock else ''}"


def events(passages: Sequence[Passage]) -> Iterator[Event]:
    """The entries in the passages of a calendar without days that were called off or moved; none for other files."""
    entries = list(_entries(passages))
    moved = {(event.name, day) for event in entries for day in _moved_from(event.line)}
    for event in entries:
        days = tuple(day for day in event.days if (event.name, day) not in moved) if event.repeats else event.days
        yield event if len(days) == len(event.days) else replace(event, days=days)


def _moved_from(line: str) -> Iterator[date]:
    """The days that a line says its entry does not take place on, or takes the place of."""
    for match in _LEFT_OUT.finditer(line):
        for written in match["days"].split(", "):
            if (day := day_of(dates(written))) is not None:
                yield day


def _entries(passages: Sequence[Passage]) -> Iterator[Event]:
    for passage in passages:
        if format_of_name(passage.path.name) is not Format.CALENDAR:
            return
        for line in passage.chunk.text.split("\n"):
            match = _ENTRY.match(line) or _TASK.match(line)
            first = day_of(dates(match["when"])) if match is not None else None
            if match is None or first is None:
                continue
            rule = _RULE.search(line)
            repeated = _days(first, rule["rule"]) if rule is not None else ([first], "", False)
            if repeated is not None:
                days, repeats, is_endless = repeated
                yield Event(passage, line, match["name"], match["when"], tuple(days), repeats, is_endless)


def day_of(known: Sequence[Date]) -> date | None:
    """The one whole date of a text; None if there is none or several."""
    whole = {(day.year, day.month, day.day) for day in known if day.year and day.month and day.day}
    if len(whole) != 1:
        return None
    try:
        return date(*whole.pop())
    except ValueError:
        return None


def _days(first: date, rule: str) -> tuple[list[date], str, bool] | None:
    """The days of 'freq=weekly, count=8', how often it is, and whether it has no end; None for a rule not read."""
    parts = dict(part.split("=", 1) for part in rule.strip().split(", ") if "=" in part)
    unit = _UNITS.get(parts.pop("freq", ""))
    count, until, interval = parts.pop("count", ""), parts.pop("until", "")[:8], parts.pop("interval", "1")
    parts.pop("wkst", None)
    weekdays = [_WEEKDAYS.index(day) for day in parts.pop("byday", "").split(",") if day in _WEEKDAYS]
    if unit is None or parts or "byday=" in rule and (unit != "week" or not weekdays) or not interval.isdecimal():
        return None
    most = int(count) if count.isdecimal() else _MOST_DAYS
    last = date(int(until[:4]), int(until[4:6]), int(until[6:])) if until.isdecimal() and len(until) == 8 else date.max
    days: list[date] = []
    for number in range(_MOST_DAYS):
        begin = later(first, number * int(interval), unit)
        monday = begin - timedelta(days=begin.weekday())
        of_turn = [monday + timedelta(days=day) for day in weekdays] if weekdays else [begin]
        days += [day for day in of_turn if first <= day <= last]
        if len(days) >= most or begin > last or begin.year > first.year + _MOST_YEARS:
            break
    named = {"day": "daily", "week": "weekly", "month": "monthly", "year": "yearly"}[unit]
    return days[:most], named, not count and not until
