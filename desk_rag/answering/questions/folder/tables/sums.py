"""Add up one column of tables over the rows that a question names: 'How many hours did Ana work in 2024?'"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.conditions import YesNo, conditions
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.questions.folder.reading.records import all_dates
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.questions.whole_folder import finish, show
from desk_rag.answering.requirements import amounts
from desk_rag.answering.requirements.dates import MONTHS, Date
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.answering.requirements.titles import without_titles
from desk_rag.documents.status import plural
from desk_rag.sanitize import clean_name
from desk_rag.store.catalog.words import name_words

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import Passage

_MANY = re.compile(
    r"^how\s+(?:many|much)\s+(?P<unit>[^\W\d_]+)(?P<of>\s+of\s+(?:[^\W\d_]+\s+){0,2}?[^\W\d_]+)?\s+(?:did|have|has|had|were|was)\s+"
    r"(?P<rest>.+)",
    re.I,
)
"""'How many hours did Ana work?', 'How many jars of honey were sold?'"""
_TOTAL = re.compile(
    r"^(?:what\s+(?:is|was|are|were)\s+)?(?:the\s+)?(?:total|sum)\s+(?:number\s+)?(?:of\s+)?(?:(?:all|my|the|our)\s+)*"
    r"(?P<unit>[^\W\d_]+)(?P<rest>(?:\s+.+)?)$",
    re.I,
)
_DONE = re.compile(
    r"^how\s+(?:many|much)\s+(?P<things>(?:[^\W\d_]+\s+){1,3}?)(?:were|was|have\s+been|has\s+been)\s+(?P<unit>[a-z]{3,}(?:ed|en|ld|nt))"
    r"\b(?P<rest>.*)$",
    re.I,
)
"""'How many slow worms were counted in plot P1?', where a column is called 'count'."""
_ALL = re.compile(r",?\s*\b(?:in\s+total|in\s+all|altogether|overall|so\s+far)\b", re.I)
_RATE = re.compile(r"\b(?:per|each|rate|price|cost|fee|limit|number|no)\b|/", re.I)
"""Headers of columns with a rate or a price of the unit: 'Per hour'."""
_OF_TOTAL = re.compile(r"^(?:sub|grand\s+)?(?:totals?|sums?|gesamt|summe)\b", re.I)
_OF_PERSON = re.compile(r"^(?:who|name|person|people|by|employee|worker|staff)$", re.I)
_PAID = re.compile(
    r"^(?:what|how\s+much)\s+(?:money\s+)?(?:did|have|had)\s+(?:I|we)\s+(?:pay|paid|spend|spent)\s+"
    r"(?:(?:to|at|with)\s+)?(?P<rest>(?!for\b|on\b).+)",
    re.I,
)
_PAYMENTS = frozenset({"amount", "betrag", "debit", "paid", "payment", "spent"})
"""Columns of payments."""
_MONEY = frozenset({"money", "amount", "betrag", "income", "revenue", "takings", "total", "turnover"})
"""Columns of money, where it came in or went out."""
_FEWEST_NUMBERED = 3
"""Rows that one after the other have the numbers 1, 2 and 3, so that these are their names and no quantity."""
_READINGS = re.compile(r"readings?|meters?|zähler(?:stand|stände)?|odometer", re.I)
"""Names of tables whose numbers grow from row to row, so that they must not be added up."""
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_MONTH = re.compile(rf"\b({'|'.join(MONTHS)})\s+((?:19|20)\d\d)\b", re.I)
_QUARTER = re.compile(
    r"\b(?P<year>(?:19|20)\d\d)\s?[-/]?\s?Q(?P<number>[1-4])\b|\bQ(?P<before>[1-4])\s?[-/]?\s?(?P<later>(?:19|20)\d\d)\b",
    re.I,
)
_LIGHT = content_stems("I we me my our you did have has had work worked spend spent all total sum of on for in at by")
_MOST = 200
_BEGINNING = 200
"""Letters of a document that say of which month it is."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """The number of a row in a column of the unit."""

    row: Row
    column: str
    number: Decimal | None
    words: frozenset[str]
    """Stems of the row and of its heading."""
    around: frozenset[str]
    """Stems of the title and of the name of its file."""


@dataclass(frozen=True, slots=True)
class _Asked:
    unit: str
    names: frozenset[str]
    others: frozenset[str]
    period: Period | None
    words: str
    of_owner: bool
    """True if the question is one for what 'I' or 'we' did."""
    of_money: bool
    """True if it asks for money, so that a number with another unit is none."""
    of_payee: bool
    """True if it asks what was paid to somebody."""
    is_done: bool = False
    """True if the unit is what was done, so that only a column can be called so."""


def answer(store: Store, question: str, under: Sequence[Path], today: date) -> Iterator[AnswerEvent]:
    """Yield the sum and every row of it; nothing if no table has such a column, or no row is of what is asked."""
    _, asked_conditions = conditions(" ".join(question.split()).rstrip("?!. "))
    if any(isinstance(one, YesNo) and one.needed for one in asked_conditions):
        return  # a sum over all rows says nothing of those that have not paid
    for sum_question in filter(None, (_asked_as_done(question, today), _asked(question, today))):
        if (yield from _sum(store, question, sum_question, under)):
            return


def _sum(
    store: Store, question: str, sum_question: _Asked, under: Sequence[Path]
) -> Generator[AnswerEvent, None, bool]:
    """Yield the sum that one reading of the question asks for; return False if there is none."""
    began, files, passages = time.perf_counter(), set[Path](), 0
    cells: list[_Cell] = []
    for document in distinct(indexed(store, under)):
        files.add(document.path)
        for passage in store.passages_of(document.path):
            passages += 1
            cells += _cells(passage, sum_question)
    cells = [cell for cell in cells if not _is_name_of_row(cell, cells)]
    known = {stem for cell in cells for stem in cell.words | cell.around}
    unknown = sum_question.others - known
    may_lack = 0 if sum_question.of_payee or sum_question.is_done else 1
    if not cells or len(unknown) > may_lack or not sum_question.names <= known:
        return False
    wanted = sum_question.names | (sum_question.others - unknown)
    named = [
        cell for cell in cells if sum_question.is_done and _is_called(cell, sum_question.unit) and wanted <= cell.around
    ]
    named = named or [cell for cell in cells if wanted <= cell.words]
    if not named and not (sum_question.of_payee or sum_question.is_done):
        named = [cell for cell in cells if wanted <= cell.words | cell.around]
    counted = [cell for cell in named if cell.number is not None]
    timed = [cell for cell in counted if sum_question.period is None or _holds(sum_question.period, cell)]
    people = {value for cell in timed for key, value in amounts.fields_of(cell.row.text).items()
              if _OF_PERSON.match(key)}  # fmt: skip
    if not counted or (sum_question.of_owner and len(people) > 1):
        return False
    timed = [cell for cell in timed if amounts.measure_of(cell.column, "")] or timed
    column = _column_asked(question, timed or counted)
    added = [cell for cell in timed if cell.column.casefold() == column]
    is_of_time = any(_QUARTER.search(cell.row.text) or _days(cell) for cell in counted)
    if not added and (sum_question.of_payee or sum_question.is_done or not is_of_time):
        return False
    shown = show(store, [cell.row for cell in added[:_MOST]])
    doubts = [*_doubts(sum_question, added)]
    lines = [_result(sum_question, added, counted), *_notes(sum_question, added, named), *doubts]
    support = 0.0 if doubts else None
    read = (began, passages, len(files))
    yield from finish(store, question, "\n".join(lines), shown, under, read, found=bool(added), support=support)
    return True


def _is_called(cell: _Cell, unit: str) -> bool:
    """True if the column is called as what was done, 'Received', so that the file's name says what was received."""
    return content_stems(cell.column) == content_stems(unit)


