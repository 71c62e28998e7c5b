"""Compare sums over the rows of a table: 'Which month had the most hours?', 'On which project did we spend the least?'

'Most' and 'least' ask for sums, 'highest' and 'lowest' for single rows (`extremes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.questions.folder.tables.cells import OF_PERSON, PRICE, Cell, Unit, of_one_table, read
from desk_rag.answering.questions.forms import first_match
from desk_rag.answering.questions.whole_folder import FolderQuestion
from desk_rag.answering.requirements import amounts
from desk_rag.answering.requirements.dates import Date, in_words
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.status import plural
from desk_rag.sanitize import clean_name

_MOST = r"(?P<word>most|fewest|least)"
_THING = r"(?:which|what)\s+(?P<thing>[\w-]+)"
_ASKS = (
    re.compile(
        rf"^(?:in\s+|on\s+)?(?:{_THING}|who)\s+(?!did\b|do\b|does\b)[a-z]+\s+(?:us\s+|me\s+)?(?:the\s+)?{_MOST}\s+(?P<unit>[\w-]+)"
        r"(?P<rest>(?:\s.+)?)$",
        re.I,
    ),
    re.compile(
        rf"^(?:in|on|for|at|with)\s+(?:{_THING}|whom)\s+(?:did|do|have)\s+(?:we|I)\s+[a-z]+\s+(?:the\s+)?{_MOST}(?:\s+(?P<unit>(?!in\b|on\b)[\w-]+))?"
        r"(?P<rest>(?:\s.+)?)$",
        re.I,
    ),
    re.compile(rf"^who\s+(?P<unit>spent|paid|costs?)\s+(?:us\s+)?(?:the\s+)?{_MOST}(?P<rest>(?:\s.+)?)$", re.I),
)
_OF_MONEY = re.compile(r"^(?:money|spen\w+|paid|costs?)?$", re.I)
_SPANS = {"year": 1, "month": 2, "day": 3, "date": 3}
"""Things that the date of a row names, with the number of its parts that count."""
_FEWEST_GROUPS, _MOST_GROUPS = 2, 12
_LIGHT = content_stems("in on of for at by total all our my we")


@dataclass(frozen=True, slots=True)
class _Asked:
    thing: str
    """The thing whose sums are compared; '' for a person."""
    unit: Unit
    is_least: bool
    others: frozenset[str]
    """Stems of what the rows must speak of."""
    period: Period | None


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield an answer with the group of the largest or smallest sum, if exactly one table has groups."""
    asked = _asked(question.text, question.today)
    if asked is None:
        return
    table = read(question.store, asked.unit, question.under)
    by_columns: dict[tuple[str, str], list[Cell]] = {}
    for cell in table.cells:
        key = _key_column(asked, cell)
        fits = asked.others <= cell.words | cell.around and cell.is_in(asked.period)
        if cell.number is not None and key is not None and fits:
            by_columns.setdefault((key, cell.column), []).append(cell)
    if len(by_columns) != 1:
        return
    (((key, column), cells),) = by_columns.items()
    if not of_one_table(cells):
        return
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_group(asked, cell, key), []).append(cell)
    groups.pop("", None)
    if len(groups) < _FEWEST_GROUPS:
        return
    numbers = {name: [one.number for one in cells if one.number is not None] for name, cells in groups.items()}
    sums = {name: sum(own, Decimal(0)) for name, own in numbers.items()}
    best = (min if asked.is_least else max)(sums.values())
    order = sorted(sums, key=lambda name: sums[name], reverse=not asked.is_least)
    chosen = [name for name in order if sums[name] == best]
    files = ", ".join(dict.fromkeys(clean_name(cell.path.name) for cell in cells))
    when = f" {asked.period.words}" if asked.period is not None else ""
    extreme = "smallest" if asked.is_least else "largest"
    of_what = f"by “{key}”" if key else f"by {asked.thing}"
    head = (
        f"{', '.join(chosen)}: {_written(groups[chosen[0]])}{asked.unit.shown} (computed: the {extreme} of"
        f" {len(groups):,} sums of the column “{column}” {of_what}, {plural(len(cells), 'row')} of {files}{when})"
    )
    others = [f"{name}: {_written(groups[name])}" for name in order if name not in chosen]
    more = f"; {len(others) - _MOST_GROUPS:,} more" if len(others) > _MOST_GROUPS else ""
    lines = [head, f"The others: {'; '.join(others[:_MOST_GROUPS])}{more}."] if others else [head]
    rows = [cell.row for name in chosen for cell in groups[name]]
    yield from question.answered("\n".join(lines), rows, table.passages, table.files)


def _asked(question: str, today: date) -> _Asked | None:
    match = first_match(_ASKS, question)
    if match is None:
        return None
    groups = match.groupdict()
    unit = (groups.get("unit") or "").lower()
    is_money = _OF_MONEY.match(unit) is not None
    rest, period = take_period(match["rest"], today)
    others = frozenset(content_stems(rest) - _LIGHT)
    wanted = Unit(PRICE, is_money=True) if is_money else Unit(unit)
    return _Asked((groups.get("thing") or "").lower(), wanted, match["word"].lower() != "most", others, period)


def _key_column(asked: _Asked, cell: Cell) -> str | None:
    """The column that names the group of a row, '' for its date; None if it has none."""
    if asked.thing in _SPANS:
        return "" if _group(asked, cell, "") else None
    stems = content_stems(asked.thing)
    for column in cell.fields:
        words = content_stems(column.replace("_", " "))
        if column != cell.column and (stems <= words if stems else OF_PERSON.match(column)):
            return column
    return None


def _group(asked: _Asked, cell: Cell, key: str) -> str:
    if key:
        return cell.fields.get(key, "").strip()
    parts = _SPANS[asked.thing]
    for day in cell.days:
        if (day.year, day.month, day.day)[parts - 1]:
            return in_words(Date(day.year, day.month if parts > 1 else 0, day.day if parts > 2 else 0))
    return ""


def _written(cells: Sequence[Cell]) -> str:
    return amounts.written([cell.number for cell in cells if cell.number is not None])
