"""Add up one column of tables over the rows that a question names: 'How many hours did Ana work in 2024?'

One rule for all: where rows of a table fit a question for an amount over a time, or for all of something, they are
shown and added, and the answer says which column of how many rows was added.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.conditions import YesNo, conditions
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.questions.folder.tables.cells import (
    OF_PERSON,
    PAYMENT,
    PRICE,
    Cell,
    Cells,
    Unit,
    of_one_table,
    read,
)
from desk_rag.answering.questions.narrowing import indexed
from desk_rag.answering.questions.whole_folder import FolderQuestion
from desk_rag.answering.requirements import amounts
from desk_rag.answering.requirements.answer_kinds import MONEY_WORDS, asks_money
from desk_rag.answering.requirements.dates import MONTHS
from desk_rag.answering.requirements.statements.prices import PRICE_LIST
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.answering.requirements.titles import without_titles
from desk_rag.documents.status import plural
from desk_rag.sanitize import clean_name

_MONTH = re.compile(rf"(?:{'|'.join(f'{name}|{name[:3]}' for name in MONTHS)})\.?(?:\s+\d{{4}})?", re.I)
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
_EVERY = re.compile(r"\b(?:all|every|each|whole|both)\b", re.I)
_PAID = re.compile(
    r"^(?:what|how\s+much)\s+(?:money\s+)?(?:did|have|had)\s+(?:I|we)\s+(?:pay|paid|spend|spent)\s+"
    r"(?:(?:to|at|with)\s+)?(?P<rest>(?!for\b|on\b).+)",
    re.I,
)
_SPENT = re.compile(
    r"^(?:what|how\s+much)\s+(?:money\s+)?(?:(?:did|have|had)\s+(?:I|we)\s+(?P<verb>pay|paid|spend|spent)"
    r"|(?:was|has\s+been)\s+(?P<passive>paid|spent))\s+(?:on|for)\s+(?P<rest>.+)",
    re.I,
)
_COST = re.compile(
    r"^(?:what|how\s+much)\s+(?:did|do|does|have|has)\s+(?P<thing>.+?)\s+costs?(?:\s+(?:us|me))?(?P<when>(?:,?\s.+)?)$",
    re.I,
)
_OF_YEAR = re.compile(
    r"^(?:how\s+(?:much|many)|what|(?!when|who|where|why|which|is|are|was|were|did|does|do|has|have|compare|list|show|summari[sz]e)"
    r"(?:our|my|the|[^\W\d_]+))\b",
    re.I,
)
"""Beginning of a question that may be one for a year's sum: 'House repairs in 2024?'"""
_LEVELS = re.compile(
    r"\b(?:balance|saldo|level|stock|temperature|weight|height|pressure|score|index|average|mean|members)\b|%", re.I
)
"""Names of columns whose months make no sum."""
_FEWEST_OF_THING = 2
"""Rows about one thing that are added up; of a single one, its cell is the answer."""
_COUNTED = content_stems("quantity qty number pieces count units amount no")
"""Columns that say how many a price is of."""
_READINGS = re.compile(r"readings?|meters?|zähler(?:stand|stände)?|odometer", re.I)
"""Names of tables whose numbers grow from row to row, so that they must not be added up."""
_LIGHT = content_stems(
    "I we me my our us you did have has had work worked spend spent all every each whole both total sum of on for in at"
    " by"
)
_LIGHT_OF_YEAR = _LIGHT | content_stems("how much many what is are was were cost costs paid pay total sum amount money")
_MOST = 200


