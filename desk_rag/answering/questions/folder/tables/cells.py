"""Read the numbers of tables that have a unit or stand in a column called so, with the words and days of their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.questions.folder.reading.records import all_dates
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.requirements import amounts
from desk_rag.answering.requirements.dates import A_YEAR, MONTHS, Date
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.store.catalog.words import name_words

if TYPE_CHECKING:
    from desk_rag.answering.questions.folder.reading.periods import Period
    from desk_rag.store.store import Store
    from desk_rag.store.types import Passage

PAYMENT, PRICE = "amount", "price"
"""The units of what was paid, and of what something cost."""
OF_PERSON = re.compile(r"^(?:who|name|person|people|by|employee|worker|staff)$", re.I)
OF_TOTAL = re.compile(r"^(?:sub|grand\s+)?(?:totals?|sums?|gesamt|summe)\b", re.I)
"""Cells of a row that sums up others."""
_RATE = re.compile(r"\b(?:per|each|rate|price|cost|fee|limit|number|no)\b|/", re.I)
"""Headers of columns with a rate or a price of the unit: 'Per hour'."""
_RATE_OF_PRICE = re.compile(r"\b(?:per|each|rate|unit|limit|number|no)\b|/", re.I)
_PAYMENTS = frozenset({PAYMENT, "betrag", "debit", "paid", "payment", "spent"})
"""Columns of payments."""
_PRICES = _PAYMENTS | {PRICE, "cost", "costs", "total", "sum", "expense", "expenses", "charge", "preis"}
_OUT = frozenset({"out", "outgoing", "outgoings", "money out", "paid out", "ausgaben", "ausgang"})
"""Columns of a cash book for what was paid."""
_MONEY = frozenset({"money", "amount", "betrag", "income", "revenue", "takings", "total", "turnover"})
"""Columns of money, where it came in or went out."""
_FEWEST_NUMBERED = 3
"""Rows that one after the other have the numbers 1, 2 and 3, so that these are their names and no quantity."""
_MONTH = re.compile(rf"\b({'|'.join(MONTHS)})\s+((?:19|20)\d\d)\b", re.I)
_QUARTER = re.compile(
    r"\b(?P<year>(?:19|20)\d\d)\s?[-/]?\s?Q(?P<number>[1-4])\b|\bQ(?P<before>[1-4])\s?[-/]?\s?(?P<later>(?:19|20)\d\d)\b",
    re.I,
)
_BEGINNING = 200
"""Letters of a document that say of which month it is."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of the numbers that are wanted, or the name of their column."""

    name: str
    is_money: bool = False
    """True if a number with another unit is none."""
    is_done: bool = False
    """True if it is what was done, 'counted', so that only a column can be called so."""
    label: frozenset[str] = frozenset()
    """Stems of a line's label that may stand for a column: 'Net pay' on every payslip."""

    def names(self, text: str) -> bool:
        """True if a header, or the words behind a number, name the unit."""
        groups = (*amounts.UNITS, _PRICES, _MONEY) if self.name == PRICE else (*amounts.UNITS, _PAYMENTS, _MONEY)
        alike = next((group for group in groups if self.name in group), {self.name})
        return bool(content_stems(self.name) & content_stems(text)) or any(
            word.lower() in alike for word in re.findall(r"[^\W\d_]+", text)
        )

    @property
    def shown(self) -> str:
        """' hours' behind a number, '' for a unit that is none of measure."""
        return f" {self.name}" if any(self.name in group for group in amounts.UNITS) else ""

    def is_label(self, label: str) -> bool:
        """True if each word of a line's label is asked for."""
        stems = content_stems(label)
        return len(stems) > 1 and stems <= self.label | content_stems(self.name)


