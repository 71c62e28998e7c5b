"""Find mentions of years, months, days, weekdays and numbered things, in questions and in passages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

from desk_rag.answering.requirements.dates import MONTHS, numeric_dates
from desk_rag.answering.requirements.stems import content_stems

Value = str | int | tuple[int, int]

_WEEKDAYS = tuple("monday tuesday wednesday thursday friday saturday sunday".split())  # noqa: SIM905
_YEAR = re.compile(
    r"(?<![\w.,])(?P<year>(?:19\d\d|20[0-4]\d))(?![\w]|[.,]\d)|(?:(?<=[_-])|(?<=\d\.\d\d\.))(?P<last>20[0-4]\d)(?!\d)"
)
_MONTH_NAMES = "|".join(name if name in ("may", "march") else f"{name}|{name[:3]}" for name in MONTHS)
_MONTH = re.compile(rf"(?<![\w])(?P<name>{_MONTH_NAMES})\.?(?![\w'’])", re.I)
_ISO_MONTH = re.compile(r"(?<!\d)(?:19|20)\d\d-(?P<number>[01]\d)(?:-(?P<day>[0-3]\d))?(?!\d)")
_DAY_MONTH = re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\.?\s+(?:of\s+)?(?P<name>{_MONTH_NAMES})\b", re.I)
_MONTH_DAY = re.compile(rf"\b(?P<name>{_MONTH_NAMES})\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?!\d)", re.I)
_HOLIDAYS = {
    "new year's day": (1, 1), "valentine's day": (2, 14), "halloween": (10, 31), "christmas eve": (12, 24),
    "christmas day": (12, 25), "boxing day": (12, 26), "new year's eve": (12, 31),
}  # fmt: skip
"""Days of the year that have a name."""
_HOLIDAY = re.compile(rf"\b(?P<name>{'|'.join(_HOLIDAYS)})\b".replace("'", "['’]"), re.I)
_WEEKDAY = re.compile(rf"\b(?P<name>{'|'.join(_WEEKDAYS)})s?\b", re.I)
_NUMBER = r"\d+(?:[./-]\d+)*[a-z]?"
_NUMBERED = re.compile(
    rf"\b(?P<noun>[a-z]{{3,}})(?:\s+(?:no\.?|nr\.?|number)\s*|\s*#\s*|\s+)"
    rf"(?P<number>{_NUMBER})(?![\w%°€$£]|[.,:]\d|(?:st|nd|rd|th)?\s+(?:of\s+)?(?:{_MONTH_NAMES})\b)",
    re.I,
)
CODE = re.compile(r"(?<![\w/.-])(?=[\w/-]*\d)(?=[\w/-]*[^\W\d_])[\w]+(?:[/-]\w+)*(?![\w/])")
"""A word of letters and digits, such as INV-2024-003, D4 and 7kW."""
_CLOCK = re.compile(r"(?<![\d.:-])(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)(?!\d)")
_AT_CLOCK = re.compile(rf"\bat\s+{_CLOCK.pattern}", re.I)
_NOT_NUMBERED = frozenset(
    """
    about above after again all amount and another any apr april are around aug august autumn before below
    between beyond but can cost costs day dec december did does during each every except fall feb february first
    for friday from gets got had has have hour into jan january jul july jun june last least less made mar march
    may minus monday month more most near next not nov november number oct october only onto other over paid
    past pay pays per plus price saturday season sep sept september since sold some spring summer sunday take
    takes than that the then there these they this those thursday till times took total tuesday under until upto
    was wednesday week were what when where which while winter with within without year
    """.split()  # noqa: SIM905
)
"""Words before a number that name no numbered thing."""
ENUMERATED = content_stems("rule point item article clause section paragraph step condition question exercise")
"""Things whose number may stand in front of a line: '5. Sweep the floor.'"""
_LEADING = re.compile(r"^\W{0,3}(?P<number>\d{1,3})[.)]?\s")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value that texts mention: years, days, shelves by their number, reference numbers of one form."""

    name: str
    find: Callable[[str], Iterator[tuple[int, Value]]]
    """Function that yields the values in a text with their places."""
    is_time: bool = False

    def values(self, text: str) -> frozenset[Value]:
        """All values of this kind in a text."""
        return frozenset(value for _, value in self.find(text))

    def last(self, text: str) -> frozenset[Value]:
        """The last value of this kind in a text; empty without one."""
        return frozenset(value for _, value in sorted(self.find(text), key=itemgetter(0))[-1:])


def _numbers_of(noun: str, text: str) -> Iterator[tuple[int, Value]]:
    """The numbers of things of one name, by its stem: of shelves, rooms, invoices."""
    pattern = re.compile(
        rf"(?<![^\W_]){re.escape(noun)}[a-z]{{0,3}}(?:\s+(?:no\.?|nr\.?|number))?[\s:#_=-]{{1,3}}"
        rf"(?P<numbers>{_NUMBER}(?:(?:\s*,\s*|\s+(?:and|or|to)\s+)\d+[a-z]?)*)(?![\w]|[.,:]\d)",
        re.I,
    )
    for match in pattern.finditer(text):
        for number in re.findall(_NUMBER, match["numbers"], re.I):
            yield match.start(), _plain(number)
    if noun in ENUMERATED and (leading := _LEADING.match(text)):
        yield leading.start(), _plain(leading["number"])