def _is_name_of_row(cell: _Cell, cells: Sequence[_Cell]) -> bool:
    """True if the column numbers the rows of its file one after the other: plots 1, 2 and 3 add up to nothing."""
    path, column = cell.row.passage.path, cell.column
    numbers = [one.number for one in cells if one.row.passage.path == path and one.column == column]
    known = [number for number in numbers if number is not None]
    return len(known) == len(numbers) >= _FEWEST_NUMBERED and all(
        later - number == 1 for number, later in pairwise(known)
    )


def _column_asked(question: str, cells: Sequence[_Cell]) -> str:
    """The column whose name has most words of the question, 'rent_received' for rent received; else that of most."""
    words = content_stems(question)
    counts = Counter(cell.column.casefold() for cell in cells)
    return max(counts, key=lambda column: (len(words & content_stems(column.replace("_", " "))), counts[column]))


def _asked(question: str, today: date) -> _Asked | None:
    plain = without_titles(" ".join(question.split()).rstrip("?!. "))
    match = _MANY.match(plain) or _TOTAL.match(plain) or _PAID.match(plain)
    if match is None:
        return None
    rest, period = take_period(_ALL.sub("", match["rest"]), today)
    names = [
        word for word in re.findall(r"[\w'’&-]+", rest) if (word[0].isupper() or word[0].isdigit()) and word != "I"
    ]
    of_owner = re.match(r"\s*(?:I|we)\b", rest, re.I) is not None
    if not (names or period or of_owner or _ALL.search(match["rest"]) or match.re is _TOTAL):
        return None  # 'How many hours did the meeting last?' is one fact
    of_payee = match.re is _PAID
    if of_payee and not names:
        return None
    of_names = content_stems(" ".join(names))
    things = match.groupdict().get("of") or ""
    others = content_stems(f"{things} {rest}") - of_names - _LIGHT
    unit = "amount" if of_payee else match["unit"].lower()
    of_money = amounts.asks_money(plain)
    names_of = (frozenset(of_names), frozenset(others))
    return _Asked(unit, *names_of, period, " ".join(names), of_owner, of_money, of_payee)


