"""Look a value up in a table: the row that the question names, and the cell that it asks for.

Models read few tables and hold back where the rows say all. So a row is compared with the question by its words: the
question must name one of its cells, everything it names must fit, and one column must be asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from desk_rag.answering.requirements.correspondence import asks_of_letters, is_header
from desk_rag.answering.requirements.dates import MONTHS
from desk_rag.answering.requirements.keys import look_up_key
from desk_rag.answering.requirements.labels import look_up_contact, look_up_label
from desk_rag.answering.requirements.mentions import YEAR
from desk_rag.answering.requirements.places import Lookup, Place
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.statements import other_values
from desk_rag.answering.requirements.statements.matters import is_contrary
from desk_rag.answering.requirements.statements.prices import asks_price, is_event
from desk_rag.answering.requirements.statements.value_doubts import ValueDoubts
from desk_rag.answering.requirements.stems import content_stems, has_stem

FIELD = re.compile(r"(?:^|;\s)(?P<key>[^:;]{1,60}):\s(?P<value>[^;]*)")
LIGHT = content_stems(
    "much many cost costs costing pay pays paid sold sell spend spent number numbers total amount row line have has get"
    " gets got go goes went list table sheet file called named name there long often late early old"
)
"""Words of a question that need not stand in a table."""
_TOTAL_KEYS = content_stems("total sum")
_MONEY_KEYS = content_stems("amount price total cost costs sum fee income value charge expense expenses euros rate")
_PERSON_KEYS = content_stems(
    "who person name owner teacher contact guest customer client driver payee author by member leader responsible"
)
_DATE_KEYS = content_stems("date day weekday when month time arrives arrival due deadline start begins joined until")
_PLACE_KEYS = content_stems("where place location room kept stored shelf address town city venue site")
_PAYING = content_stems("pay sell spend")
_BALANCE = content_stems("balance")
_ON_DATE = re.compile(r"\b(?:on|date|day|when)\b|^(?:paid|sold)$", re.I)
_HOW_MUCH = re.compile(r"\bhow much\b|\bcosts?\b|\bpay\b|\bpaid\b|\bspen[dt]\b|\bprice\b", re.I)
_PAID = re.compile(r"^(?:how\s+much|what)\b.*\b(?:pay|paid|spen[dt]|costs?|price)\b", re.I)
_WHO = re.compile(r"\bwho(?:m|se)?\b", re.I)
_WHERE = re.compile(r"\bwhere\b", re.I)
_WHEN = re.compile(r"\bwhen\b|\b(?:which|what) (?:day|date|weekday)\b", re.I)
_MEASURES = {
    "long": "length", "large": "size area", "big": "size area", "heavy": "weight", "tall": "height", "high": "height",
    "deep": "depth", "wide": "width", "thick": "thickness", "old": "age", "fast": "speed",
}  # fmt: skip
_HOW_LARGE = re.compile(rf"how\s+(?P<word>{'|'.join(_MEASURES)})\s+(?:is|was|are|were)\b", re.I)
_NAMES_MONTH = re.compile(rf"\b(?:{'|'.join(f'{name}|{name[:3]}' for name in MONTHS)})\b\.?|\bmonth", re.I)
_IN_BRACKETS = re.compile(r"\s\([^()]*\)")
_WHAT = re.compile(r"^\W*what(?!(?:['’]s|\s+\w+)\s+in\s)(?:'s|’s| is| was| are| were| lies| stands)?\b", re.I)
_MOST_COLUMNS = 8
"""Words of a line in columns; more are a sentence."""
_FEWEST_SHARED = 2
"""Words that such a line shares with the question: '2023' and 'litres'."""
_LONGEST_NAME = 4
"""Words of a cell that may be named by one of them."""
_LEAST_COVERED = 0.8
"""Share of the question's words that table, section and row must have."""
_CLEARLY = 0.1
"""Lead in that share over the next row that makes a row the one that is meant."""


@dataclass(frozen=True, slots=True)
class _Field:
    key: str
    value: str
    begin: int
    end: int


def look_up(question: str, places: Sequence[Place]) -> Lookup | None:
    """The cell, or the value of a label or key, that the question asks for; None if no single one is clearly meant."""
    lookup = _look_up_row(question, places)
    if lookup is not None:
        return lookup
    line = look_up_label(question, places) or look_up_key(question, places) or look_up_contact(question, places)
    if line is None:
        return None
    text, first = line.place.text[line.begin : line.end], line.value[0] - line.begin
    doubtful = is_contrary(question, text) or ValueDoubts(question, text).reason(first, line.value[1] - line.begin)
    return None if doubtful else line


