"""Find dates in questions, file names and headings: days, months of a year, days and months of any year."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MONTHS = tuple(
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)
_MONTH = "(?P<month>(?:" + "|".join(f"{name}|{name[:3]}" for name in _MONTHS) + r"))\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\s+(?P<year>\d{4}))?"
_DAY_MONTH = re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}\b{_YEAR}", re.I)
_MONTH_DAY = re.compile(rf"\b{_MONTH}\s+{_DAY}\b(?!\d){_YEAR}", re.I)
_MONTH_ONLY = re.compile(
    rf"\b(?:in|of|from|during|since)\s+(?P<month>{'|'.join(_MONTHS)})\b(?!\s+\d{{1,2}}\b){_YEAR}", re.I
)
_ISO = re.compile(r"\b(?P<year>\d{4})-(?P<month>\d{2})(?:-(?P<day>\d{2}))?\b")


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
            number = int(month) if month.isdigit() else [name[:3] for name in _MONTHS].index(month[:3]) + 1
            all_dates.append(Date(int(parts["year"] or 0), number, int(parts.get("day") or 0)))
    return all_dates


def without_dates(text: str) -> str:
    """The text without its dates, and without a preposition before them."""
    for pattern in (_ISO, _DAY_MONTH, _MONTH_DAY, _MONTH_ONLY):
        text = re.sub(rf"(?:\b(?:on|of|at|in|from|dated)\s+)?{pattern.pattern}", " ", text, flags=re.I)
    return re.sub(r"\s+([?.,!])", r"\1", " ".join(text.split()))
