"""Spreadsheets (.xlsx, .xlsm, .xlsb, .xls, .ods): one TABLE block per row, with its sheet and row number.

Values only: what a formula computed when the file was saved. Hidden sheets are read as well.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed, looks_like_header, row_text
from desk_rag.documents.parsers.office.containers import check_unpacked_size
from desk_rag.errors import BrokenDocument

_MOST_ROWS = 200_000


def parse(data: bytes) -> Parsed:
    """Rows as 'Column: value; Column: value' below their sheet's name; lines are row numbers.

    Raises BrokenDocument for a damaged or encrypted workbook.
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
    builder = Builder()
    left = _MOST_ROWS
    for page, name in enumerate(names, start=1):
        try:
            sheet = workbook.get_sheet_by_name(name)
            first_row = (sheet.start or (0, 0))[0]
            rows = sheet.to_python(skip_empty_area=True, nrows=left)
        except (python_calamine.CalamineError, ValueError):
            continue  # chart sheets and macro sheets hold no cells
        builder.heading(1, name, page=page)
        _add_rows(builder, rows, first_row, page)
        left -= len(rows)
        if left <= 0:
            return builder.done(f"only the first {_MOST_ROWS:,} rows are read")
    return builder.done()


def _add_rows(builder: Builder, rows: Sequence[Sequence[object]], first_row: int, page: int) -> None:
    headers: list[str] | None = None
    for number, row in enumerate(rows, start=first_row + 1):
        cells = [_shown(cell) for cell in row]
        filled = [cell for cell in cells if cell]
        if not filled:
            headers = None  # an empty row ends a table; the next one may have a header of its own
            continue
        if headers is None and len(filled) > 1:
            headers = cells if looks_like_header(filled) else []
            if headers:
                builder.add("; ".join(filled), BlockKind.TABLE, Lines(number, number), page)
                continue
        builder.add(row_text(headers or (), cells), BlockKind.TABLE, Lines(number, number), page)


def _shown(cell: object) -> str:
    """A cell as a person sees it: whole numbers without '.0', dates as 2026-05-03."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 1e15 else f"{cell:.10g}"
    if isinstance(cell, datetime):
        return cell.strftime("%Y-%m-%d") if cell.time() == time() else cell.strftime("%Y-%m-%d %H:%M")
    if isinstance(cell, (date, time, timedelta)):
        return str(cell)
    return " ".join(str(cell).split())
