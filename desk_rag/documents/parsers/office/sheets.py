"""Parse spreadsheets (.xlsx, .xlsm, .xlsb, .xls, .ods): one TABLE block per row, with its sheet and row number.

Of a formula only the result is read that was saved with it. Hidden sheets are read as well. Comments stand
below the row of their cell, titles and series of charts below the cells that they show.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed, looks_like_header, row_text
from desk_rag.documents.parsers.office.charts import add_chart
from desk_rag.documents.parsers.office.containers import check_unpacked_size
from desk_rag.documents.parsers.office.sheet_details import CellComment, SheetDetails, details_by_sheet
from desk_rag.errors import BrokenDocument

_NO_RESULT = re.compile(rb"<f\b[^>]*>[^<]*</f>\s*(?:<v\s*/>|<v></v>|</c>)")
_NOT_CALCULATED = "formulas without a saved result are not read (open and save the file in a spreadsheet program)"
_SEARCHED_MIB = 64
_MOST_EXACT = 2.0**53
"""Whole numbers below it are exact in a cell."""


def parse(data: bytes, most_text: int) -> Parsed:
    """Rows as 'Column: value; Column: value' below their sheet's name; lines are row numbers.

    Stops once more than `most_text` bytes are collected. Raises BrokenDocument for a damaged or encrypted workbook.
    """
    import python_calamine

    if data.startswith(b"PK"):
        check_unpacked_size(data, "a spreadsheet")
    try:
        workbook = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
        names = workbook.sheet_names
    except python_calamine.PasswordError as error:
        raise BrokenDocument("is encrypted", remedy="Save it without a password.") from error
    except (python_calamine.CalamineError, OSError, ValueError) as error:
        raise BrokenDocument("is not a spreadsheet that can be opened (damaged?)") from error
    builder, details = Builder(), details_by_sheet(data)
    for page, name in enumerate(names, start=1):
        of_sheet = details.get(name) or SheetDetails()
        rows, first, merged = _cells(workbook, name)
        if rows or of_sheet.charts:
            builder.heading(1, name, page=page, opens_chunk=True)
        comments = sorted(of_sheet.comments, key=lambda comment: comment.row)
        adder = _RowAdder(builder, page, name if len(names) > 1 else "", comments)
        _show_percents(rows, first, of_sheet.percents)
        _add_rows(adder, rows, first, merged | of_sheet.merged, most_text)
        if rows:
            adder.add_comments()
        for chart in of_sheet.charts:
            add_chart(builder, chart, page, with_values=False)
        if builder.exceeds(most_text):
            break
    note = _NOT_CALCULATED if _holds_uncalculated_formulas(data) else ""
    return builder.done(note, first_heading_is_title=False)


@dataclass(frozen=True, slots=True)
class _RowAdder:
    """Adds the rows of one sheet to the document."""

    builder: Builder
    page: int
    sheet: str
    """The sheet's name, which each row carries if there are several sheets: their rows may be alike; else ''."""
    comments: list[CellComment]
    """Comments of cells in rows that are still to come, the first row first."""

    def add(self, headers: Sequence[str], cells: Sequence[str], number: int) -> None:
        """Add row `number` as 'Sheet: name; Column: value; …'."""
        text = row_text(headers, cells)
        text = f"Sheet: {self.sheet}; {text}" if self.sheet and text else text
        self.builder.add(text, BlockKind.TABLE, Lines(number, number), self.page)
        self.add_comments(number)

    def add_comments(self, last: int | None = None) -> None:
        """Add the comments of cells up to row `last`, by default all that are left."""
        while self.comments and (last is None or self.comments[0].row <= last):
            comment = self.comments.pop(0)
            lines = Lines(comment.row or None, comment.row or None)
            self.builder.add(str(comment), BlockKind.TABLE, lines, self.page)

    def add_header(self, names: Sequence[str], number: int) -> None:
        """Add the names of the columns."""
        self.builder.add("; ".join(names), BlockKind.TABLE, Lines(number, number), self.page)
        self.add_comments(number)


def _cells(workbook: Any, name: str) -> tuple[list[list[object]], tuple[int, int], dict[tuple[int, int], int]]:
    """Return rows, the place of the first cell, and the last row of cells of several rows by their place, from 0."""
    import python_calamine

    try:
        sheet = workbook.get_sheet_by_name(name)
        rows = sheet.to_python(skip_empty_area=True)
    except (python_calamine.CalamineError, ValueError):
        return [], (0, 0), {}  # chart sheets and macro sheets hold no cells
    ranges = sheet.merged_cell_ranges or []
    merged = {(top, column): bottom for (top, column), (bottom, _) in ranges if bottom > top}
    return rows, sheet.start or (0, 0), merged


def _holds_uncalculated_formulas(data: bytes) -> bool:
    """True if an .xlsx file has formulas without results, as programs write that do not calculate."""
    if not data.startswith(b"PK"):
        return False
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        sheets = [entry for entry in archive.infolist() if entry.filename.startswith("xl/worksheets/sheet")]
        small = [entry for entry in sheets if entry.file_size <= _SEARCHED_MIB * 1024 * 1024]
        return any(_NO_RESULT.search(archive.read(entry)) for entry in small)


def _add_rows(
    adder: _RowAdder,
    rows: Sequence[Sequence[object]],
    first: tuple[int, int],
    merged: dict[tuple[int, int], int],
    most_text: int,
) -> None:
    """Add the rows of a sheet; `first` is the row and column, from 0, of its first cell."""
    headers: list[str] | None = None
    spans: dict[int, tuple[int, str]] = {}  # last row and text of the merged cell that covers a column
    for number, row in enumerate(rows, start=first[0] + 1):
        if adder.builder.exceeds(most_text):
            return
        cells = [_shown(cell) for cell in row]
        filled = [cell for cell in cells if cell]
        if not filled:
            headers = None  # an empty row ends a table; the next one may have a header of its own
            continue
        if merged:
            for column, cell in enumerate(cells):
                bottom = merged.get((number - 1, first[1] + column))
                if bottom is not None and cell:
                    spans[column] = bottom, cell
                elif not cell and spans.get(column, (-1, ""))[0] >= number - 1:
                    cells[column] = spans[column][1]
        if headers is None and len(filled) > 1:
            headers = cells if looks_like_header(filled) else []
            if headers:
                adder.add_header(filled, number)
                continue
        adder.add(headers or (), cells, number)


def _show_percents(rows: Sequence[list[object]], first: tuple[int, int], places: Set[tuple[int, int]]) -> None:
    """Put '12.5%' in the place of 0.125 where the sheet shows it so."""
    for number, column in places:
        row, inside = number - first[0], column - first[1]
        if 0 <= row < len(rows) and 0 <= inside < len(rows[row]) and isinstance(share := rows[row][inside], float):
            rows[row][inside] = f"{_shown(round(100 * share, 8))}%"


def _shown(cell: object) -> str:
    """A cell as a person sees it: whole numbers without '.0', dates as 2026-05-03."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < _MOST_EXACT else f"{cell:.10g}"
    if isinstance(cell, datetime):
        return cell.strftime("%Y-%m-%d") if cell.time() == time() else cell.strftime("%Y-%m-%d %H:%M")
    if isinstance(cell, timedelta):
        minutes, seconds = divmod(round(cell.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02d}" + (f":{seconds:02d}" if seconds else "")
    if isinstance(cell, (date, time)):
        return str(cell)
    return " ".join(str(cell).split())
