"""Read a span of time from a question, such as 'since 2022' or 'last month', and compare dates with it."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from desk_rag.answering.requirements.dates import MONTHS, Date, dates, in_words, later

_MONTH = "(?:" + "|".join(f"{name}|{name[:3]}" for name in MONTHS) + r")\.?"
_YEAR = r"(?:19\d\d|20[0-4]\d)"
DATE = (
    rf"(?:\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?|{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?\b(?!\d)"
    rf"(?:,?\s+{_YEAR})?|{_YEAR}-\d\d(?:-\d\d)?|{_MONTH}\s+{_YEAR}|{_YEAR}|{_MONTH}(?![\w’']))"
)
"""A day, a month or a year in a text."""
_NO_CODE = r"(?<!(?-i:[A-Z])-)"
"""Before a date that is no part of a number such as INV-2025-12."""
_THE = r"(?:the\s+(?:year|month|years|months)\s+(?:of\s+)?)?"
_BETWEEN = re.compile(
    rf"\b(?:between|from|in|of|during|for)?\s*{_THE}{_NO_CODE}(?P<first>{DATE}|\d{{1,2}}(?:st|nd|rd|th)?)\s*(?P<by>to|until|till|through|and|[-–])\s*"
    rf"(?P<last>{DATE})(?!\w)",
    re.I,
)
_SIDE = re.compile(
    rf"\b(?P<side>since|after|before|until|till|up\s+to|by|from)\s+{_THE}{_NO_CODE}(?P<one>{DATE})(?P<on>\s+on(?:wards?)?)?(?![\w-])",
    re.I,
)
_IN = re.compile(rf"\b(?:in|of|from|during|for|on|dated|within)?\s*{_THE}{_NO_CODE}(?P<one>{DATE})(?![\w-])", re.I)
_RELATIVE = re.compile(
    r"\b(?:in|of|from|during|for|within|over)?\s*(?:the\s+)?(?:"
    r"(?P<named>today|yesterday)|(?P<which>this|last|past|current|previous)\s+(?P<unit>day|week|month|quarter|year)"
    r"|(?:last|past)\s+(?P<count>\d{1,3})\s+(?P<units>days|weeks|months|years))\b",
    re.I,
)
_QUARTER = re.compile(
    rf"\b(?:in|of|from|during|for)?\s*(?:the\s+)?(?:q(?P<number>[1-4])|(?P<word>first|second|third|fourth)\s+quarter)"
    rf"\s+(?:of\s+)?(?P<year>{_YEAR})\b",
    re.I,
)
_AGE = re.compile(
    r"\b(?:(?:that|which)\s+)?(?:(?:is|are|was|were)\s+)?(?:"
    r"(?P<than>(?P<side>more|less|fewer|older|newer|younger)\s+than|over|under|at\s+least)\s+"
    r"(?P<count>\d{1,4}|an?|one|two|three|four|five|six)\s+(?P<unit>day|week|month|year)s?(?P<old>\s+(?:old|ago))?)\b",
    re.I,
)
_MOST_AGE = 1500
"""Years, months, weeks or days of an age."""
_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4}
_UNITS = {"days": 1, "weeks": 7, "months": 30, "years": 365}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of days, both ends included; year 0 stands for a month or day of any year."""

    first: tuple[int, int, int]
    last: tuple[int, int, int]

    def holds(self, day: Date) -> bool | None:
        """True if a date lies in the span, None if it is too vague to tell."""
        if not self.first[0]:
            if not day.month:
                return None
            return self.first[1:] <= (day.month, day.day or self.first[2]) <= self.last[1:]
        if not day.year:
            return None
        earliest = (day.year, day.month or 1, day.day or 1)
        latest = (day.year, day.month or 12, day.day or 31)
        if self.first <= earliest and latest[:2] <= self.last[:2] and (not day.day or latest <= self.last):
            return True
        return False if latest < self.first or earliest > self.last else None


