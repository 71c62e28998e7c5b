"""Read what the reader of cells leaves out of .xlsx and .ods workbooks.

Comments, charts, which numbers are shown in per cent, and merged cells of .ods.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lxml import etree

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_OF_DOCUMENT = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_RELATION = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_ANNOTATION = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}annotation"
_PARAGRAPH = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}p"
_CREATOR = "{http://purl.org/dc/elements/1.1/}creator"
_OBJECT = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}object"
_LINK = "{http://www.w3.org/1999/xlink}href"
_CHART_PART = re.compile(r"xl/charts/chart\d*\.xml")
_MOST_BYTES = 64 * 1024 * 1024
_BUILT_IN_PERCENTS = frozenset(("9", "10"))
"""Numbers of the formats 0% and 0.00% (ECMA-376, 18.8.30)."""
_STYLED_CELL = re.compile(rb'<c r="([A-Z]{1,3})(\d{1,7})" s="(\d{1,5})"')
_VALUE_TYPE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}value-type"
_CELL = re.compile(r"([A-Z]{1,3})(\d{1,7})")
_IN_THREAD = re.compile(r"^\[Threaded comment\].*?Comment:\s*", re.DOTALL)
"""Words that Excel writes before a comment of a thread, for programs that know no threads."""


@dataclass(frozen=True, slots=True)
class CellComment:
    """A comment of one cell."""

    cell: str
    """'B2'."""
    row: int
    author: str
    text: str

    def __str__(self) -> str:
        """'Comment on B2 by Ana: agreed by phone'."""
        return f"Comment on {self.cell}{f' by {self.author}' if self.author else ''}: {self.text}"


@dataclass(slots=True)
class SheetDetails:
    """Details of one sheet besides its cells."""

    comments: list[CellComment] = field(default_factory=list)
    charts: list[bytes] = field(default_factory=list)
    """The XML of each chart."""
    merged: dict[tuple[int, int], int] = field(default_factory=dict)
    """Last row of each cell of several rows, by the (row, column) it begins at, all from 0."""
    percents: set[tuple[int, int]] = field(default_factory=set)
    """Row and column, from 0, of the cells whose numbers are shown in per cent."""


def details_by_sheet(data: bytes) -> dict[str, SheetDetails]:
    """Return the details of a workbook by the name of their sheet; empty for other formats and damaged parts."""
    details: defaultdict[str, SheetDetails] = defaultdict(SheetDetails)
    if not data.startswith(b"PK"):
        return details
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = frozenset(archive.namelist())
            if "content.xml" in names:
                _take_open_document(archive, names, details)
            else:
                _take_excel(archive, names, details)
    except (etree.XMLSyntaxError, zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RuntimeError):
        return details  # the cells are worth more than details that cannot be read
    return details


def _take_excel(archive: zipfile.ZipFile, names: frozenset[str], details: dict[str, SheetDetails]) -> None:
    percents = _percent_styles(archive) if "xl/styles.xml" in names else frozenset()
    if not percents and not any("comments" in name or "/charts/" in name for name in names):
        return
    files = dict(_relations(archive, "xl/workbook.xml"))
    for sheet in _tree(archive, "xl/workbook.xml").iter(f"{_MAIN}sheet"):
        part = files.get(sheet.get(f"{_OF_DOCUMENT}id", ""), "")
        own = details[sheet.get("name", "")]
        if percents and part in names:
            cells = _STYLED_CELL.finditer(_content(archive, part))
            own.percents |= {_place(cell[1], cell[2]) for cell in cells if int(cell[3]) in percents}
        for _, target in _relations(archive, part) if part in names else ():
            if "comments" in target.lower() and target.endswith(".xml") and "threaded" not in target.lower():
                tree = _tree(archive, target)
                authors = ["".join(author.itertext()).strip() for author in tree.iter(f"{_MAIN}author")]
                comments = [_excel_comment(comment, authors) for comment in tree.iter(f"{_MAIN}comment")]
                own.comments += [comment for comment in comments if comment.text]
            elif "/drawings/drawing" in target and target in names:
                charts = [chart for _, chart in _relations(archive, target) if _CHART_PART.fullmatch(chart)]
                own.charts += [_content(archive, chart) for chart in charts if chart in names]


def _percent_styles(archive: zipfile.ZipFile) -> frozenset[int]:
    """Return the numbers of the styles of cells that show their numbers in per cent."""
    tree = _tree(archive, "xl/styles.xml")
    own = {form.get("numFmtId") for form in tree.iter(f"{_MAIN}numFmt") if "%" in form.get("formatCode", "")}
    styles = tree.find(f"{_MAIN}cellXfs")
    numbered = enumerate(styles if styles is not None else ())
    return frozenset(number for number, style in numbered if style.get("numFmtId") in own | _BUILT_IN_PERCENTS)


def _place(letters: bytes, row: bytes) -> tuple[int, int]:
    """Return row and column, from 0, of the cell 'B2'."""
    column = 0
    for letter in letters:
        column = 26 * column + letter - ord("A") + 1
    return int(row) - 1, column - 1


def _excel_comment(comment: Any, authors: list[str]) -> CellComment:
    number = int(comment.get("authorId", "-1"))
    author = authors[number] if 0 <= number < len(authors) else ""
    author = "" if author.startswith("tc=") else author  # the mark of a thread
    pieces = ("".join(piece.itertext()) for piece in comment.iter(f"{_MAIN}t"))
    text = _IN_THREAD.sub("", "".join(pieces)).strip()
    place = _CELL.fullmatch(comment.get("ref", ""))
    shown = " ".join(text.removeprefix(f"{author}:").split())  # Excel begins a comment with its author's name
    return CellComment(place[0] if place else "", int(place[2]) if place else 0, author, shown)


def _relations(archive: zipfile.ZipFile, part: str) -> Iterator[tuple[str, str]]:
    """Yield (id, name of the part) of what a part refers to."""
    folder, _, file = part.rpartition("/")
    source = f"{folder}/_rels/{file}.rels"
    if source not in archive.namelist():
        return
    for relation in _tree(archive, source).iter(_RELATION):
        target = relation.get("Target", "")
        yield relation.get("Id", ""), posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")


def _take_open_document(archive: zipfile.ZipFile, names: frozenset[str], details: dict[str, SheetDetails]) -> None:
    for table in _tree(archive, "content.xml").iter(f"{_TABLE}table"):
        own = details[table.get(f"{_TABLE}name", "")]
        row = 1
        for line in table.iter(f"{_TABLE}table-row"):
            column = 1
            for cell in line:
                own.comments += _annotations(cell, row, column)
                if (height := _number(cell, "number-rows-spanned")) > 1:
                    own.merged[row - 1, column - 1] = row - 2 + height
                if cell.get(_VALUE_TYPE) == "percentage":
                    own.percents.add((row - 1, column - 1))
                column += _number(cell, "number-columns-repeated")
            row += _number(line, "number-rows-repeated")
        for place in table.iter(_OBJECT):
            part = f"{place.get(_LINK, '').removeprefix('./')}/content.xml"
            if part in names:
                own.charts.append(_content(archive, part))


def _annotations(cell: Any, row: int, column: int) -> Iterator[CellComment]:
    for note in cell.iter(_ANNOTATION):
        author = " ".join("".join(name.text or "" for name in note.iter(_CREATOR)).split())
        paragraphs = (" ".join("".join(part.itertext()).split()) for part in note.iter(_PARAGRAPH))
        if text := _IN_THREAD.sub("", " ".join(filter(None, paragraphs))):
            yield CellComment(f"{_letters(column)}{row}", row, author, text)


def _number(element: Any, name: str) -> int:
    return int(element.get(f"{_TABLE}{name}", "1"))


def _letters(column: int) -> str:
    letters = ""
    while column > 0:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _tree(archive: zipfile.ZipFile, part: str) -> Any:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    return etree.fromstring(_content(archive, part), parser)


def _content(archive: zipfile.ZipFile, part: str) -> bytes:
    entry = archive.getinfo(part)
    if entry.file_size > _MOST_BYTES:
        raise ValueError(f"{part} is too large")
    return archive.read(entry)