def _look_up_row(question: str, places: Sequence[Place]) -> Lookup | None:
    wanted = content_stems(question) - LIGHT
    if not wanted:
        return None
    requirements = Requirements(question)
    of_price = asks_price(question)
    rated = [
        (covered, lookup)
        for place in dict.fromkeys(places)
        for covered, lookup in _rows(question, wanted, requirements, place, of_price=of_price)
    ]
    rated.sort(key=lambda pair: -pair[0])
    if not rated or rated[0][0] < _LEAST_COVERED:
        return None
    best, lookup = rated[0]
    rivals = (other for covered, other in rated[1:] if covered > best - _CLEARLY)
    return None if any(other.text != lookup.text for other in rivals) else lookup


def fields(text: str) -> list[_Field]:
    """The columns and cells of a row of a table; nothing for other lines."""
    cells = []
    for match in FIELD.finditer(text):
        value, begin = match["value"].rstrip(), match.start("value")
        cells.append(_Field(match["key"].strip(), value, begin, begin + len(value)))
    return cells


def _rows(
    question: str, wanted: set[str], requirements: Requirements, place: Place, *, of_price: bool
) -> Iterator[tuple[float, Lookup]]:
    """Yield the rows that fit; with `of_price` none of what was booked or paid on one day."""
    begin, of_letters, rows = 0, asks_of_letters(question), list[tuple[int, str, list[_Field]]]()
    for line in place.text.split("\n"):
        is_row = "; " in line and (of_letters or not is_header(line)) and not (of_price and is_event(line))
        cells = fields(line) if is_row else []
        if len(cells) > 1 and begin >= place.body:
            rows.append((begin, line, cells))
        begin += len(line) + 1
    of_one_row = _of_one_row([cells for *_, cells in rows])
    for start, line, cells in rows:
        rated = _row(question, wanted, requirements, place, start, line, cells, of_one_row)
        if rated is not None:
            yield rated


def _of_one_row(rows: Sequence[Sequence[_Field]]) -> set[tuple[str, str]]:
    """The words that a column has in one of several rows only, each with the column's name."""
    counts = Counter(
        (cell.key, stem)
        for cells in rows
        for cell in cells
        if len(cell.value.split()) <= _LONGEST_NAME
        for stem in content_stems(cell.value)
        if not stem.isdigit()
    )
    return {word for word, count in counts.items() if count == 1} if len(rows) > 1 else set()


def _row(
    question: str,
    wanted: set[str],
    requirements: Requirements,
    place: Place,
    begin: int,
    line: str,
    cells: list[_Field],
    of_one_row: set[tuple[str, str]],
) -> tuple[float, Lookup] | None:
    end = begin + len(line)
    if requirements.worst(place, begin, end) > Fit.NEARBY or _of_other_section(wanted, place, begin):
        return None
    around = content_stems(" ".join([place.labels, *place.sections_before(begin)[:1]]))
    named = [
        cell
        for cell in cells
        if _named(cell, wanted, question)
        or _is_year(cell, requirements)
        or any((cell.key, stem) in of_one_row and has_stem(stem, wanted) for stem in content_stems(cell.value))
    ]
    if not named:
        return None
    stems = around | content_stems(line)
    cell_asked_for = _asked(question, wanted, cells, named) or _only_other(question, wanted <= stems, cells, named)
    if cell_asked_for is None:
        return None
    if other_values.is_taken_off(question, cell_asked_for.value):
        return None
    # The row has the dates asked for, whichever way they are written.
    others = wanted - content_stems(" ".join(each.asked for each in requirements.timed)) or wanted
    covered = sum(has_stem(stem, stems) for stem in others) / len(others)
    first = begin + cell_asked_for.begin
    if _PAYING & content_stems(question) and re.match(r"-\s?\d", cell_asked_for.value):
        first += 1  # what was paid stands in a statement as a loss
    return covered, Lookup(place, begin, end, (first, begin + cell_asked_for.end))


def rows_alike(question: str, quote: str, answer: str, texts: Sequence[str]) -> int:
    """The number of other rows of a table that the question means as much as the quoted one, with other values.

    A question that names no month means the rows of all months alike.
    """
    wanted = content_stems(question) - LIGHT
    cells = fields(quote)
    if not cells:
        return _columns_alike(question, quote, answer, texts)
    column = next((cell.key for cell in cells if cell.value == answer.strip()), "")
    named = {(cell.key, cell.value) for cell in cells if cell.key != column and _named(cell, wanted, question)}
    is_of_month = not _NAMES_MONTH.search(question) and any(
        cell.key != column and _NAMES_MONTH.fullmatch(cell.value) for cell in cells
    )
    if len(cells) < 2 or not column or not (named or is_of_month):
        return 0
    asked = content_stems(question)
    in_quote = {stem for stem in asked if has_stem(stem, content_stems(quote))}
    others = set[str]()
    for line in (line for text in texts for line in text.split("\n") if line != quote and "; " in line):
        of_line = {cell.key: cell.value for cell in fields(line)}
        fits = all(of_line.get(key) == value for key, value in named)
        if fits and of_line.get(column, answer) != answer and all(has_stem(s, content_stems(line)) for s in in_quote):
            others.add(line)
    return len(others)


