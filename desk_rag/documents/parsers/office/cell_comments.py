"""Read the comments of cells in .xlsx and .ods workbooks, which the reader of their cells leaves out."""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lxml import etree

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_OF_DOCUMENT = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_RELATION = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_ANNOTATION = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}annotation"
_PARAGRAPH = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}p"
_CREATOR = "{http://purl.org/dc/elements/1.1/}creator"
_MOST_BYTES = 64 * 1024 * 1024
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


def comments_by_sheet(data: bytes) -> dict[str, list[CellComment]]:
    """Return the comments of a workbook by the name of their sheet; empty for other formats and damaged parts."""
    comments: dict[str, list[CellComment]] = {}
    if not data.startswith(b"PK"):
        return comments
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = frozenset(archive.namelist())
            read = _of_open_document(archive) if "content.xml" in names else _of_excel(archive, names)
            for sheet, comment in read:
                if comment.text:
                    comments.setdefault(sheet, []).append(comment)
    except (etree.XMLSyntaxError, zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RuntimeError):
        return comments  # the cells are worth more than comments that cannot be read
    return comments


def _of_excel(archive: zipfile.ZipFile, names: frozenset[str]) -> Iterator[tuple[str, CellComment]]:
    if not any("comments" in name for name in names):
        return
    files = dict(_relations(archive, "xl/workbook.xml"))
    for sheet in _tree(archive, "xl/workbook.xml").iter(f"{_MAIN}sheet"):
        part = files.get(sheet.get(f"{_OF_DOCUMENT}id", ""), "")
        for _, target in _relations(archive, part) if part in names else ():
            if "comments" in target.lower() and target.endswith(".xml") and "threaded" not in target.lower():
                tree = _tree(archive, target)
                authors = ["".join(author.itertext()).strip() for author in tree.iter(f"{_MAIN}author")]
                for comment in tree.iter(f"{_MAIN}comment"):
                    yield sheet.get("name", ""), _excel_comment(comment, authors)


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


def _of_open_document(archive: zipfile.ZipFile) -> Iterator[tuple[str, CellComment]]:
    for table in _tree(archive, "content.xml").iter(f"{_TABLE}table"):
        row = 1
        for line in table.iter(f"{_TABLE}table-row"):
            column = 1
            for cell in line:
                for note in cell.iter(_ANNOTATION):
                    author = " ".join("".join(name.text or "" for name in note.iter(_CREATOR)).split())
                    paragraphs = (" ".join("".join(part.itertext()).split()) for part in note.iter(_PARAGRAPH))
                    text = _IN_THREAD.sub("", " ".join(filter(None, paragraphs)))
                    yield table.get(f"{_TABLE}name", ""), CellComment(f"{_letters(column)}{row}", row, author, text)
                column += int(cell.get(f"{_TABLE}number-columns-repeated", "1"))
            row += int(line.get(f"{_TABLE}number-rows-repeated", "1"))


def _letters(column: int) -> str:
    letters = ""
    while column > 0:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _tree(archive: zipfile.ZipFile, part: str) -> Any:
    entry = archive.getinfo(part)
    if entry.file_size > _MOST_BYTES:
        raise ValueError(f"{part} is too large")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    return etree.fromstring(archive.read(entry), parser)