def _asked_as_done(question: str, today: date) -> _Asked | None:
    """The question with what was done as the unit: 'counted' in 'How many slow worms were counted in plot P1?'"""
    match = _DONE.match(without_titles(" ".join(question.split()).rstrip("?!. ")))
    if match is None:
        return None
    rest, period = take_period(match["rest"], today)
    names = [word for word in re.findall(r"[\w'’&-]+", rest) if word[0].isupper() or word[0].isdigit()]
    of_names = content_stems(" ".join(names))
    others = content_stems(f"{match['things']} {rest}") - of_names - _LIGHT
    words = " ".join([match["things"].strip(), *names])
    names_of = (frozenset(of_names), frozenset(others))
    return _Asked(match["unit"].lower(), *names_of, period, words, False, False, False, is_done=True)


def _cells(passage: Passage, asked: _Asked) -> Iterator[_Cell]:
    """The cells of a passage's rows whose column has the unit or its name; a rate of the unit has no number to add."""
    unit = asked.unit
    around = frozenset(content_stems(f"{name_words(passage.path)} {passage.title}"))
    for line in passage.chunk.text.split("\n"):
        fields = amounts.fields_of(line)
        is_label = len(fields) == 1 and _is_label_of(next(iter(fields)), asked)
        if not fields or (len(fields) < 2 and not is_label) or any(_OF_TOTAL.match(value) for value in fields.values()):
            continue
        words = frozenset(content_stems(f"{line} {passage.chunk.location.heading}"))
        for column, value in fields.items():
            number = amounts.number_of(value)
            of_value = not asked.is_done and _is_of(unit, re.sub(r"^\S*\d\S*\s*", "", value))
            if number is None or not (_is_of(unit, column) or of_value):
                continue
            if asked.of_money and amounts.measure_of(column, value):
                continue
            yield _Cell(Row(passage, line.strip()), column, None if _RATE.search(column) else number, words, around)


def _is_label_of(label: str, asked: _Asked) -> bool:
    """True if each word of a line's label is asked for: 'Net pay' by 'the total of my net pay', on every payslip."""
    stems = content_stems(label)
    return len(stems) > 1 and stems <= asked.others | content_stems(asked.unit)


def _is_of(unit: str, text: str) -> bool:
    """True if a header or the words behind a number name the unit."""
    alike = next((group for group in (*amounts.UNITS, _PAYMENTS, _MONEY) if unit in group), {unit})
    return bool(content_stems(unit) & content_stems(text)) or any(
        word.lower() in alike for word in re.findall(r"[^\W\d_]+", text)
    )


def _holds(period: Period, cell: _Cell) -> bool:
    """True if a date of the row lies in the period, or all of the quarter that it names."""
    quarter = _QUARTER.search(cell.row.text)
    if quarter is not None:
        year, number = int(quarter["year"] or quarter["later"]), int(quarter["number"] or quarter["before"])
        return all(period.holds(Date(year, 3 * number - 2 + month, 0)) for month in range(3))
    return any(period.holds(day) for day in _days(cell))


