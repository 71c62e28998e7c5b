"""Find dates in questions, file names and headings: days, months of a year, days and months of any year."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

MONTHS = tuple(
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
A_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
"""A year in a text or a name, by itself or in a date."""
_MONTH = "(?P<month>(?:" + "|".join(f"{name}|{name[:3]}" for name in MONTHS) + r"))\.?"
_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\s+(?P<year>\d{4}))?"
_DAY_MONTH = re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}\b{_YEAR}", re.I)
_MONTH_DAY = re.compile(rf"\b{_MONTH}\s+{_DAY}\b(?!\d){_YEAR}", re.I)
_MONTH_ONLY = re.compile(
    rf"\b(?:in|of|from|during|since)\s+(?P<month>{'|'.join(MONTHS)})\b(?!\s+\d{{1,2}}\b){_YEAR}", re.I
)
_NUMERIC = re.compile(
    r"(?<![\d./-])(?P<first>\d{1,2})(?P<by>[./])(?P<second>\d{1,2})(?P=by)(?P<year>(?:19|20)\d\d)(?!\d)"
)
_ISO = re.compile(
    r"\b(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])(?:-(?P<day>0[1-9]|[12]\d|3[01])\b|\b(?<!(?-i:[A-Z\d])[-/]\d{4}-\d\d))"
)
"""The month of a year is none in a number such as 'KP-310-2021-05'."""
_COUNTS = "one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
_PERIOD = re.compile(
    rf"\b(?P<count>\d{{1,3}}|{'|'.join(_COUNTS)}|an?)\s+(?P<unit>day|week|month|year)s?\s+(?:from|after|as\s+of)\s+"
    r"(?P<start>today|now|this\s+day|this\s+date|the\s+date\s+(?:of\s+this\s+\w+|above))\b",
    re.I,
)
_RELATIVE = re.compile(
    r"\b(?:today|tomorrow|yesterday|tonight|(?:this|next|last)\s+(?:week|month|year|spring|summer|autumn|winter|weekend"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day))\b",
    re.I,
)
_HOW_LONG_UNTIL = re.compile(
    r"^how\s+(?:long|many\s+(?:days|weeks|months|years))\s+(?:(?:is|are)\s+(?:it|there|left)\s+)?(?:until|till|before)\s+(?P<event>\S.*)",
    re.I | re.S,
)
_STILL_VALID = re.compile(
    r"^(?:(?P<verb>is|are)\s+(?P<thing>.+?)\s+still\s+(?:valid|in\s+(?:force|date)|current|running|under\s+guarantee)"
    r"|ha(?:s|ve)\s+(?P<ended>.+?)\s+(?:already\s+)?(?:expired|lapsed|run\s+out))\W*$",
    re.I,
)
_ASKS_NEXT = re.compile(r"\b(?:is|are|will|does|do)\b.*\b(?:next|upcoming)\b", re.I)


@dataclass(frozen=True, slots=True)
class Date:
    """A day, a month of a year, or a day or month of any year; 0 stands for any."""

    year: int
    month: int
    day: int

    def stands_in(self, text: str) -> bool:
        """True if a text with one date, such as a file name or the heading of a mail, has this date."""
        return any(
            self.month == other.month
            and (not self.day or not other.day or self.day == other.day)
            and (not self.day or bool(other.day))
            and (not self.year or not other.year or self.year == other.year)
            for other in dates(text)
        )


def dates(text: str) -> list[Date]:
    """The dates in a text."""
    all_dates = []
    for pattern in (_ISO, _DAY_MONTH, _MONTH_DAY, _MONTH_ONLY):
        for match in pattern.finditer(text.replace("_", "-") if pattern is _ISO else text):
            parts = match.groupdict()
            month = parts["month"].lower().rstrip(".")
            number = int(month) if month.isdigit() else [name[:3] for name in MONTHS].index(month[:3]) + 1
            all_dates.append(Date(int(parts["year"] or 0), number, int(parts.get("day") or 0)))
    return all_dates


def numeric_dates(text: str) -> Iterator[tuple[int, list[Date]]]:
    """The begin of each date such as '30/06/2025', with the days that it may mean: '02/01/2025' is one of two."""
    for match in _NUMERIC.finditer(text):
        first, second = int(match["first"]), int(match["second"])
        months = {second: first, first: second} if first != second else {first: first}
        valid = [(month, day) for month, day in months.items() if 0 < month <= 12 and 0 < day <= 31]
        days = [Date(int(match["year"]), month, day) for month, day in valid]
        if days:
            yield match.start(), days[:1] if match["by"] == "." else days


def without_dates(text: str) -> str:
    """The text without its dates, and without a preposition before them."""
    for pattern in (_ISO, _DAY_MONTH, _MONTH_DAY, _MONTH_ONLY):
        text = re.sub(rf"(?:\b(?:on|of|at|in|from|dated)\s+)?{pattern.pattern}", " ", text, flags=re.I)
    return re.sub(r"\s+([?.,!])", r"\1", " ".join(text.split()))


def relative_note(answer: str, written: date, name: str) -> str:
    """A sentence that names the day meant by an answer such as 'two years from today'; empty for other answers."""
    period = _PERIOD.search(answer)
    if period is not None:
        count = period["count"].lower()
        number = int(count) if count.isdigit() else 1 if count in ("a", "an") else _COUNTS.index(count) + 1
        end = later(written, number, period["unit"].lower())
        return f"“{period['start']}” is {in_words(written)} in {name}, so this is {in_words(end)} (computed)"
    relative = _RELATIVE.search(answer)
    return f"“{relative.group()}” was written on {in_words(written)} in {name}" if relative is not None else ""


def past_note(question: str, answer: str, today: date) -> str:
    """A sentence that says that a day given as the next one is past; empty for other questions and days."""
    days = [one for one in dates(answer) if one.year]
    if not days or dates(question) or not _ASKS_NEXT.search(question):
        return ""
    latest = max((one.year, one.month, one.day or 31) for one in days)
    is_past = latest < (today.year, today.month, today.day)
    return f"“{answer.strip()}” is past, today is {in_words(today)}" if is_past else ""


def when_asked(question: str) -> str:
    """The question for the day itself, where one asks how long it is until then, or whether it is past; else ''."""
    plain = " ".join(question.split())
    if still := _STILL_VALID.match(plain):
        return f"Until when {(still['verb'] or 'is').lower()} {still['thing'] or still['ended']} valid?"
    match = _HOW_LONG_UNTIL.match(plain)
    return f"When {match['event']}" if match is not None else ""


def days_until(answer: str, today: date) -> str:
    """A sentence that says how far off the day of an answer is; empty if it names none in full."""
    days = [one for one in dates(answer) if one.year and one.month and one.day]
    days = days[-1:] if answer.startswith("from ") else days
    if len(days) != 1:
        return ""
    try:
        away = (date(days[0].year, days[0].month, days[0].day) - today).days
    except ValueError:  # 31 February
        return ""
    number = f"{abs(away):,} day{'' if abs(away) == 1 else 's'}"
    return f"Today is {in_words(today)}, so that {f'is in {number}' if away >= 0 else f'was {number} ago'} (computed)"


def later(day: date, count: int, unit: str) -> date:
    """The day that is so many days, weeks, months or years later; the last of its month if there is no such day."""
    if unit in ("day", "week"):
        return day + timedelta(days=count * (7 if unit == "week" else 1))
    month = day.year * 12 + day.month - 1 + count * (12 if unit == "year" else 1)
    year, month = divmod(month, 12)
    return date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


def in_words(day: Date | date | None) -> str:
    """Return a date in words: '12 March 2021', 'March 2021' or '2021'; '' for an unknown one."""
    if day is None:
        return ""
    month = MONTHS[day.month - 1].capitalize() if day.month else ""
    return " ".join(filter(None, [str(day.day) if day.day else "", month, str(day.year) if day.year else ""]))