@dataclass(frozen=True, slots=True)
class Period:
    """The time that a question names."""

    words: str
    """The words of the question."""
    spans: tuple[Span, ...]
    also: Period | None = None
    """Another period that must hold too: 'of 2024 and more than 30 days old'."""

    @property
    def is_relative(self) -> bool:
        """True if it is counted from today: 'last month'."""
        return bool(_RELATIVE.search(self.words))

    def holds(self, day: Date | None) -> bool | None:
        """True if a date lies in the period, None if it is unknown or too vague to tell."""
        if day is None:
            return None
        answers = {span.holds(day) for span in self.spans}
        holds = True if True in answers else None if None in answers else False
        if self.also is None or holds is False:
            return holds
        others = self.also.holds(day)
        return others if holds or others is False else None


def take_period(text: str, today: date) -> tuple[str, Period | None]:
    """A question's text without its period, and the period."""
    text, age = _take_age(text, today)
    text, period = _take_span(text, today)
    if age is None or period is None:
        return text, age or period
    return text, replace(period, words=f"{period.words} {age.words}", also=age)


def _take_age(text: str, today: date) -> tuple[str, Period | None]:
    """A text without an age such as 'more than 30 days old', and the days that have it."""
    for match in _AGE.finditer(text):
        side = (match["side"] or match["than"].split()[0]).lower()
        if side not in ("older", "newer", "younger") and not match["old"]:
            continue
        count, unit = _COUNTS.get(match["count"].lower()) or int(match["count"]), match["unit"].lower()
        if count > _MOST_AGE:
            continue
        day = later(today, -count, unit)
        is_young, is_from = side in ("less", "fewer", "newer", "younger", "under"), side == "at"
        bound = (day.year, day.month, day.day)
        last = (9999, 12, 31)
        span = Span(_next(bound), last) if is_young else Span((1, 1, 1), bound if is_from else _previous(bound))
        words = match.group()[match.start("than") - match.start() :]
        which = "after" if is_young else "until" if is_from else "before"
        return _without(text, match), Period(f"{words} ({which} {in_words(Date(*bound))})", (span,))
    return text, None


def _take_span(text: str, today: date) -> tuple[str, Period | None]:
    """A text without its span of time, and the span."""
    for pattern, spans_of in ((_RELATIVE, _relative), (_QUARTER, _quarter), (_BETWEEN, _between), (_SIDE, _side)):
        for match in pattern.finditer(text):
            if spans := spans_of(match, today):
                return _without(text, match), Period(match.group().strip(), spans)
    singles = [match for match in _IN.finditer(text) if _is_date(match, text)]
    spans = tuple(span for match in singles if (span := _span(match["one"])) is not None)
    if not spans:
        return text, None
    for match in reversed(singles):
        text = _without(text, match)
    return text, Period(" and ".join(match.group().strip() for match in singles), spans)


def _is_date(match: re.Match[str], text: str) -> bool:
    """True unless a word such as 'may' or a bare 'march' is no month: months have a capital or stand behind 'in'."""
    one = match["one"]
    if re.fullmatch(_MONTH, one, re.I):
        if not one[0].isupper():
            return bool(re.match(rf"(?:in|during|since)\s+(?:{'|'.join(MONTHS)})$", match.group().strip(), re.I))
        return match.group().strip() != one or match.start() > 0
    return bool(re.search(r"\d", one))


def _without(text: str, match: re.Match[str]) -> str:
    return " ".join(f"{text[: match.start()]} {text[match.end() :]}".split())


def _span(text: str) -> Span | None:
    """The days of one date, month or year."""
    if re.fullmatch(_YEAR, text):
        return Span((int(text), 1, 1), (int(text), 12, 31))
    of_text = dates(text) or dates(f"in {_long(text)}")
    return _span_of(of_text[0]) if of_text else None


def _long(text: str) -> str:
    """The text with the name of its month written out."""
    word = re.match(r"[A-Za-z]+", text)
    if word is None:
        return text
    name = next((name for name in MONTHS if name.startswith(word.group().lower())), word.group())
    return name.capitalize() + text[word.end() :].removeprefix(".")


