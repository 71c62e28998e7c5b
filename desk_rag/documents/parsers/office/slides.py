"""Presentations (.pptx, .odp): text, tables and speaker notes, slide by slide; the page is the slide's number."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, table_rows
from desk_rag.documents.parsers.office.charts import add_chart
from desk_rag.documents.parsers.office.containers import check_unpacked_size
from desk_rag.errors import BrokenDocument

if TYPE_CHECKING:
    from pptx.presentation import Presentation

_ALSO_PRESENTATIONS = (
    "application/vnd.ms-powerpoint.slideshow.macroEnabled.main+xml",
    "application/vnd.ms-powerpoint.template.macroEnabled.main+xml",
)
_ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_FORMULA_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"


def parse(data: bytes) -> Parsed:
    """Slides of a PowerPoint file. Raises BrokenDocument for a damaged one."""
    check_unpacked_size(data, "a PowerPoint file")
    try:
        presentation = _opened(data)
        slides = list(presentation.slides)
    except Exception as error:  # python-pptx lets KeyError, lxml and zip errors through
        raise BrokenDocument("is not a PowerPoint file that can be opened (damaged?)") from error
    builder = Builder()
    builder.set_title(presentation.core_properties.title or "")
    for number, slide in enumerate(slides, start=1):
        _open_alternatives(slide)
        title = slide.shapes.title
        heading = " ".join(title.text_frame.text.split()) if title is not None else ""
        builder.heading(1, heading or f"Slide {number}", page=number, opens_chunk=True)
        for shape in _leaf_shapes(slide.shapes):
            if title is None or shape.shape_id != title.shape_id:
                _add_shape(builder, shape, number)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            _add_paragraphs(builder, slide.notes_slide.notes_text_frame, number, prefix="Notes: ")
    return builder.done()


def _opened(data: bytes) -> Presentation:
    """Open a presentation, slide show or template, with or without macros; python-pptx refuses most for their type."""
    from pptx.opc.package import PartFactory
    from pptx.package import Package
    from pptx.parts.presentation import PresentationPart

    PartFactory.part_type_for.update(dict.fromkeys(_ALSO_PRESENTATIONS, PresentationPart))
    return Package.open(io.BytesIO(data)).main_document_part.presentation


def _open_alternatives(slide: Any) -> None:
    """Put the first of several versions of a shape in the place of all; PowerPoint writes formulas and ink so."""
    for alternatives in list(slide._element.iter(_ALTERNATIVES)):
        version = next(iter(alternatives), None)
        for shape in list(version) if version is not None else ():
            alternatives.addprevious(shape)
        alternatives.getparent().remove(alternatives)


def _leaf_shapes(shapes: Any) -> Iterator[Any]:
    """Shapes in reading order (top to bottom, then left to right), groups opened."""
    for shape in sorted(shapes, key=lambda shape: (shape.top or 0, shape.left or 0)):
        if hasattr(shape, "shapes"):
            yield from _leaf_shapes(shape.shapes)
        else:
            yield shape


def _add_shape(builder: Builder, shape: Any, number: int) -> None:
    if getattr(shape, "has_table", False) and shape.has_table:
        rows = [[" ".join(cell.text.split()) for cell in row.cells] for row in shape.table.rows]
        for words in table_rows(rows) if rows else ():
            builder.add(words, BlockKind.TABLE, page=number)
    elif getattr(shape, "has_chart", False) and shape.has_chart:
        add_chart(builder, shape.chart.part.blob, number)
    elif shape.has_text_frame:
        _add_paragraphs(builder, shape.text_frame, number)


def _add_paragraphs(builder: Builder, frame: Any, number: int, prefix: str = "") -> None:
    for paragraph in frame.paragraphs:
        text = " ".join(_text(paragraph).split())
        if text:
            builder.add(prefix + text, BlockKind.PARAGRAPH if prefix else BlockKind.LIST, page=number)
            prefix = ""


def _text(paragraph: Any) -> str:
    """Return the words of a paragraph, those of its formulas too."""
    tags = f"{_DRAWING}t", f"{_DRAWING}br", _FORMULA_TEXT
    return "".join(" " if element.tag == tags[1] else element.text or "" for element in paragraph._p.iter(*tags))
