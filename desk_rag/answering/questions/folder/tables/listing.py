"""List the rows of a table that a question asks for: 'Which guests have allergies?', 'Which guests came in 2025?'

The thing that is asked for, in the plural, is a column; each other word must stand in the rows or name their file.
Without other words ('Which rooms do we have?') there is one row for each value of the column.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.questions.folder.reading.records import is_in
from desk_rag.answering.questions.folder.tables.cells import rows_of
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.questions.whole_folder import FolderQuestion, listed, show
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.status import plural
from desk_rag.sanitize import clean, clean_name
from desk_rag.store.catalog.words import name_words

if TYPE_CHECKING:
    from desk_rag.store.types import Passage

_ASKS = re.compile(
    r"^(?:(?:which|what)|(?:list|show|name|give)\s+(?:me\s+)?(?:all|every)?\s*(?:(?:of\s+)?(?:the|my|our))?)\s+"
    r"(?P<thing>[^\W\d_]{3,}s)\b(?P<rest>(?:\s.+)?)$",
    re.I,
)
_SUPERLATIVE = re.compile(
    r"\b(?:most|least|fewest|[a-z]{3,}est|first|last|not|never|no|n['’]t|without|except|than)\b", re.I
)
"""Words of a question that a list of rows does not answer."""
_LIGHT = content_stems(
    "I we me my our us you there any all every each the and do does did have has had are is was were be been get got"
    " came come comes stay stayed visit visited know kept keep listed"
)
_FEWEST, _MOST = 2, 200
_SHEET = "Sheet"
"""Column that names the sheet, in workbooks with several."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """A row of a table that a question asks for."""

    row: Row
    cells: dict[str, str]
    column: str
    """The column of the thing that is asked for."""

    @property
    def value(self) -> str:
        return self.cells[self.column]

    @property
    def first_column(self) -> str:
        return next(name for name in self.cells if name != _SHEET)

    @property
    def words(self) -> str:
        """The value and the other cells: 'Lindqvist, Ebba (must not have: cow milk; since: 2024)'."""
        others = "; ".join(f"{name}: {cell}" for name, cell in self.cells.items() if name not in (self.column, _SHEET))
        return clean(f"{self.value}{f' ({others})' if others else ''}", single_line=True)


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the rows of one table; nothing if no table has such a column, or fewer than two rows are meant."""
    match = _ASKS.match(" ".join(question.text.split()).rstrip("?!. "))
    if match is None or _SUPERLATIVE.search(match["rest"]):
        return
    thing = content_stems(match["thing"])
    rest, period = take_period(match["rest"], question.today)
    wanted = content_stems(rest) - _LIGHT - thing
    if not thing:
        return
    documents = list(distinct(indexed(question.store, question.under)))
    by_document = [question.store.passages_of(document.path) for document in documents]
    tables: dict[str, list[_Listed]] = defaultdict(list)
    for passages in by_document:
        for one in _rows(passages, thing, wanted, period):
            tables[one.first_column].append(one)
    rows = max(tables.values(), key=len, default=[])
    if len(rows) < _FEWEST:
        return
    first_by_value: dict[str, _Listed] = {}
    for one in rows:
        first_by_value.setdefault(one.value, one)
    column = rows[0].column
    is_of_values = not wanted and period is None and thing == _stems(column)
    rows = list(first_by_value.values()) if is_of_values else rows
    shown, roots = show(question.store, [one.row for one in rows[:_MOST]]), question.store.volumes.roots()
    lines = [
        listed(citation, one.words, one.row.passage.path, roots, with_place=True)
        for citation, one in zip(shown.citations, rows, strict=False)
    ]
    names = clean("; ".join(first_by_value), single_line=True)
    files = ", ".join(dict.fromkeys(clean_name(one.row.passage.path.name) for one in rows))
    when = f" {period.words}" if period is not None else ""
    more = f" (the first {_MOST} are shown)" if len(rows) > _MOST else ""
    count = f"The first row of each “{column}”" if is_of_values else plural(len(rows), "row")
    text = "\n".join([names, f"{count} of {files}{when}{more}:", *lines])
    yield from question.answered(text, shown, sum(map(len, by_document)), len(documents))


def _rows(
    passages: Sequence[Passage], thing: set[str], wanted: set[str], period: Period | None
) -> Iterator[_Listed]:
    """The rows of a file that are meant, with the column of the thing, or the first of a file that is called so."""
    for row, cells in rows_of(passages):
        passage = row.passage
        is_called_so = thing == _stems(passage.path.stem)
        columns = [name for name in cells if name != _SHEET]
        column = next((name for name in columns if _stems(name) == thing), columns[0] if is_called_so else None)
        known = content_stems(
            f"{row.text} {name_words(passage.path)} {passage.title} {passage.chunk.location.heading}"
        )
        if column is None or not all(has_stem(stem, known) for stem in wanted):
            continue
        if period is None or is_in(row.text, passage.path, period):
            yield _Listed(row, cells, column)


def _stems(name: str) -> set[str]:
    """The stems of a column's or a file's name."""
    return content_stems(re.sub(r"[_-]", " ", name))