def _span_of(day: Date) -> Span:
    last_month = day.month or 12
    last_day = day.day or calendar.monthrange(day.year or 2000, last_month)[1]
    return Span((day.year, day.month or 1, day.day or 1), (day.year, last_month, last_day))


def _between(match: re.Match[str], today: date) -> tuple[Span, ...]:
    last = _span(match["last"])
    day = re.fullmatch(r"(\d{1,2})\D*", match["first"])
    if day is not None and last is not None:  # 'from 3 to 5 May'
        begin = (*last.first[:2], int(day[1]))
        return (Span(begin, last.last),) if last.first == last.last and begin <= last.last else ()
    first = _span(match["first"])
    if first is None or last is None:
        return ()
    if match["by"].lower() == "and" and not match.group().lower().lstrip().startswith("between"):
        return (first, last)
    if not first.first[0] and last.last[0]:
        first = Span((last.last[0], *first.first[1:]), (last.last[0], *first.last[1:]))
    return (Span(first.first, last.last),) if first.first <= last.last else ()


def _side(match: re.Match[str], today: date) -> tuple[Span, ...]:
    span, side = _span(match["one"]), " ".join(match["side"].lower().split())
    if span is None or (side == "from" and not match["on"]):
        return ()
    if not span.first[0]:
        span = Span((today.year, *span.first[1:]), (today.year, *span.last[1:]))
    match side:
        case "since" | "from":
            return (Span(span.first, (9999, 12, 31)),)
        case "after":
            return (Span(_next(span.last), (9999, 12, 31)),)
        case "before":
            return (Span((1, 1, 1), _previous(span.first)),)
        case _:
            return (Span((1, 1, 1), span.last),)


def _relative(match: re.Match[str], today: date) -> tuple[Span, ...]:
    if match["count"]:
        first = today - timedelta(days=int(match["count"]) * _UNITS[match["units"].lower()])
        return (_days(first, today),)
    if match["named"]:
        day = today - timedelta(days=match["named"].lower() == "yesterday")
        return (_days(day, day),)
    before = match["which"].lower() not in ("this", "current")
    first, last = _unit(match["unit"].lower(), today)
    if before:
        last = first - timedelta(days=1)
        first, _ = _unit(match["unit"].lower(), last)
    return (_days(first, last),)


def _unit(unit: str, day: date) -> tuple[date, date]:
    """First and last day of the day, week, month, quarter or year that holds `day`."""
    if unit == "day":
        return day, day
    if unit == "week":
        monday = day - timedelta(days=day.weekday())
        return monday, monday + timedelta(days=6)
    first_month, months = {"month": (day.month, 1), "quarter": ((day.month - 1) // 3 * 3 + 1, 3)}.get(unit, (1, 12))
    last_month = first_month + months - 1
    return date(day.year, first_month, 1), date(day.year, last_month, calendar.monthrange(day.year, last_month)[1])


def _quarter(match: re.Match[str], today: date) -> tuple[Span, ...]:
    number = int(match["number"] or _ORDINALS[match["word"].lower()])
    first, last = _unit("quarter", date(int(match["year"]), 3 * number, 1))
    return (_days(first, last),)


def _days(first: date, last: date) -> Span:
    return Span((first.year, first.month, first.day), (last.year, last.month, last.day))


def _next(day: tuple[int, int, int]) -> tuple[int, int, int]:
    following = date(*day) + timedelta(days=1)
    return following.year, following.month, following.day


def _previous(day: tuple[int, int, int]) -> tuple[int, int, int]:
    before = date(*day) - timedelta(days=1)
    return before.year, before.month, before.day


def merged(days: Sequence[Date]) -> str:
    """Return the first and last of some dates: '2 May 2023 to 29 December 2024'; '' without any."""
    exact = [day for day in days if day.year and day.month]
    known = sorted(exact or (day for day in days if day.year), key=lambda day: (day.year, day.month, day.day))
    if not known:
        return ""
    first, last = in_words(known[0]), in_words(known[-1])
    return first if first == last else f"{first} to {last}"
