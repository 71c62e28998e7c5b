"""Read labels and values: 'Monthly rent: 1,150 euros', a row of two cells, the header of a mail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from desk_rag.documents.sentences import NO_END

if TYPE_CHECKING:
    from desk_rag.store.types import Passage

_CELL_BREAK = "; "
_CELL = re.compile(r"^(?P<key>[^:;]{1,60}): (?P<value>.*)$", re.S)
_FIRST_LABEL = r"^[^\W\d_][^:;.!?\n]{1,40}"
_INNER_LABEL = r"(?<=\s)[^\W\d_a-z][^\s:;,.]*(?:\s(?:[a-z0-9%(/&.-][^\s:;,]*|[A-Z]{2,4}\b)){0,3}"
_LABEL = re.compile(rf"(?P<label>{_FIRST_LABEL}?|{_INNER_LABEL})\s?:\s+(?=\S)")
_LONGEST_VALUE = 120


@dataclass(frozen=True, slots=True)
class Field:
    """A label and its value, with the words of the passage in which they stand."""

    label: str
    value: str
    quote: str
    passage: Passage
    around: str = ""
    """Other words of the line that say what the value is, such as the names of the columns."""


def fields_of(passages: Sequence[Passage]) -> list[Field]:
    """The fields of a document in order."""
    return [
        field for passage in passages for line in passage.chunk.text.split("\n") for field in _fields(line, passage)
    ]


def cells_of(line: str) -> list[tuple[str, str]]:
    """The cells of a row as (column, value), columns being empty where none is known; [] for other lines."""
    if _CELL_BREAK not in line:
        return []
    return [_cell(part) for part in line.split(_CELL_BREAK)]


def without_sheet(cells: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the cells of a row without the name of its sheet, which stands first in a workbook with several."""
    return list(cells[1:] if len(cells) > 1 and cells[0][0] == "Sheet" else cells)


def _cell(part: str) -> tuple[str, str]:
    match = _CELL.match(part)
    return (match["key"].strip(), match["value"].strip()) if match else ("", part.strip())


def _fields(line: str, passage: Passage) -> Iterator[Field]:
    cells = cells_of(line.strip())
    if cells and line.startswith("From: "):
        yield from (Field(key, value, line, passage) for key, value in cells if key)
    elif cells and _is_row(cells, line):
        yield from _of_row(cells, line, passage)
    else:
        yield from _of_text(line, passage)


def _is_row(cells: Sequence[tuple[str, str]], line: str) -> bool:
    """True for the row of a table, False for a sentence with a semicolon."""
    return all(key for key, _ in cells) or (len(line) < 200 and all(len(value.split()) < 8 for _, value in cells))


def _of_row(cells: Sequence[tuple[str, str]], line: str, passage: Passage) -> Iterator[Field]:
    """The first cell is the label of the last; a pair of columns may itself be the first pair of a sheet."""
    cells = without_sheet(cells)
    keys = [key for key, _ in cells]
    (first, label), (last, value) = cells[0], cells[-1]
    if len(cells) == 2 and first and re.search(r"\d", last):
        yield Field(first, last, line, passage)
    yield Field(label, value, line, passage, " ".join(keys))


def _of_text(line: str, passage: Passage) -> Iterator[Field]:
    labels = [match for match in _LABEL.finditer(line) if match["label"].count("(") == match["label"].count(")")]
    ends = [*(match.start() for match in labels[1:]), len(line)]
    for match, end in zip(labels, ends[-len(labels) :] if labels else [], strict=True):
        value = line[match.end() : end].strip()
        if value and len(value) <= _LONGEST_VALUE:
            quote = line[match.start() : end].strip()
            yield Field(match["label"].strip(), _first_sentence(value), _first_sentence(quote), passage)
        elif value:
            short = _first_sentence(value)
            if len(short) <= _LONGEST_VALUE:
                yield Field(match["label"].strip(), short, line[match.start() : match.end()] + short, passage)


def _first_sentence(value: str) -> str:
    """The value up to the end of its sentence: what follows belongs to the text."""
    ends = (match.end() for match in re.finditer(r"(?<=[a-z\d)]{2})[.!?](?=\s+[A-Z])", value))
    end = next((end for end in ends if not NO_END.search(value[:end])), None)
    return value if end is None else value[:end].rstrip(".")