def _columns_alike(question: str, quote: str, answer: str, texts: Sequence[str]) -> int:
    """The same for lines in columns without names: '8 January 2023   1500 litres', beside one of 2 October 2023."""
    words = quote.split()
    in_quote = content_stems(question) & content_stems(quote)
    if len(words) > _MOST_COLUMNS or quote.rstrip().endswith((".", "!", "?")) or len(in_quote) < _FEWEST_SHARED:
        return 0
    others = {
        line.strip()
        for text in texts
        for line in text.split("\n")
        if line.strip() != quote and len(line.split()) == len(words) and in_quote <= content_stems(line)
    }
    return sum(answer.strip(" .") not in line for line in others)


def _of_other_section(wanted: set[str], place: Place, begin: int) -> bool:
    """True if the question names a section of the chunk, and the row stands under another."""
    sections = place.sections_before(len(place.text))
    named = [line for line in sections if (stems := content_stems(line)) and all(has_stem(s, wanted) for s in stems)]
    return bool(named) and not set(place.sections_before(begin)[:1]) & set(named)


def _is_year(cell: _Field, requirements: Requirements) -> bool:
    """True if the cell is the year that the question names, and nothing else."""
    return any(YEAR is each.kind and each.asked == cell.value for each in requirements.timed)


def _named(cell: _Field, wanted: set[str], question: str) -> bool:
    """True if the question names the value of the cell, apart from words in brackets.

    A number counts only with the name of its column.
    """
    stems = content_stems(_IN_BRACKETS.sub("", cell.value))
    if not stems:
        return False
    if all(stem.isdigit() for stem in stems):
        return bool(content_stems(cell.key) & wanted) and stems <= content_stems(question)
    return all(has_stem(stem, wanted) for stem in stems)


def _only_other(question: str, all_named: bool, cells: list[_Field], named: list[_Field]) -> _Field | None:
    """The second of two cells, if row, heading and file name have all words of a question that begins with 'what'."""
    others = [cell for cell in cells if cell not in named and cell.value]
    return others[0] if all_named and len(cells) == 2 and len(others) == 1 and _WHAT.match(question) else None


def _asked(question: str, wanted: set[str], cells: list[_Field], named: list[_Field]) -> _Field | None:
    """The cell whose column the question asks for; None if it does not say."""
    others = [cell for cell in cells if cell not in named and cell.value]
    shares = {cell.key: sum(has_stem(stem, wanted) for stem in content_stems(cell.key)) for cell in others}
    by_key = [cell for cell in others if shares[cell.key] == max(shares.values()) > 0]
    if _PAID.search(question):  # of 'kWh electricity' and 'Total', the second says what was paid for electricity
        of_money = [cell for cell in others if content_stems(cell.key) & _MONEY_KEYS]
        totals = [cell for cell in of_money if content_stems(cell.key) & _TOTAL_KEYS] or of_money
        by_key = [cell for cell in by_key if cell in of_money] or (totals if len(totals) == 1 else by_key)
    if len(by_key) == 1:
        return by_key[0]
    if by_key:
        return None
    if _WHEN.match(question.lstrip()):  # of 'Date' and 'Paid on', 'When was it paid?' asks for the second
        done = content_stems(question) - wanted
        of_verb = [cell for cell in others if content_stems(cell.key) & done & _PAYING and _ON_DATE.search(cell.key)]
        if len(of_verb) == 1:
            return of_verb[0]
    kinds = ((_HOW_MUCH, _MONEY_KEYS), (_WHO, _PERSON_KEYS), (_WHEN, _DATE_KEYS), (_WHERE, _PLACE_KEYS))
    for pattern, keys in sorted(kinds, key=lambda kind: kind[0].match(question.lstrip()) is None):
        if pattern.search(question):
            is_money = keys is _MONEY_KEYS
            fitting = [
                cell
                for cell in others
                if content_stems(cell.key) & (keys | _BALANCE if is_money else keys)
                and not (is_money and "%" in cell.value)
            ]
            return fitting[0] if len(fitting) == 1 else None
    measure = _HOW_LARGE.match(question.lstrip())
    if measure is not None:
        keys = content_stems(_MEASURES[measure["word"].lower()])
        fitting = [cell for cell in others if content_stems(cell.key.replace("_", " ")) & keys]
        return fitting[0] if len(fitting) == 1 else None
    stems_of_row = {stem for cell in named for stem in content_stems(f"{cell.key} {cell.value}")}
    return others[0] if others and wanted <= stems_of_row and _WHAT.match(question) else None
