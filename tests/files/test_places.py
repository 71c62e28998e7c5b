"""A quote is placed on its own page, slide, cell or entry, not on those of its chunk."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import docx
import odfdo
import pytest

from desk_rag.bench.size.many_files import MadeUpText
from desk_rag.config import IndexSettings
from desk_rag.documents import document, file_chunks
from desk_rag.documents.formats import place_units
from desk_rag.model.prompt import PromptFormat, load_prompt
from tests.files.pdf_pages import pdf_of

_PAGES = ("The lease begins in May.", "The deposit is 900 euro.", "The garden is shared.")
_EVENT = "BEGIN:VEVENT\nUID:{0}\nDTSTART:2026050{0}T100000Z\nSUMMARY:{1}\nLOCATION:{2}\nEND:VEVENT\n"
_EVENTS = (("Dentist", "Mill Street"), ("Choir", "Town hall"), ("Chess", "Library"))
_CELLS = ("We count the herons.", "The sample has 40 birds.", "Then we draw them.")


@pytest.fixture(scope="module")
def prompt(reader_dir: Path) -> PromptFormat:
    return load_prompt(reader_dir)


def _pdf() -> bytes:
    return pdf_of(*([(72.0, 700.0, 12.0, text)] for text in _PAGES))


def _calendar() -> bytes:
    events = "".join(_EVENT.format(number, *event) for number, event in enumerate(_EVENTS, 1))
    return f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n{events}END:VCALENDAR\n".encode()


def _notebook() -> bytes:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": [text]} for text in _CELLS]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def _word() -> bytes:
    office_file = docx.Document()
    office_file.sections[0].header.paragraphs[0].text = "Harbour Trust"
    office_file.sections[0].footer.paragraphs[0].text = "Company number 12"
    office_file.add_heading("Loft", 1)
    office_file.add_paragraph("")
    office_file.add_paragraph("It is red.\nIt was blue.")
    table = office_file.add_table(2, 3)
    for number, text in enumerate(("Item", "Price", "Day", "Door", "40", "Monday")):
        table.cell(number // 3, number % 3).text = text
    office_file.add_paragraph("The rope is new.", style="List Bullet")
    data = io.BytesIO()
    office_file.save(data)
    return data.getvalue()


def _open_text() -> bytes:
    office_file = odfdo.Document("text")
    office_file.body.clear()
    paragraphs = [odfdo.Paragraph(""), odfdo.Paragraph("It is red.")]
    for part in (odfdo.Header(1, "Loft"), *paragraphs, odfdo.List(["A bell", "A rope"])):
        office_file.body.append(part)
    data = io.BytesIO()
    office_file.save(data)
    return data.getvalue()


_RTF = rb"{\rtf1\ansi The loft is red.\par\par\trowd\intbl Door\cell 40\cell\row\pard The rope is new.\par}"
_CANVAS = json.dumps(
    {"nodes": [
        {"id": "b", "type": "text", "text": "# Rope\n\nIt is new.", "x": 0, "y": 300},
        {"id": "a", "type": "text", "text": "The loft is red.", "x": 0, "y": 0},
    ]}
).encode()  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "quote", "whole", "place"),
    [
        ("lease.pdf", _pdf(), _PAGES[1], "pp. 1-3", "p. 2"),
        ("birds.ipynb", _notebook(), _CELLS[1], "cells 1-3", "cell 2"),
        ("week.ics", _calendar(), "Town hall", "entries 1-3", "Choir"),
        ("loft.docx", _word(), "It was blue", "paragraphs 1-4", "paragraph 2"),
        ("loft.docx", _word(), "Door", "paragraphs 1-4", "paragraph 3"),
        ("loft.docx", _word(), "rope is new", "paragraphs 1-4", "paragraph 4"),
        ("loft.docx", _word(), "Company number", "paragraphs 1-4", ""),
        ("loft.odt", _open_text(), "A rope", "paragraphs 1-4", "paragraph 4"),
        ("loft.rtf", _RTF, "rope is new", "paragraphs 1-3", "paragraph 3"),
        ("loft.canvas", _CANVAS, "is new", "cards 1-2", "card 2"),
        ("wrapped.md", b"# Loft\n\nIt\nis red.\n\nThe rope\nis blue.\n", "rope is blue", "lines 1-7", "lines 6-7"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_place_of_a_quote(
    tmp_path: Path, prompt: PromptFormat, name: str, content: bytes, quote: str, whole: str, place: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    _, chunks = file_chunks.read(path, IndexSettings(), prompt, prompt.chunk_size, document.never)
    (chunk,) = chunks
    location = replace(chunk.location, units=place_units(name))
    start = chunk.text.index(quote)
    assert str(location) == whole
    of_quote = str(location.within(chunk.text, start, start + len(quote)))
    assert of_quote.startswith(place) and bool(of_quote) == bool(place)


def test_every_part_begins_at_its_own_text(tmp_path: Path, prompt: PromptFormat) -> None:
    path = tmp_path / "long.pdf"
    words = MadeUpText(5)
    texts = [words.paragraph(1) for _ in range(60)]
    path.write_bytes(pdf_of(*([(72.0, 700.0 - 9 * page, 8.0, text)] for page, text in enumerate(texts))))
    _, chunks = file_chunks.read(path, IndexSettings(), prompt, prompt.chunk_size, document.never)
    pages = []
    for chunk in chunks:
        ends = [part.begin for part in chunk.location.parts[1:]] + [len(chunk.text)]
        for part, end in zip(chunk.location.parts, ends, strict=True):
            assert part.page is not None and chunk.text[part.begin : end].strip() in texts[part.page - 1]
            pages.append(part.page)
    assert len(chunks) > 1 and sorted(set(pages)) == list(range(1, 61))