def _codes_of(form: str, text: str) -> Iterator[tuple[int, Value]]:
    """The reference numbers of one form: INV-2024-002 and INV-2024-003 are two of them."""
    for match in CODE.finditer(text):
        if _form(match.group()) == form:
            yield match.start(), match.group().lower()


def codes(question: str) -> Iterator[tuple[Kind, Value, str]]:
    """The reference numbers of a question that begin with letters: kind, value and the words."""
    for match in CODE.finditer(question):
        if match.group()[0].isalpha():
            form = _form(match.group())
            yield Kind(form, partial(_codes_of, form)), match.group().lower(), match.group()


def _form(code: str) -> str:
    """A code in small letters, with each run of digits as one 0."""
    return re.sub(r"\d+", "0", code.lower())


def dated_kinds(question: str) -> Iterator[tuple[Kind, Value, str]]:
    """The years, months, days and weekdays of a question: kind, value and the words."""
    bare = _without_numbered(question)
    for match in _YEAR.finditer(bare):
        yield YEAR, int(match.group()), match.group()
    days = [*_DAY_MONTH.finditer(bare), *_MONTH_DAY.finditer(bare)]
    for match in days:
        yield DAY, (_month(match["name"]), int(match["day"])), match.group()
    for holiday in _HOLIDAY.finditer(bare):
        yield DAY, _holiday(holiday["name"]), holiday.group()
    iso = list(_ISO_MONTH.finditer(bare))
    for match in iso:
        if match["day"]:
            yield DAY, (int(match["number"]), int(match["day"])), match.group()
        else:
            yield MONTH, int(match["number"]), match.group()
    for match in _MONTH.finditer(bare):
        inside = any(day.start() <= match.start() < day.end() for day in days)
        if not inside and match["name"][0].isupper() and match.start():
            yield MONTH, _month(match["name"]), match["name"]
    for match in _AT_CLOCK.finditer(bare):
        yield CLOCK, (int(match["hour"]), int(match["minute"])), f"{match['hour']}:{match['minute']}"
    for match in _WEEKDAY.finditer(bare):
        yield WEEKDAY, match["name"].lower(), match.group()


def numbered_kinds(question: str) -> Iterator[tuple[Kind, Value, str]]:
    """The numbered things of a question, such as 'shelf 3' and 'invoice 2024-08': kind, number and the words."""
    for match in _numbered(question):
        stems = content_stems(match["noun"])
        if stems:
            noun = next(iter(stems))
            yield Kind(noun, partial(_numbers_of, noun)), _plain(match["number"]), match.group()


def is_time(word: str) -> bool:
    """True for the name of a month or weekday."""
    return word.lower() in MONTHS or word.lower() in _WEEKDAYS or word.lower().rstrip("s") in _WEEKDAYS


def _numbered(question: str) -> Iterator[re.Match[str]]:
    for match in _NUMBERED.finditer(question):
        is_year = _YEAR.fullmatch(match["number"])
        if match["noun"].lower() not in _NOT_NUMBERED and not is_year:
            yield match


def _without_numbered(question: str) -> str:
    """The question without the numbers of things: 2023-07 in 'invoice 2023-07' is no month."""
    for _, _, code in codes(question):
        question = question.replace(code, " " * len(code))
    for match in list(_numbered(question)):
        begin, end = match.span("number")
        question = f"{question[:begin]}{' ' * (end - begin)}{question[end:]}"
    return question


def _plain(number: str) -> str:
    return number.lower().lstrip("0") or "0"


def _month(name: str) -> int:
    return [month[:3] for month in MONTHS].index(name.lower()[:3]) + 1


def _holiday(name: str) -> tuple[int, int]:
    return _HOLIDAYS[name.lower().replace("’", "'")]


def _years(text: str) -> Iterator[tuple[int, Value]]:
    return ((match.start(), int(match.group())) for match in _YEAR.finditer(text))


def _months(text: str) -> Iterator[tuple[int, Value]]:
    for match in _MONTH.finditer(text):
        if match["name"][0].isupper() or _DAY_MONTH.match(text, max(0, match.start() - 3)) or len(match["name"]) > 5:
            yield match.start(), _month(match["name"])
    for match in _ISO_MONTH.finditer(text):
        yield match.start(), int(match["number"])
    yield from ((begin, day.month) for begin, days in numeric_dates(text) for day in days)


def _days(text: str) -> Iterator[tuple[int, Value]]:
    for pattern in (_DAY_MONTH, _MONTH_DAY):
        for match in pattern.finditer(text):
            yield match.start(), (_month(match["name"]), int(match["day"]))
    for match in _HOLIDAY.finditer(text):
        yield match.start(), _holiday(match["name"])
    for match in _ISO_MONTH.finditer(text):
        if match["day"]:
            yield match.start(), (int(match["number"]), int(match["day"]))
    yield from ((begin, (day.month, day.day)) for begin, days in numeric_dates(text) for day in days)


def _weekdays(text: str) -> Iterator[tuple[int, Value]]:
    return ((match.start(), match["name"].lower()) for match in _WEEKDAY.finditer(text))


def _clocks(text: str) -> Iterator[tuple[int, Value]]:
    return ((match.start(), (int(match["hour"]), int(match["minute"]))) for match in _CLOCK.finditer(text))


CLOCK = Kind("time of day", _clocks, is_time=True)
YEAR = Kind("year", _years, is_time=True)
MONTH = Kind("month", _months, is_time=True)
DAY = Kind("day", _days, is_time=True)
WEEKDAY = Kind("weekday", _weekdays, is_time=True)
