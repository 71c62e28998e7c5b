"""List the rows of a table that a question asks for: 'Which guests have allergies?', 'Which guests came in 2025?'

The thing that is asked for, in the plural, is a column; each other word must stand in the rows or name their file.
Without other words ('Which rooms do we have?') there is one row for each value of the column.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.questions.folder.reading.records import is_in
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.questions.whole_folder import FolderQuestion, listed, show
from desk_rag.answering.requirements import amounts
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
    passages = 0
    documents = list(distinct(indexed(question.store, question.under)))
    tables: dict[tuple[str, ...], list[tuple[Row, str]]] = defaultdict(list)
    for document in documents:
        of_file = list(question.store.passages_of(document.path))
        passages += len(of_file)
        for row, key in _rows(of_file, thing, wanted, period):
            tables[_columns(row)[:1]].append((row, key))
    rows = max(tables.values(), key=len, default=[])
    if len(rows) < _FEWEST:
        return
    is_of_values = not wanted and period is None and thing == content_stems(rows[0][1].replace("_", " "))
    if is_of_values:
        rows = _first_of_each(rows)
    shown, roots = show(question.store, [row for row, _ in rows[:_MOST]]), question.store.volumes.roots()
    lines = [
        listed(citation, _words(row, key), row.passage.path, roots, with_place=True)
        for citation, (row, key) in zip(shown.citations, rows, strict=False)
    ]
    files = ", ".join(dict.fromkeys(clean_name(row.passage.path.name) for row, _ in rows))
    names = [_value(row, key) for row, key in _first_of_each(rows)]
    when = f" {period.words}" if period is not None else ""
    more = f" (the first {_MOST} are shown)" if len(rows) > _MOST else ""
    count = f"The first row of each “{rows[0][1]}”" if is_of_values else plural(len(rows), "row")
    head = f"{clean('; '.join(names), single_line=True)}\n{count} of {files}{when}{more}:"
    text = "\n".join([head, *lines])
    yield from question.answered(text, shown, passages, len(documents))


def _rows(
    passages: Sequence[Passage], thing: set[str], wanted: set[str], period: Period | None
) -> Iterator[tuple[Row, str]]:
    """The rows of a file that are meant, each with the column of the thing; the first of a file called like it."""
    for passage in passages:
        named = content_stems(passage.path.stem.replace("_", " ").replace("-", " "))
        around = content_stems(f"{name_words(passage.path)} {passage.title} {passage.chunk.location.heading}")
        for line in passage.chunk.text.split("\n"):
            fields = amounts.fields_of(line)
            columns = [name for name in fields if name != "Sheet"]
            key = next((name for name in columns if content_stems(name.replace("_", " ")) == thing), None)
            if thing == named and columns:
                key = key or columns[0]
            known = content_stems(line) | around
            if key is None or len(fields) < 2 or not all(has_stem(stem, known) for stem in wanted):
                continue
            row = Row(passage, line.strip())
            if period is None or is_in(row.text, passage.path, period):
                yield row, key


def _first_of_each(rows: Sequence[tuple[Row, str]]) -> list[tuple[Row, str]]:
    """The first row of each value of the thing's column."""
    firsts: dict[str, tuple[Row, str]] = {}
    for row, key in rows:
        firsts.setdefault(_value(row, key), (row, key))
    return list(firsts.values())


def _value(row: Row, key: str) -> str:
    return amounts.fields_of(row.text)[key]


def _columns(row: Row) -> tuple[str, ...]:
    """The names of a row's columns without that of its sheet, which stands in workbooks with several."""
    return tuple(name for name in amounts.fields_of(row.text) if name != "Sheet")


def _words(row: Row, key: str) -> str:
    """The value of the column and the other cells: 'Lindqvist, Ebba (must not have: cow milk; since: 2024)'."""
    fields = amounts.fields_of(row.text)
    others = "; ".join(f"{name}: {value}" for name, value in fields.items() if name not in (key, "Sheet"))
    return clean(f"{fields[key]}{f' ({others})' if others else ''}", single_line=True)