def _days(cell: _Cell) -> list[Date]:
    """The dates or years of a row; without one, the year of its heading or of its file."""
    days = [day for day in all_dates(cell.row.text) if day.year]
    if not days and _is_line(cell):
        beginning = f"{cell.row.passage.title} {cell.row.passage.chunk.text[:_BEGINNING]}"
        named = ((int(match[2]), match[1].casefold()) for match in _MONTH.finditer(beginning))
        of_month = [Date(year, MONTHS.index(month) + 1, 0) for year, month in named]
        days = (of_month or [day for day in all_dates(beginning) if day.year and day.month])[:1]
    if not days:
        fields = list(amounts.fields_of(cell.row.text).items())
        years = [value for column, value in fields if column != cell.column and (column, value) in fields[:1]
                 or re.search(r"\byear\b", column, re.IGNORECASE)]  # fmt: skip
        months = [MONTHS.index(value.casefold()) + 1 for _, value in fields if value.casefold() in MONTHS] or [0]
        labels = f"{cell.row.passage.chunk.location.heading} {cell.row.passage.path.stem}"
        years = [year for year in years if _YEAR.fullmatch(year)] or _YEAR.findall(labels)
        days = [Date(int(year), month, 0) for year in years for month in months]
    return days


def _is_line(cell: _Cell) -> bool:
    """True for a line 'Net pay: 1,412.30', which is no row of a table."""
    return len(amounts.fields_of(cell.row.text)) == 1


def _doubts(asked: _Asked, added: Sequence[_Cell]) -> Iterator[str]:
    """Sentences about rows that may make no sum: readings of a meter, money that came back, copies."""
    names = [name for cell in added for name in (cell.row.passage.path.stem, cell.column) if _READINGS.search(name)]
    if names:
        yield f"“{clean_name(names[0])}” may hold readings of a meter, which make no sum."
    if not asked.of_payee:
        return
    if len({cell.number < 0 for cell in added if cell.number is not None}) > 1:
        yield "Some of it was paid and some came back."
    files = {(cell.row.text, cell.row.passage.path) for cell in added}
    columns = {tuple(amounts.fields_of(cell.row.text)) for cell in added}
    if len(columns) > 1 or len({text for text, _ in files}) < len(files):
        yield "Several tables have such rows, and may say the same twice."


def _result(asked: _Asked, added: Sequence[_Cell], counted: Sequence[_Cell]) -> str:
    those = f"{f' with “{asked.words}”' if asked.words else ''}{f' {asked.period.words}' if asked.period else ''}"
    if not added:
        others = plural(len(counted), "row")
        verb = "is" if len(counted) == 1 else "are"
        return f"No row{those} has a number of {asked.unit}; {others} of other times {verb} there."
    files = ", ".join(dict.fromkeys(clean_name(cell.row.passage.path.name) for cell in added))
    rows, noun = plural(len(added), "line"), "line"
    if not _is_line(added[0]):
        rows, noun = plural(len(added), "row"), "column"
    more = f" (the first {_MOST} are shown)" if len(added) > _MOST else ""
    numbers = [cell.number for cell in added if cell.number is not None]
    paid_out = asked.of_payee and sum(numbers) < 0
    total = amounts.written([-number for number in numbers] if paid_out else numbers)
    unit = f" {asked.unit}" if any(asked.unit in group for group in amounts.UNITS) else ""
    return f"{total}{unit} (computed: the sum of the {noun} “{added[0].column}” in {rows} of {files}{those}{more})"


def _notes(asked: _Asked, added: Sequence[_Cell], named: Sequence[_Cell]) -> Iterator[str]:
    """Say which columns were left out."""
    chosen = {cell.column.casefold() for cell in added}
    left_out = Counter(
        (cell.column, cell.row.passage.path.name) for cell in named if added and cell.column.casefold() not in chosen
    )
    if left_out:
        columns = "; ".join(f"“{column}” in {clean_name(name)} ({plural(count, 'row')})"
                            for (column, name), count in left_out.items())  # fmt: skip
        yield f"Left out, because it is another column: {columns}."