@dataclass(frozen=True, slots=True)
class _Asked:
    unit: Unit
    names: frozenset[str]
    others: frozenset[str]
    period: Period | None
    words: str
    of_owner: bool = False
    """True if the question is one for what 'I' or 'we' did."""
    of_payee: bool = False
    """True if it asks what was paid to somebody."""
    of_thing: bool = False
    """True if it asks what something cost."""
    is_all: bool = False
    """True if it asks for all rows, so that name or title of a file may say what they are of."""

    of_year: bool = False
    """True if it asks for what the months of a year have in one column."""

    @property
    def is_exact(self) -> bool:
        """True if no word of the question may be missing."""
        return self.of_payee or self.of_thing or self.unit.is_done


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the sum and every row of it; nothing if no table has such a column, or no row is of what is asked."""
    _, asked_conditions = conditions(" ".join(question.text.split()).rstrip("?!. "))
    if any(isinstance(one, YesNo) and one.needed for one in asked_conditions):
        return  # a sum over all rows says nothing of those that have not paid
    for reading in (_asked_of_year, _asked_as_done, _asked_of_thing, _asked):
        asked = reading(question.text, question.today)
        if asked is not None and (yield from _sum(question, asked)):
            return


def _sum(question: FolderQuestion, asked: _Asked) -> Generator[AnswerEvent, None, bool]:
    """Yield the sum that one reading of the question asks for; return False if there is none."""
    table = read(question.store, asked.unit, question.under)
    named = [cell for cell in _named(table, asked) if not _is_price_of(question.text, cell)]
    counted = [cell for cell in named if cell.number is not None]
    timed = [cell for cell in counted if cell.is_in(asked.period)]
    people = {value for cell in timed for key, value in cell.fields.items() if OF_PERSON.match(key)}
    if not counted or (asked.of_owner and len(people) > 1):
        return False
    timed = [cell for cell in timed if amounts.measure_of(cell.column, "")] or timed
    column = _column_asked(question.text, timed or counted)
    added = [cell for cell in timed if cell.column.casefold() == column]
    if asked.of_thing and (len(added) < _FEWEST_OF_THING or not of_one_table(added)):
        return False
    if not added and (asked.is_exact or not any(cell.is_timed for cell in counted)):
        return False
    if asked.of_thing and _COST.match(_plain(question.text)) and _is_priced(question, asked):
        return False
    if asked.of_year and not _is_year_by_months(asked, added):
        return False
    doubts = [*_doubts(asked, added)]
    lines = [_result(asked, added, counted), *_notes(added, named), *doubts]
    yield from question.answered(
        "\n".join(lines), [cell.row for cell in added[:_MOST]], table.passages, table.files,
        found=bool(added), support=0.0 if doubts else None,
    )  # fmt: skip
    return True


def _is_price_of(question: str, cell: Cell) -> bool:
    """True for '12 euros' below “Members”, which is no number of members."""
    is_of_things = question.strip().lower().startswith("how many") and not re.search(MONEY_WORDS, question)
    return is_of_things and re.search(MONEY_WORDS, cell.fields.get(cell.column, "")) is not None


def _named(table: Cells, asked: _Asked) -> list[Cell]:
    """The cells whose rows are of what is asked; [] if the tables do not know it."""
    cells = table.cells
    known = {stem for cell in cells for stem in cell.words | cell.around}
    unknown = asked.others - known
    if not cells or len(unknown) > (0 if asked.is_exact else 1) or not asked.names <= known:
        return []
    wanted = asked.names | (asked.others - unknown)
    named = [cell for cell in cells if asked.unit.is_done and wanted <= cell.around]
    named = [cell for cell in named if content_stems(cell.column) == content_stems(asked.unit.name)]
    named = named or [cell for cell in cells if wanted <= cell.words]
    if not named and asked.of_thing:  # 'electricity' in the row, 'village hall' the folder
        named = [cell for cell in cells if wanted & cell.words and wanted <= cell.words | cell.around]
    if not named and (asked.is_all or not asked.is_exact):
        named = [cell for cell in cells if wanted <= cell.words | cell.around]
    return named


def _is_priced(question: FolderQuestion, asked: _Asked) -> bool:
    """True if a price list has what is asked for: 'What did the room cost in 2024?' is no sum of bookings then."""
    if asked.is_all:
        return False
    lists = (row for row in indexed(question.store, question.under) if PRICE_LIST & content_stems(row.path.stem))
    texts = (one.chunk.text for row in lists for one in question.store.passages_of(row.path))
    lines = (line for text in texts for line in text.split("\n"))
    return any(asked.others & content_stems(line) and re.search(r"\d", line) for line in lines)


def _column_asked(question: str, cells: Sequence[Cell]) -> str:
    """The column whose name has most words of the question, 'rent_received' for rent received; else that of most.

    Of several with as many rows, that of the total.
    """
    words, total = content_stems(question), content_stems("total")
    counts = Counter(cell.column.casefold() for cell in cells)
    stems = {column: content_stems(column.replace("_", " ")) for column in counts}
    return max(counts, key=lambda column: (len(words & stems[column]), counts[column], total <= stems[column]))


def _plain(question: str) -> str:
    return without_titles(" ".join(question.split()).rstrip("?!. "))


def _asked(question: str, today: date) -> _Asked | None:
    plain = _plain(question)
    match = _MANY.match(plain) or _TOTAL.match(plain) or _PAID.match(plain)
    if match is None:
        return None
    rest, period = take_period(_ALL.sub("", match["rest"]), today)
    names = _capitals(rest)
    of_owner = re.match(r"\s*(?:I|we)\b", rest, re.I) is not None
    if not (names or period or of_owner or _ALL.search(match["rest"]) or match.re is _TOTAL):
        return None  # 'How many hours did the meeting last?' is one fact
    of_payee = match.re is _PAID
    if of_payee and not names:
        return None
    of_names = content_stems(" ".join(names))
    things = match.groupdict().get("of") or ""
    others = frozenset(content_stems(f"{things} {rest}") - of_names - _LIGHT)
    name = PAYMENT if of_payee else match["unit"].lower()
    unit = Unit(name, is_money=asks_money(plain), label=others)
    return _Asked(unit, frozenset(of_names), others, period, " ".join(names), of_owner, of_payee)


def _asked_as_done(question: str, today: date) -> _Asked | None:
    """The question with what was done as the unit: 'counted' in 'How many slow worms were counted in plot P1?'"""
    match = _DONE.match(_plain(question))
    if match is None:
        return None
    rest, period = take_period(match["rest"], today)
    names = _capitals(rest)
    of_names = frozenset(content_stems(" ".join(names)))
    others = frozenset(content_stems(f"{match['things']} {rest}") - of_names - _LIGHT)
    words = " ".join([match["things"].strip(), *names])
    return _Asked(Unit(match["unit"].lower(), is_done=True), of_names, others, period, words)


def _asked_of_thing(question: str, today: date) -> _Asked | None:
    """The question for what was spent on something over a time, or for what all of something cost."""
    plain = _plain(question)
    match = _SPENT.match(plain) or _COST.match(plain)
    if match is None:
        return None
    groups = match.groupdict()
    asked_of = groups.get("rest") or f"{groups.get('thing')} {groups.get('when') or ''}"
    is_all = bool(_ALL.search(asked_of) or _EVERY.search(asked_of))
    rest, period = take_period(_ALL.sub("", asked_of), today)
    goes_on = (groups.get("verb") or groups.get("passive") or "").lower().startswith("spen")
    things = frozenset(content_stems(rest) - _LIGHT)
    if not things or not (is_all or period or goes_on):
        return None  # 'What did the plotter cost?' is one fact
    words = " ".join(word for word in re.findall(r"[\w'’&-]+", rest) if content_stems(word) & things)
    unit = Unit(PRICE, is_money=True)
    return _Asked(unit, frozenset(), things, period, words, of_thing=True, is_all=is_all)


def _asked_of_year(question: str, today: date) -> _Asked | None:
    """The question for what a column has in a whole year, if only the column and the year are named."""
    plain = _plain(question)
    rest, period = take_period(_ALL.sub("", plain), today)
    spans = period.spans if period is not None and period.also is None else ()
    is_year = len(spans) == 1 and spans[0].first == (spans[0].last[0], 1, 1) and spans[0].last[1:] == (12, 31)
    words = [word for word in re.findall(r"[\w'’&-]+", rest) if content_stems(word) - _LIGHT_OF_YEAR]
    if not is_year or not words or not _OF_YEAR.match(plain):
        return None
    return _Asked(Unit(" ".join(words)), frozenset(), frozenset(), period, "", of_year=True)


def _is_year_by_months(asked: _Asked, added: Sequence[Cell]) -> bool:
    """True if rows of one file, each of another month, have a column with just the name that is asked for."""
    if len(added) < 2:
        return False
    column = added[0].column
    is_called = content_stems(column) - _LIGHT == content_stems(asked.unit.name)
    months = [[value.casefold()[:3] for value in cell.fields.values() if _MONTH.fullmatch(value)] for cell in added]
    is_monthly = all(len(named) == 1 for named in months) and len({named[0] for named in months if named}) == len(added)
    of_one_file = len({cell.path for cell in added}) == 1
    return is_called and is_monthly and of_one_file and not _LEVELS.search(column)


def _capitals(text: str) -> list[str]:
    """The names and numbers of a question."""
    words = re.findall(r"[\w'’&-]+", text)
    return [word for word in words if (word[0].isupper() or word[0].isdigit()) and word != "I"]


def _doubts(asked: _Asked, added: Sequence[Cell]) -> Iterator[str]:
    """Sentences about rows that may make no sum: readings of a meter, money that came back, copies."""
    names = [name for cell in added for name in (cell.path.stem, cell.column) if _READINGS.search(name)]
    if names:
        yield f"“{clean_name(names[0])}” may hold readings of a meter, which make no sum."
    if not (asked.of_payee or asked.of_thing):
        return
    if len({cell.number < 0 for cell in added if cell.number is not None}) > 1:
        yield "Some of it was paid and some came back."
    files = {(cell.row.text, cell.path) for cell in added}
    if not of_one_table(added) or len({text for text, _ in files}) < len(files):
        yield "Several tables have such rows, and may say the same twice."
    of_pieces = [key for key in added[0].fields if key != added[0].column and content_stems(key) & _COUNTED]
    if asked.of_thing and of_pieces and PRICE in added[0].column.casefold():
        yield f"“{added[0].column}” may be that of one piece: the rows have a column “{of_pieces[0]}” too."


def _result(asked: _Asked, added: Sequence[Cell], counted: Sequence[Cell]) -> str:
    those = f"{f' with “{asked.words}”' if asked.words else ''}{f' {asked.period.words}' if asked.period else ''}"
    if not added:
        others = plural(len(counted), "row")
        verb = "is" if len(counted) == 1 else "are"
        return f"No row{those} has a number of {asked.unit.name}; {others} of other times {verb} there."
    files = ", ".join(dict.fromkeys(clean_name(cell.path.name) for cell in added))
    rows, noun = plural(len(added), "line"), "line"
    if not added[0].is_line:
        rows, noun = plural(len(added), "row"), "column"
    more = f" (the first {_MOST} are shown)" if len(added) > _MOST else ""
    numbers = [cell.number for cell in added if cell.number is not None]
    paid_out = (asked.of_payee or asked.of_thing) and sum(numbers) < 0
    total = amounts.written([-number for number in numbers] if paid_out else numbers)
    column = added[0].column
    return f"{total}{asked.unit.shown} (computed: the sum of the {noun} “{column}” in {rows} of {files}{those}{more})"


def _notes(added: Sequence[Cell], named: Sequence[Cell]) -> Iterator[str]:
    """Say which columns were left out."""
    chosen = {cell.column.casefold() for cell in added}
    others = [cell for cell in named if added and cell.column.casefold() not in chosen]
    left_out = Counter((cell.column, cell.path.name) for cell in others)
    if left_out:
        columns = "; ".join(f"“{column}” in {clean_name(name)} ({plural(count, 'row')})"
                            for (column, name), count in left_out.items())  # fmt: skip
        yield f"Left out, because it is another column: {columns}."
