"""Word documents (.docx): paragraphs, headings, list items and tables in reading order.

Knows no pages and no lines: Word decides on pages when it prints. Macros, links and embedded files are left alone.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, table_rows
from desk_rag.documents.parsers.office.containers import check_unpacked_size
from desk_rag.errors import BrokenDocument

if TYPE_CHECKING:
    from docx.table import Table
    from docx.text.paragraph import Paragraph

_HEADING_STYLE = re.compile(r"heading (?P<level>[1-9])$", re.IGNORECASE)
_UNTITLED = re.compile(r"(?:untitled|document\d*|word document|microsoft word.*|.*\.docx?)$", re.IGNORECASE)


def parse(data: bytes) -> Parsed:
    """Blocks without page or line; the title is the document property or the paragraph in style Title.

    Raises BrokenDocument for a damaged container or one that unpacks beyond all measure.
    """
    import docx
    from docx.table import Table

    check_unpacked_size(data, "a Word document")
    try:
        document = docx.Document(io.BytesIO(data))
    except Exception as error:  # python-docx lets KeyError, lxml and zip errors through
        raise BrokenDocument("is not a Word document that can be opened (damaged?)") from error
    builder = Builder()
    named = (document.core_properties.title or "").strip()
    if not _UNTITLED.match(named):
        builder.set_title(named)
    styles = {style.style_id: str(style.name or "") for style in document.styles}
    for item in document.iter_inner_content():
        if isinstance(item, Table):
            _add_table(builder, item)
        else:
            _add_paragraph(builder, item, styles)
    return builder.done()


def _add_paragraph(builder: Builder, paragraph: Paragraph, styles: dict[str, str]) -> None:
    text = paragraph.text
    properties = paragraph._p.pPr  # the public style lookup searches the style part for each paragraph
    style = styles.get(properties.pStyle.val, "") if properties is not None and properties.pStyle is not None else ""
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


def _add_table(builder: Builder, table: Table) -> None:
    rows = []
    for row in table.rows:
        # A merged cell is listed once per column it covers.
        distinct = {id(cell._tc): " ".join(cell.text.split()) for cell in row.cells}
        if any(distinct.values()):
            rows.append(list(distinct.values()))
    if rows:
        for words in table_rows(rows):
            builder.add(words, BlockKind.TABLE)
