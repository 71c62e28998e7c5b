"""Read charts of Office and OpenDocument files: title, axes, and the values that the file keeps for drawing them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from lxml import etree

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, table_rows

_C = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_CHART = "{urn:oasis:names:tc:opendocument:xmlns:chart:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_PARAGRAPH = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}p"
_MOST_POINTS = 5000
_FIRST_DAY = date(1899, 12, 30)
_LAST_DAY = 2958465
"""Number of 31 December 9999, counted from the day that spreadsheets count from."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart's words and values."""

    title: str
    axes: tuple[str, ...]
    names: tuple[str, ...]
    """Names of the series."""
    rows: tuple[tuple[str, ...], ...]
    """A category and its value in each series."""


def add_chart(builder: Builder, data: bytes, page: int | None, *, with_values: bool = True) -> None:
    """Append a chart by the XML of its part: title, axes, and one row per category.

    Without values, which a workbook has in its cells, the names of the series are given. A damaged chart is left out.
    """
    try:
        root = etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False))
    except etree.XMLSyntaxError:
        return
    chart = _of_open_document(root) if root.find(f".//{_CHART}chart") is not None else _of_office(root)
    parts = [chart.title, f"axes: {', '.join(chart.axes)}" if chart.axes else ""]
    names = ", ".join(filter(None, chart.names))
    parts.append(f"series: {names}" if names and not (with_values and chart.rows) else "")
    if any(parts):
        builder.add(f"Chart: {'; '.join(filter(None, parts))}", BlockKind.PARAGRAPH, page=page)
    if with_values and chart.rows:
        for words in table_rows([["Category", *chart.names], *chart.rows], True):
            builder.add(words, BlockKind.TABLE, page=page)


def _of_office(root: Any) -> Chart:
    chart = root.find(f".//{_C}chart")
    area = root.find(f".//{_C}plotArea")
    axes = [_title(axis) for axis in area if axis.tag.endswith("Ax")] if area is not None else []
    names: list[str] = []
    categories: dict[int, str] = {}
    columns: list[dict[int, str]] = []
    for series in root.iter(f"{_C}ser"):
        names.append(" ".join(_points(series.find(f"{_C}tx")).values()) or f"Series {len(names) + 1}")
        for index, text in _points(_first(series, "cat", "xVal")).items():
            categories.setdefault(index, text)
        columns.append(_points(_first(series, "val", "yVal")))
    indexes = sorted({*categories, *(index for column in columns for index in column)})[:_MOST_POINTS]
    rows = tuple(
        (categories.get(index, str(index + 1)), *(column.get(index, "") for column in columns)) for index in indexes
    )
    return Chart(_title(chart), tuple(filter(None, axes)), tuple(names), rows)


def _first(series: Any, *tags: str) -> Any:
    return next((found for tag in tags if (found := series.find(f"{_C}{tag}")) is not None), None)


def _title(element: Any) -> str:
    """Return the title of a chart or an axis."""
    title = element.find(f"{_C}title") if element is not None else None
    if title is None:
        return ""
    return _words("".join(part.text or "" for part in title.iter(f"{_A}t"))) or " ".join(_points(title).values())


def _points(element: Any) -> dict[int, str]:
    """Return the kept values of a reference, by their numbers; of several levels, the inner one."""
    if element is None:
        return {}
    level = element.find(f".//{_C}lvl")
    source = level if level is not None else element
    code = str(source.findtext(f".//{_C}formatCode") or "")
    points: dict[int, str] = {}
    for point in source.iter(f"{_C}pt"):
        index, value = str(point.get("idx") or ""), _words(point.findtext(f"{_C}v") or "")
        if index.isdecimal() and value:
            points[int(index)] = _shown(value, code)
    if not points and (value := source.findtext(f"{_C}v")):
        points[0] = _words(value)
    return points


def _shown(value: str, code: str) -> str:
    """Return a value as a person sees it: '4.3' for 4.2999999999999998, a date for its number."""
    try:
        number = float(value)
    except ValueError:
        return value
    if "yy" in code.lower() and 0 < number < _LAST_DAY:
        return str(_FIRST_DAY + timedelta(days=int(number)))
    return f"{number:.10g}"


def _of_open_document(root: Any) -> Chart:
    axes = [_text(axis.find(f"{_CHART}title")) for axis in root.iter(f"{_CHART}axis")]
    lines = [
        [_text(cell) for cell in line if str(cell.tag).endswith("table-cell")]
        for line in root.iter(f"{_TABLE}table-row")
    ]
    names = tuple(lines[0][1:]) if lines else ()
    rows = tuple(tuple("" if cell == "NaN" else cell for cell in line) for line in lines[1 : _MOST_POINTS + 1])
    title = root.find(f".//{_CHART}chart/{_CHART}title")
    return Chart(_text(title), tuple(filter(None, axes)), names, tuple(row for row in rows if any(row[1:])))


def _text(element: Any) -> str:
    if element is None:
        return ""
    return _words(" ".join("".join(part.itertext()) for part in element.iter(_PARAGRAPH)))


def _words(text: str) -> str:
    return " ".join(text.split())
