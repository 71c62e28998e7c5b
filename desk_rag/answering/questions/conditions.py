"""Conditions of a question that words alone cannot decide: 'not paid', 'over 500 euros', 'before March 2026'.

They are decided on the rows of tables: by a column that answers yes or no, by a number or by a date.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TypeVar

from desk_rag.answering.questions.matching import Row
from desk_rag.answering.requirements import amounts
from desk_rag.answering.requirements.dates import Date, dates
from desk_rag.answering.requirements.stems import content_stems

_YES = frozenset({"yes", "y", "true", "x", "✓", "✔", "1", "ja", "done"})
_NO = frozenset({"no", "n", "false", "-", "–", "✗", "✘", "0", "nein", "open"})
_NOT = re.compile(
    r"\b(?:(?:is|are|was|were|do|does|did|has|have|had)\s*)?(?:not|n't|n’t|never|no\s+longer)\s+"
    r"(?:(?:yet|been|be)\s+)*(?P<word>[\w-]+)(?:\s+yet)?",
    re.I,
)
_UN = re.compile(r"\b(?:(?:is|are|was|were)\s+)?un-?(?P<word>[a-z]{3,})\b", re.I)
_IS = re.compile(r"\b(?:(?:is|are|was|were)|(?:has|have)\s+been)\s+(?:already\s+)?(?P<word>[\w-]+)$", re.I)
_EXISTS = re.compile(r"\s+(?:(?:are|were)\s+there|do\s+(?:I|we)\s+have|exist)(?=\s|$)", re.I)
_ASKED = r"(?:(?:that|which|who)\s+)?(?:(?:is|are|was|were|cost|costs|costing|worth|of|for|with)\s+)*"
_MORE = "longer larger bigger heavier taller higher wider deeper older dearer thicker faster greater".split()  # noqa: SIM905
_LESS = "shorter smaller lighter lower narrower shallower younger cheaper thinner slower".split()  # noqa: SIM905
_NUMBER = re.compile(
    rf"\b{_ASKED}(?P<order>more\s+than|over|above|at\s+least|less\s+than|fewer\s+than|under|below|at\s+most|up\s+to"
    rf"|(?:more|less)\s+expensive\s+than|(?P<comparative>{'|'.join((*_MORE, *_LESS))})\s+than)\s+"
    r"[€$£¥]?\s?(?P<number>\d[\d,]*(?:\.\d+)?)(?:\s*(?P<unit>[^\W\d_]+|[€$£¥]))?",
    re.I,
)
_DATE = re.compile(
    rf"\b{_ASKED}(?P<order>before|after|since|until)\s+"
    r"(?P<date>(?:\d{1,2}(?:st|nd|rd|th)?\s+(?:of\s+)?)?[A-Za-z]{3,9}\.?(?:\s+\d{1,2}\b(?!\d))?(?:,?\s+\d{4})?"
    r"|\d{4}-\d\d(?:-\d\d)?|\d{4})(?!\w)",
    re.I,
)
_UNDECIDABLE = re.compile(r"\b(?:between\s.+?\sand|except|without|other\s+than|apart\s+from)\s+.+", re.I)

_T = TypeVar("_T", Decimal, tuple[int, int, int])


class Order(Enum):
    """Relation of a number or date to the one in the question."""

    BELOW = "below"
    UP_TO = "up to"
    FROM = "from"
    ABOVE = "above"


_ORDERS = {
    "more than": Order.ABOVE, "over": Order.ABOVE, "above": Order.ABOVE, "after": Order.ABOVE,
    "at least": Order.FROM, "since": Order.FROM, "at most": Order.UP_TO, "up to": Order.UP_TO, "until": Order.UP_TO,
    "less than": Order.BELOW, "fewer than": Order.BELOW, "under": Order.BELOW, "below": Order.BELOW,
    "before": Order.BELOW, "more expensive than": Order.ABOVE, "less expensive than": Order.BELOW,
    "exceeding": Order.ABOVE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decided:
    """The rows of tables that meet a condition."""

    rows: list[Row]
    by: str
    """The deciding cell or condition: 'Paid: no', 'over 500 euros'."""


@dataclass(frozen=True, slots=True)
class YesNo:
    """A condition that a column answers with yes or no."""

    asked: str
    word: str
    wanted: bool
    needed: bool
    """False if the words of the question say the same without a column."""

    def decide(self, rows: Sequence[Row]) -> Decided | None:
        """The rows that meet the condition, of tables with such a column; None if there is none."""
        meeting: list[Row] = []
        column = ""
        for path in dict.fromkeys(row.passage.path for row in rows):
            column = self._of_file(path, rows, meeting) or column
        return Decided(meeting, f"{column}: {'yes' if self.wanted else 'no'}") if column else None

    def _of_file(self, path: Path, rows: Sequence[Row], meeting: list[Row]) -> str:
        """Add the rows of one file that meet the condition; return the column, '' without one."""
        tables = [(row, amounts.fields_of(row.text)) for row in rows if row.passage.path == path]
        stems = content_stems(self.word)
        keys = next(({key for key in fields if content_stems(key) == stems} for _, fields in tables
                     if any(content_stems(key) == stems for key in fields)), set())  # fmt: skip
        if not stems or not keys:
            return ""
        column = min(keys)
        answers = [_yes(fields[column]) for _, fields in tables if column in fields]
        if None in answers:
            return ""
        others = {key for _, fields in tables if column in fields for key in fields}
        # An empty cell is left out of a row; it says no.
        for row, fields in tables:
            if len(fields) > 1 and fields.keys() <= others and _yes(fields.get(column, "no")) is self.wanted:
                meeting.append(row)
        return column


@dataclass(frozen=True, slots=True)
class Compared:
    """A condition on the number of a row."""

    asked: str
    order: Order
    number: Decimal
    unit: str

    def decide(self, rows: Sequence[Row]) -> Decided | None:
        """The rows of tables whose number meets the condition; None if no row has such a number."""
        known = [(row, amounts.amount_of(row.text, self.unit)) for row in rows if amounts.fields_of(row.text)]
        numbers = [(row, number) for row, number in known if number is not None]
        meeting = [row for row, number in numbers if in_order(number, self.number, self.number, self.order)]
        return Decided(meeting, self.asked) if numbers else None


@dataclass(frozen=True, slots=True)
class Dated:
    """A condition on the date of a row."""

    asked: str
    order: Order
    date: Date

    def decide(self, rows: Sequence[Row]) -> Decided | None:
        """The rows whose date meets the condition; None if no row has one date that can be compared."""
        known = [(row, dates(row.text)) for row in rows]
        dated = [(row, of_row[0]) for row, of_row in known if len(of_row) == 1 and of_row[0].day]
        years = {date.year for _, date in dated}
        if not dated or (not self.date.year and len(years) > 1) or (self.date.year and 0 in years):
            return None
        first, last = _bounds(self.date)
        meeting = [
            row
            for row, date in dated
            if in_order((date.year * bool(self.date.year), date.month, date.day), first, last, self.order)
        ]
        return Decided(meeting, self.asked)


@dataclass(frozen=True, slots=True)
class Undecidable:
    """A condition that nothing here decides."""

    asked: str

    def decide(self, rows: Sequence[Row]) -> Decided | None:
        """Return None: no row tells."""
        return None


Condition = YesNo | Compared | Dated | Undecidable


def needed(condition: Condition) -> bool:
    """True if an answer that does not regard the condition must say so."""
    return not isinstance(condition, YesNo) or condition.needed


def conditions(subject: str) -> tuple[str, list[Condition]]:
    """A question split into its topic and its conditions."""
    chosen: list[Condition] = []

    def dated(match: re.Match[str]) -> str:
        text = match["date"]
        of_text = dates(text) or dates(f"in {text}")
        if not of_text and not text.isdigit():
            return match.group()
        date = of_text[0] if of_text else Date(int(text), 0, 0)
        chosen.append(Dated(match.group().strip(), order_of(match), date))
        return " "

    def compared(match: re.Match[str]) -> str:
        number = Decimal(match["number"].replace(",", ""))
        chosen.append(Compared(match.group().strip(), order_of(match), number, match["unit"] or ""))
        return " "

    def answered(match: re.Match[str], wanted: bool, must: bool) -> str:
        chosen.append(YesNo(match.group().strip(), match["word"], wanted, must))
        return " "

    def undecidable(match: re.Match[str]) -> str:
        chosen.append(Undecidable(match.group().strip()))
        return " "

    rest = _UNDECIDABLE.sub(undecidable, _EXISTS.sub("", subject))
    rest = _DATE.sub(dated, rest)
    rest = _NUMBER.sub(compared, rest)
    rest = _NOT.sub(lambda match: answered(match, wanted=False, must=True), rest)
    rest = _UN.sub(lambda match: answered(match, wanted=False, must=False), rest)
    rest = _IS.sub(lambda match: answered(match, wanted=True, must=False), rest.strip())
    return " ".join(rest.split()), chosen


def order_of(match: re.Match[str]) -> Order:
    """The relation that the words of a match name."""
    if comparative := match.groupdict().get("comparative"):
        return Order.ABOVE if comparative.lower() in _MORE else Order.BELOW
    return _ORDERS[" ".join(match["order"].lower().split())]


def _yes(value: str) -> bool | None:
    """True if a cell says yes: a word for it, or the date on which it was done; None if that is not clear."""
    plain = value.strip().lower()
    if plain in _NO:
        return False
    return True if plain in _YES or dates(value) else None


def _bounds(date: Date) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """First and last day of a day, month or year."""
    last_month = date.month or 12
    last_day = date.day or calendar.monthrange(date.year or 2000, last_month)[1]
    return (date.year, date.month or 1, date.day or 1), (date.year, last_month, last_day)


def in_order(value: _T, first: _T, last: _T, order: Order) -> bool:
    """True if `value` is in this relation to the range from `first` to `last`."""
    match order:
        case Order.BELOW:
            return value < first
        case Order.UP_TO:
            return value <= last
        case Order.FROM:
            return value >= first
        case Order.ABOVE:
            return value > last
