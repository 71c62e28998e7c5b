"""Read Word documents (.docx): text, tables, charts, notes, comments, headers and footers in order.

There are no pages and lines: Word decides on pages when it prints. Paragraphs are numbered, a table as one; text boxes,
notes and comments have the number of the paragraph that they hang on. A document with tracked changes is read as if all
of them were accepted. Macros, links and embedded files are left alone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, table_rows
from desk_rag.documents.parsers.office.charts import add_chart
from desk_rag.documents.parsers.office.containers import check_unpacked_size, is_page_number
from desk_rag.errors import BrokenDocument

if TYPE_CHECKING:
    from docx.document import Document

_HEADING_STYLE = re.compile(r"heading (?P<level>[1-9])$", re.IGNORECASE)
_UNTITLED = re.compile(r"(?:untitled|document\d*|word document|microsoft word.*|.*\.docx?)$", re.IGNORECASE)
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_ALSO_DOCUMENTS = (
    "application/vnd.ms-word.document.macroEnabled.main+xml",
    "application/vnd.ms-word.template.macroEnabledTemplate.main+xml",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.template.main+xml",
)
_MOST_COLUMNS = 60
_CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}chart"
_RELATION_ID = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_FORMULA_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_ALTERNATIVE = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_SKIPPED = frozenset({f"{_W}del", f"{_W}moveFrom", f"{_W}instrText", f"{_W}txbxContent", _ALTERNATIVE})
"""Deleted text, the origin of moved text, field codes, text boxes (read on their own), and copies for old programs."""
_WRAPPERS = frozenset(f"{_W}{name}" for name in ("sdt", "sdtContent", "ins", "moveTo", "customXml", "smartTag"))
"""Elements around paragraphs and tables: content controls, tracked insertions and marks."""
_WHITE_SPACE = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_NOTES = {f"{_W}footnoteReference": "footnotes", f"{_W}endnoteReference": "endnotes"}
_WORDS = {"footnotes": "Footnote", "endnotes": "Endnote", "comments": "Comment"}


def parse(data: bytes) -> Parsed:
    """Return blocks with paragraphs as lines; the title is the document property or the paragraph in style Title.

    Raises BrokenDocument for a damaged container or one that unpacks beyond all measure.
    """
    check_unpacked_size(data, "a Word document")
    try:
        document = _opened(data)
    except Exception as error:  # python-docx lets KeyError, lxml and zip errors through
        raise BrokenDocument("is not a Word document that can be opened (damaged?)") from error
    builder = Builder()
    title = (document.core_properties.title or "").strip()
    if not _UNTITLED.match(title):
        builder.set_title(title)
    reader = _Reader(builder, document)
    reader.add_running_text("header")
    reader.add_all(document.element.body, is_counted=True)
    builder.end_paragraphs()
    reader.add_running_text("footer")
    return builder.done()


def _opened(data: bytes) -> Document:
    """Open a document, or one with macros or a template, which python-docx reads as well but would refuse."""
    from docx.opc.part import PartFactory
    from docx.package import Package
    from docx.parts.document import DocumentPart

    PartFactory.part_type_for.update(dict.fromkeys(_ALSO_DOCUMENTS, DocumentPart))
    part = Package.open(io.BytesIO(data)).main_document_part
    assert isinstance(part, DocumentPart)
    return part.document


class _Reader:
    """Adds the elements of one document to a builder."""

    def __init__(self, builder: Builder, document: Document) -> None:
        self._builder = builder
        self._document = document
        self._styles = {style.style_id: str(style.name or "") for style in document.styles}
        self._notes = {kind: _notes(document, kind) for kind in _WORDS}

    def add_all(self, parent: Any, *, is_counted: bool = False) -> None:
        """Add all paragraphs and tables below an element, content controls and tracked insertions included."""
        for element in _content(parent):
            if is_counted:
                self._builder.next_paragraph()
            if element.tag == f"{_W}tbl":
                self._add_table(element)
            else:
                self._add_paragraph(element)

    def add_running_text(self, kind: str) -> None:
        """Add each text that stands in headers or footers once, without page numbers."""
        seen: set[str] = set()
        for section in self._document.sections:
            for prefix in ("first_page_", "", "even_page_"):
                part = getattr(section, prefix + kind)
                if part.is_linked_to_previous:
                    continue
                for element in _content(part._element):
                    text = " ".join(_text(element).split())
                    if text not in seen and not is_page_number(text):
                        seen.add(text)
                        self._builder.add(text, BlockKind.PARAGRAPH)

    def _add_paragraph(self, paragraph: Any) -> None:
        builder, text = self._builder, _text(paragraph)
        properties = paragraph.pPr
        styled = properties is not None and properties.pStyle is not None
        style = self._styles.get(properties.pStyle.val, "") if styled else ""
        heading = _HEADING_STYLE.match(style)
        if style.lower() == "title":
            builder.set_title(text)
            builder.heading(1, text)
        elif heading:
            # Under a Title paragraph, which is the outermost heading, everything sits one level deeper.
            builder.heading(int(heading["level"]) + 1, text)
        elif style.lower().startswith("list") or (properties is not None and properties.numPr is not None):
            builder.add(f"- {' '.join(text.split())}" if text.strip() else "", BlockKind.LIST)
        else:
            for line in text.split("\n"):
                builder.add(line, BlockKind.PARAGRAPH)
        self._add_referenced(paragraph)

    def _add_referenced(self, paragraph: Any) -> None:
        """Add the text boxes and charts of a paragraph, and the notes and comments that it refers to."""
        for chart in paragraph.iter(_CHART):
            part = self._document.part.related_parts.get(chart.get(_RELATION_ID) or "")
            if part is not None and next(chart.iterancestors(f"{_W}p")) is paragraph:
                add_chart(self._builder, part.blob, None)
        for box in _own_boxes(paragraph):
            self.add_all(box)
        for element in paragraph.iter(*_NOTES, f"{_W}commentReference"):
            kind = _NOTES.get(element.tag, "comments")
            if text := self._notes[kind].pop(element.get(f"{_W}id"), ""):
                self._builder.add(f"{_WORDS[kind]}{text}", BlockKind.PARAGRAPH)

    def _add_table(self, table: Any) -> None:
        rows, paragraphs, above = [], [], list[str]()
        for row in table.iter(f"{_W}tr"):
            if next(row.iterancestors(f"{_W}tbl")) is not table:
                continue  # a table inside a cell, whose text is part of that cell
            cells = [cell for cell in row.iter(f"{_W}tc") if next(cell.iterancestors(f"{_W}tr")) is row]
            in_cells = [list(cell.iter(f"{_W}p")) for cell in cells]
            texts: list[str] = []
            for cell, inside in zip(cells, in_cells, strict=True):
                text = " ".join(" ".join(map(_text, inside)).split())
                if _continues_above(cell) and len(texts) < len(above):
                    text = above[len(texts)]
                texts += [text, *[""] * (_columns_of(cell) - 1)]
            above = texts
            paragraphs += [paragraph for inside in in_cells for paragraph in inside]
            if any(texts):
                rows.append(texts)
        if rows:
            mark = next(table.iter(f"{_W}tr")).find(f"{_W}trPr/{_W}tblHeader")
            marked = mark is not None and mark.get(f"{_W}val") not in ("0", "false", "off")
            for words in table_rows(rows, marked or None):
                self._builder.add(words, BlockKind.TABLE)
        for paragraph in paragraphs:
            self._add_referenced(paragraph)


def _continues_above(cell: Any) -> bool:
    """Return whether a cell is part of a merged one that begins in a row above."""
    merge = cell.find(f"{_W}tcPr/{_W}vMerge")
    return merge is not None and merge.get(f"{_W}val") in (None, "continue")


def _columns_of(cell: Any) -> int:
    """Return over how many columns a cell reaches."""
    span = cell.find(f"{_W}tcPr/{_W}gridSpan")
    written = span.get(f"{_W}val") or "" if span is not None else ""
    return min(max(int(written), 1), _MOST_COLUMNS) if written.isdecimal() else 1


def _content(parent: Any) -> Iterator[Any]:
    """Yield paragraphs and tables in order, also from content controls and tracked insertions around them."""
    for element in parent:
        if element.tag in (f"{_W}p", f"{_W}tbl"):
            yield element
        elif element.tag in _WRAPPERS:
            yield from _content(element)


def _text(element: Any) -> str:
    """Return the text of a paragraph as it is when all tracked changes are accepted."""
    if element.tag in _SKIPPED:
        return ""
    if element.tag in (f"{_W}t", _FORMULA_TEXT):
        return element.text or ""
    if element.tag in _WHITE_SPACE:
        return _WHITE_SPACE[element.tag]
    if element.tag == f"{_W}pPr":  # the tab stops in it are no tabs
        return ""
    return "".join(map(_text, element))


def _own_boxes(paragraph: Any) -> Iterator[Any]:
    for box in paragraph.iter(f"{_W}txbxContent"):
        inside_copy = any(True for _ in box.iterancestors(_ALTERNATIVE))
        if not inside_copy and next(box.iterancestors(f"{_W}p")) is paragraph:
            yield box


def _notes(document: Document, kind: str) -> dict[str, str]:
    """Return the notes or comments of a document by their ids, each as it follows the word for it: ' by Ana: …'."""
    from lxml import etree

    notes: dict[str, str] = {}
    for relation in document.part.rels.values():
        if relation.is_external or not relation.reltype.endswith(f"/{kind}"):
            continue
        try:
            root = etree.fromstring(relation.target_part.blob, etree.XMLParser(resolve_entities=False))
        except etree.XMLSyntaxError:
            continue
        for note in root:
            text = " ".join(" ".join(_text(paragraph) for paragraph in note.iter(f"{_W}p")).split())
            author = note.get(f"{_W}author")
            if text:
                notes[note.get(f"{_W}id")] = f" by {author}: {text}" if author else f": {text}"
    return notes
