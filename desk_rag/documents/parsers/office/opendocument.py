"""OpenDocument text and slides (.odt, .odp): headings, paragraphs, lists and tables in reading order."""

from __future__ import annotations

import io
from typing import Any

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, table_rows
from desk_rag.documents.parsers.office.containers import check_unpacked_size
from desk_rag.errors import BrokenDocument


def parse(data: bytes) -> Parsed:
    """Blocks of a text document, or of a presentation with the slide's number as page. Raises BrokenDocument."""
    from odfdo import Document

    check_unpacked_size(data, "an OpenDocument file")
    try:
        document = Document(io.BytesIO(data))
        body = document.body
        kind = document.get_type()
    except Exception as error:  # odfdo lets KeyError, lxml and zip errors through
        raise BrokenDocument("is not an OpenDocument file that can be opened (damaged?)") from error
    builder = Builder()
    builder.set_title(document.meta.title or "")
    if kind.startswith("presentation"):
        for number, slide in enumerate(body.get_elements("//draw:page"), start=1):
            builder.heading(1, str(slide.get_attribute("draw:name") or f"Slide {number}"), page=number)
            _add_children(builder, slide, number)
    else:
        _add_children(builder, body, None)
    return builder.done()


def _add_children(builder: Builder, root: Any, page: int | None) -> None:
    """Walk the tree without recursion: a document nested 100,000 deep is only slow."""
    pending = [(child, False) for child in reversed(root.children)]
    while pending:
        element, in_list = pending.pop()
        tag = element.tag
        if tag == "text:h":
            level = int(element.get_attribute("text:outline-level") or 1)
            builder.heading(level, element.inner_text, page=page)
        elif tag == "text:p":
            builder.add(element.inner_text, BlockKind.LIST if in_list else BlockKind.PARAGRAPH, page=page)
            pending.extend((child, in_list) for child in reversed(element.get_elements("draw:frame")))
        elif tag == "table:table":
            _add_table(builder, element, page)
        elif tag not in ("text:tracked-changes", "office:annotation", "text:table-of-content"):
            pending.extend((child, in_list or tag == "text:list-item") for child in reversed(element.children))


def _add_table(builder: Builder, table: Any, page: int | None) -> None:
    rows = []
    for row in table.get_elements("descendant::table:table-row"):
        cells = row.get_elements("table:table-cell")
        texts = [" ".join(" ".join(part.inner_text for part in cell.get_elements("text:p")).split()) for cell in cells]
        if any(texts):
            rows.append(texts)
    for words in table_rows(rows) if rows else ():
        builder.add(words, BlockKind.TABLE, page=page)
