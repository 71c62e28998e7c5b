"""Parse comma- and tab-separated values: one TABLE block per row, which names its columns, with line numbers."""

from __future__ import annotations

import csv
import io
from collections import Counter

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed, looks_like_header, row_text
from desk_rag.errors import BrokenDocument

_DELIMITERS = ",;\t|"


def parse(text: str, note: str = "") -> Parsed:
    """Rows as 'Column: value; Column: value'; a file without a header row gives plain values.

    Raises BrokenDocument when the quoting cannot be followed.
    """
    builder = Builder()
    csv.field_size_limit(len(text) + 1)
    delimiter = _delimiter(text)
    width = _width(text, delimiter)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    headers: list[str] | None = None
    last = 0
    try:
        for row in reader:
            first, last = last + 1, reader.line_num
            if not any(cell.strip() for cell in row):
                continue
            # A bank writes its name above the table, and a sheet its title, with empty cells behind it.
            is_title = width > 2 and sum(bool(cell.strip()) for cell in row) == 1
            if headers is None and not is_title and (width <= 1 or len(row) >= width):
                headers = list(row) if looks_like_header(row) else []
                if headers:
                    header_lines = Lines(first, last)
                    continue
            builder.add(row_text(headers or (), row), BlockKind.TABLE, Lines(first, last))
    except csv.Error as error:
        raise BrokenDocument(f"is not a readable table near line {reader.line_num}: {error}") from error
    if builder.empty and headers:
        builder.add(row_text((), headers), BlockKind.TABLE, header_lines)
    return builder.done(note)


def _delimiter(text: str) -> str:
    """The candidate that splits the first lines most evenly."""
    sample = _sample(text)
    counts = {mark: [line.count(mark) for line in sample] for mark in _DELIMITERS}
    return max(_DELIMITERS, key=lambda mark: (min(counts[mark], default=0), sum(counts[mark])))


def _width(text: str, delimiter: str) -> int:
    """Columns of most of the first rows, so that lines above the table's header are known by having fewer."""
    try:
        widths = Counter(len(row) for row in csv.reader(_sample(text), delimiter=delimiter))
    except csv.Error:
        return 1
    return max(widths, key=lambda width: (widths[width], width), default=1)


def _sample(text: str) -> list[str]:
    return [line for line in text[:20_000].split("\n") if line.strip()][:20]