@dataclass(frozen=True, slots=True)
class Cell:
    """The number of a row in a column of the unit."""

    row: Row
    column: str
    number: Decimal | None
    """None for a rate, which cannot be added up."""
    words: frozenset[str]
    """Stems of the row and of its heading."""
    around: frozenset[str]
    """Stems of the title and of the name of its file."""

    @property
    def fields(self) -> dict[str, str]:
        """The columns and cells of its row."""
        return amounts.fields_of(self.row.text)

    @property
    def path(self) -> Path:
        """The file in which it stands."""
        return self.row.passage.path

    @property
    def is_line(self) -> bool:
        """True for a line 'Net pay: 1,412.30', which is no row of a table."""
        return len(self.fields) == 1

    @property
    def days(self) -> list[Date]:
        """The dates or years of a row; without one, the year of its heading or of its file."""
        days = [day for day in all_dates(self.row.text) if day.year]
        if not days and self.is_line:
            beginning = f"{self.row.passage.title} {self.row.passage.chunk.text[:_BEGINNING]}"
            named = ((int(match[2]), match[1].casefold()) for match in _MONTH.finditer(beginning))
            of_month = [Date(year, MONTHS.index(month) + 1, 0) for year, month in named]
            days = (of_month or [day for day in all_dates(beginning) if day.year and day.month])[:1]
        if not days:
            fields = list(self.fields.items())
            years = [value for column, value in fields if column != self.column and (column, value) in fields[:1]
                     or re.search(r"\byear\b", column, re.IGNORECASE)]  # fmt: skip
            months = [MONTHS.index(value.casefold()) + 1 for _, value in fields if value.casefold() in MONTHS] or [0]
            labels = f"{self.row.passage.chunk.location.heading} {self.path.stem}"
            years = [year for year in years if A_YEAR.fullmatch(year)] or A_YEAR.findall(labels)
            days = [Date(int(year), month, 0) for year in years for month in months]
        return days

    @property
    def is_timed(self) -> bool:
        """True if the row says or stands under something that says when."""
        return bool(_QUARTER.search(self.row.text) or self.days)

    def is_in(self, period: Period | None) -> bool:
        """True if a date of the row lies in the period, or all of the quarter that it names."""
        if period is None:
            return True
        quarter = _QUARTER.search(self.row.text)
        if quarter is not None:
            year, number = int(quarter["year"] or quarter["later"]), int(quarter["number"] or quarter["before"])
            return all(period.holds(Date(year, 3 * number - 2 + month, 0)) for month in range(3))
        return any(period.holds(day) for day in self.days)


@dataclass(frozen=True, slots=True)
class Cells:
    """All cells of one unit below some folders."""

    cells: tuple[Cell, ...]
    passages: int
    files: int


def read(store: Store, unit: Unit, under: Sequence[Path]) -> Cells:
    """The cells of all tables; columns that only number the rows of a file are left out."""
    cells: list[Cell] = []
    passages, documents = 0, list(distinct(indexed(store, under)))
    for document in documents:
        for passage in store.passages_of(document.path):
            passages += 1
            cells += _cells(passage, unit)
    return Cells(tuple(cell for cell in cells if not _is_name_of_row(cell, cells)), passages, len(documents))


def rows_of(passages: Iterable[Passage]) -> Iterator[tuple[Row, dict[str, str]]]:
    """The rows of the tables in some passages, each with its columns and cells."""
    for passage in passages:
        for line in passage.chunk.text.split("\n"):
            if len(fields := amounts.fields_of(line)) > 1:
                yield Row(passage, line.strip()), fields


def of_one_table(cells: Sequence[Cell]) -> bool:
    """True if the rows have the same columns, in one file or in several, as tables of two years have."""
    columns: dict[Path, set[str]] = {}
    for cell in cells:
        columns.setdefault(cell.path, set()).update(cell.fields)
    return len(set(map(frozenset, columns.values()))) <= 1


def _cells(passage: Passage, unit: Unit) -> Iterator[Cell]:
    """The cells of a passage's rows whose column has the unit or its name; a rate of the unit has no number to add."""
    around = frozenset(content_stems(f"{name_words(passage.path)} {passage.title}"))
    rate = _RATE_OF_PRICE if unit.name == PRICE else _RATE
    for line in passage.chunk.text.split("\n"):
        fields = amounts.fields_of(line)
        is_label = len(fields) == 1 and unit.is_label(next(iter(fields)))
        if not fields or (len(fields) < 2 and not is_label) or any(OF_TOTAL.match(value) for value in fields.values()):
            continue
        words = frozenset(content_stems(f"{line} {passage.chunk.location.heading}"))
        for column, value in fields.items():
            number = amounts.number_of(value)
            of_value = not unit.is_done and unit.names(re.sub(r"^\S*\d\S*\s*", "", value))
            is_paid_out = unit.name in (PAYMENT, PRICE) and column.strip().casefold() in _OUT
            if number is None or not (unit.names(column) or of_value or is_paid_out):
                continue
            if unit.is_money and amounts.measure_of(column, value):
                continue
            yield Cell(Row(passage, line.strip()), column, None if rate.search(column) else number, words, around)


def _is_name_of_row(cell: Cell, cells: Sequence[Cell]) -> bool:
    """True if the column numbers the rows of its file one after the other: plots 1, 2 and 3 add up to nothing."""
    numbers = [one.number for one in cells if one.path == cell.path and one.column == cell.column]
    known = [number for number in numbers if number is not None]
    return len(known) == len(numbers) >= _FEWEST_NUMBERED and all(
        later - number == 1 for number, later in pairwise(known)
    )
