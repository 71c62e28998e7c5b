"""Find the row of a table with the most or the least in a column: 'Which client has the highest hourly rate?'"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.tables.cells import OF_TOTAL, rows_of
from desk_rag.answering.questions.forms import first_match
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.questions.whole_folder import FolderQuestion
from desk_rag.answering.requirements import amounts
from desk_rag.answering.requirements.dates import dates
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.status import plural
from desk_rag.sanitize import clean_name
from desk_rag.store.catalog.words import name_words

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

MOST = (
    r"highest|largest|biggest|greatest|longest|dearest|costliest|most\s+expensive|heaviest|tallest|widest|deepest|fastest"
    r"|youngest|newest"
)
LEAST = "lowest|smallest|shortest|cheapest|least\\s+expensive|lightest|narrowest|shallowest|slowest|oldest"
_WORD = rf"(?P<word>{MOST}|{LEAST})"
_HAS = r"(?:has|have|had|gets?|got|pays?|paid|charges?|charged|costs?|gives?|gave|offers?|offered|grants?|takes?)"
_ASKS = (
    re.compile(
        rf"^(?:(?:which|what)\s+(?P<thing>[\w-]+(?:\s[\w-]+)?)\s+(?:{_HAS}|is|was|with)|who\s+{_HAS})\s+(?:us\s+|me\s+)?"
        rf"(?:the\s+)?{_WORD}(?P<column>(?:\s+[\w-]+){{0,3}})$",
        re.I,
    ),
    re.compile(
        rf"^what(?:['’]s|\s+(?:is|was|are|were))\s+(?:the|our|my)\s+{_WORD}\s+(?P<column>[\w-]+(?:\s+[\w-]+){{0,2}})$",
        re.I,
    ),
    re.compile(rf"^who\s+(?P<asked>[a-z]+)\s+the\s+{_WORD}\s+(?P<thing>[\w-]+)$", re.I),
)
_PRICES = "price cost fee amount"
_COLUMNS = {
    "longest": "length", "shortest": "length", "dearest": _PRICES, "costliest": _PRICES, "most expensive": _PRICES,
    "cheapest": _PRICES, "least expensive": _PRICES,
    "heaviest": "weight", "lightest": "weight", "tallest": "height", "widest": "width", "narrowest": "width",
    "deepest": "depth", "shallowest": "depth", "fastest": "speed", "slowest": "speed", "largest": "size area",
    "biggest": "size area", "smallest": "size area", "youngest": "year born built", "newest": "year built",
    "oldest": "year born built",
}  # fmt: skip
"""Columns that tell what an adjective asks for."""
_FEWEST_ROWS = 2


@dataclass(frozen=True, slots=True)
class _Asked:
    word: str
    thing: frozenset[str]
    """Stems of what the rows are of; empty if the question does not say."""
    columns: tuple[frozenset[str], ...]
    """Stems of the column, in each way in which it may be called."""
    answering: frozenset[str]
    """Stems of the column that answers; empty for the first."""

    @property
    def is_least(self) -> bool:
        """True if the smallest number is asked for."""
        return re.fullmatch(LEAST, self.word, re.I) is not None


@dataclass(frozen=True, slots=True)
class _Table:
    document: DocumentRow
    column: str
    rows: tuple[tuple[Row, Decimal], ...]


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the row, or all that are equal; nothing unless one table alone has such a column and such rows."""
    asked = _asked(question.text)
    if asked is None:
        return
    documents = list(distinct(indexed(question.store, question.under)))
    tables = [table for document in documents for table in _tables(question.store, document, asked)]
    if len(tables) != 1:
        return
    (table,) = tables
    best = (min if asked.is_least else max)(number for _, number in table.rows)
    chosen = [row for row, number in table.rows if number == best]
    cells = amounts.fields_of(chosen[0].text)
    key = _name_column(asked, cells)
    if not key:
        return
    names = [amounts.fields_of(row.text).get(key, "") for row in chosen]
    name_is_value = key == table.column
    listed = cells[table.column] if name_is_value else f"{', '.join(dict.fromkeys(names))}: {cells[table.column]}"
    rows = plural(len(table.rows), "row")
    extreme = "lowest" if asked.is_least else "highest"
    text = f"{listed} (computed: the {extreme} “{table.column}” in {rows} of {clean_name(table.document.path.name)})"
    yield from question.answered(text, chosen, len(table.rows), len(documents))


def _name_column(asked: _Asked, cells: dict[str, str]) -> str:
    """The column that answers: the one asked for, that of the thing, or the first with words; '' if there is none."""
    if asked.answering:
        return next((column for column in cells if _begins(column, asked.answering)), "")
    of_thing = next((column for column in cells if asked.thing and _begins(column, asked.thing)), "")
    worded = (column for column, value in cells.items() if amounts.number_of(value) is None and not dates(value))
    return of_thing or next(worded, "")


def _asked(question: str) -> _Asked | None:
    match = first_match(_ASKS, question)
    if match is None:
        return None
    groups = match.groupdict()
    word = " ".join(match["word"].lower().split())
    named = (groups.get("column") or "").strip()
    columns = [named] if named else _COLUMNS.get(word, "").split()
    stems = tuple(frozenset(content_stems(column)) for column in columns)
    if not stems or not all(stems):
        return None
    thing = frozenset(content_stems(groups.get("thing") or ""))
    return _Asked(word, thing, stems, frozenset(content_stems(groups.get("asked") or "")))


def _tables(store: Store, document: DocumentRow, asked: _Asked) -> Iterator[_Table]:
    """The table of a file, if it has the column, a number in each of its rows, and rows of the thing."""
    by_text: dict[str, tuple[Row, dict[str, str]]] = {}
    for row, cells in rows_of(store.passages_of(document.path)):
        by_text.setdefault(row.text, (row, cells))
    rows = [(row, cells) for row, cells in by_text.values() if not any(map(OF_TOTAL.match, cells.values()))]
    keys = dict.fromkeys(key for _, cells in rows for key in cells)
    column = next((key for wanted in asked.columns for key in keys if _is_called(wanted, key)), None)
    if column is None:
        return
    around = content_stems(" ".join([name_words(document.path), document.title, *keys]))
    if not all(has_stem(stem, around) for stem in asked.thing):
        return
    numbers = [(row, amounts.number_of(cells[column])) for row, cells in rows if column in cells]
    known = tuple((row, number) for row, number in numbers if number is not None)
    if len(known) == len(numbers) >= _FEWEST_ROWS:
        yield _Table(document, column, known)


def _begins(column: str, stems: frozenset[str]) -> bool:
    """True if the words of a header begin like the stems: 'owner' for 'owns'."""
    return any(word.startswith(stem) for word in content_stems(column.replace("_", " ")) for stem in stems)


def _is_called(wanted: frozenset[str], column: str) -> bool:
    """True if the header of a column has all the words."""
    stems = content_stems(column.replace("_", " "))
    return all(has_stem(stem, stems) for stem in wanted)
