"""Scans and pictures: counted and explained without OCR, read with it, and PDF pages with columns and tables."""

from __future__ import annotations

from pathlib import Path

import pypdfium2
import pytest
from PIL import Image

from desk_rag.config import IndexSettings, Settings
from desk_rag.documents import document, ocr
from desk_rag.documents.document import BlockKind, parse
from desk_rag.errors import BrokenDocument, EmptyDocument, UnsupportedDocument
from desk_rag.ingest.explanation import explain
from tests.files.pdf_pages import pdf_of

_SETTINGS = IndexSettings(parser_seconds=20)
_LINES = [
    "Boiler service report",
    "The boiler in Mill Street 4 was serviced on 12 March 2025.",
    "Dr. Weber replaced the pump for 128.50 crowns.",
]
needs_ocr = pytest.mark.skipif(not ocr.is_installed(), reason='the extra "ocr" is not installed')


def picture() -> Image.Image:
    """A page of print as a scanner sees it."""
    page = pypdfium2.PdfDocument(pdf_of([(60, 780 - 30 * row, 14, line) for row, line in enumerate(_LINES)]))[0]
    return page.render(scale=2).to_pil().convert("L")


def scan(path: Path, pages: int = 1) -> Path:
    """Write a PDF file of pictures without any text."""
    first, *others = [picture() for _ in range(pages)]
    first.save(path, "PDF", save_all=True, append_images=others)
    return path


def test_a_scan_without_ocr_is_explained_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "is_installed", lambda: False)
    with pytest.raises(BrokenDocument, match="no text layer") as caught:
        parse(scan(tmp_path / "scan.pdf"), _SETTINGS)
    assert 'the extra "ocr"' in caught.value.remedy


def test_pictures_are_left_out_unless_they_are_wanted(tmp_path: Path) -> None:
    picture().save(tmp_path / "photo.png")
    with pytest.raises(UnsupportedDocument, match="images"):
        parse(tmp_path / "photo.png", _SETTINGS)
    assert '`ocr = "all"`' in explain(None, tmp_path / "photo.png", Settings()).reason


def test_files_are_read_again_once_ocr_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = []
    for installed in (False, True):
        monkeypatch.setattr(ocr, "is_installed", lambda installed=installed: installed)
        versions.append([document.reader_version(name, _SETTINGS) for name in ("a.pdf", "a.md")])
    assert versions[0][0] != versions[1][0] and versions[0][1] == versions[1][1]


@needs_ocr
@pytest.mark.slow
def test_a_scan_is_read_with_its_pages(tmp_path: Path) -> None:
    read = parse(scan(tmp_path / "scan.pdf", pages=2), _SETTINGS)
    text = " ".join(block.text for block in read.blocks if block.page == 2)
    assert "serviced on 12 March 2025." in text and "for 128.50 crowns." in text
    assert "OCR" in read.note


@needs_ocr
@pytest.mark.slow
def test_of_a_long_scan_the_first_pages_are_read_and_the_rest_is_said(tmp_path: Path) -> None:
    settings = IndexSettings(parser_seconds=20, ocr_seconds=0.5)
    read = parse(scan(tmp_path / "scan.pdf", pages=3), settings)
    assert {block.page for block in read.blocks} == {1} and "only 1 of 3 pages" in read.note


@needs_ocr
@pytest.mark.slow
def test_text_in_a_picture_is_read_and_a_picture_without_text_is_empty(tmp_path: Path) -> None:
    settings = IndexSettings(parser_seconds=20, ocr="all")
    picture().save(tmp_path / "letter.png")
    Image.new("RGB", (300, 200), "green").save(tmp_path / "lawn.jpg")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 100)
    read = parse(tmp_path / "letter.png", settings)
    assert "12 March 2025" in " ".join(block.text for block in read.blocks)
    assert {block.page for block in read.blocks} == {None}
    with pytest.raises(EmptyDocument):
        parse(tmp_path / "lawn.jpg", settings)
    with pytest.raises(BrokenDocument, match="damaged"):
        parse(tmp_path / "broken.png", settings)


_LEFT = [
    "The boiler in the cellar was serviced on",
    "the twelfth of March by Casimir Dunn, who",
    "replaced the pump and the old thermostat",
    "for 128 crowns in all. The next service is",
    "due in a year.",
]
_RIGHT = [
    "The garden shed was painted green by the",
    "children in June. They used four litres of",
    "paint, which Nora Velling had bought at the",
    "harbour shop, and two brushes that Ludo",
    "Kestrel lent to them.",
]


def read_pdf(path: Path, marks: list[tuple[float, float, float, str]]) -> list[tuple[BlockKind, str]]:
    path.write_bytes(pdf_of(marks))
    return [(block.kind, block.text) for block in parse(path, _SETTINGS).blocks]


@pytest.mark.parametrize("line_by_line", [True, False])
def test_columns_are_read_one_after_the_other(tmp_path: Path, line_by_line: bool) -> None:
    """Whether the file holds them line by line or column by column."""
    marks = [(60.0, 780.0, 11.0, "House news of the year, told for all who live here and in the back building")]
    columns = [
        (x, 740.0 - 14 * row, 11.0, line)
        for x, side in ((60.0, _LEFT), (320.0, _RIGHT))
        for row, line in enumerate(side)
    ]
    marks += sorted(columns, key=lambda mark: -mark[1]) if line_by_line else columns
    blocks = read_pdf(tmp_path / "news.pdf", marks)
    assert [text for _, text in blocks[1:]] == [" ".join(_LEFT), " ".join(_RIGHT)]


def test_a_sentence_goes_on_at_the_top_of_the_next_column(tmp_path: Path) -> None:
    left = [*_LEFT[:4]]
    right = ["due in a year, says the letter of the firm.", *_RIGHT[1:]]
    marks = [
        (x, 740.0 - 14 * row, 11.0, line) for x, side in ((60.0, left), (320.0, right)) for row, line in enumerate(side)
    ]
    text = " ".join(text for _, text in read_pdf(tmp_path / "on.pdf", marks))
    assert "The next service is due in a year, says the letter" in text


def test_rows_of_a_table_name_their_columns(tmp_path: Path) -> None:
    rows = [("Item", "Month", "Price"), ("Tent", "May", "249.50"), ("Stove", "June", "80.00")]
    marks = [
        (x, 750.0 - 16 * number, 11.0, cell)
        for number, row in enumerate(rows)
        for x, cell in zip((60.0, 250.0, 400.0), row, strict=True)
    ]
    assert (BlockKind.TABLE, "Item: Stove; Month: June; Price: 80.00") in read_pdf(tmp_path / "prices.pdf", marks)


def test_numbers_at_the_end_of_a_page_are_no_page_number_if_they_are_cells(tmp_path: Path) -> None:
    rows = [("Apples", "12"), ("Plums", "7")]
    marks = [
        (x, 750.0 - 16 * number, 11.0, cell)
        for number, row in enumerate(rows)
        for x, cell in zip((60.0, 250.0), row, strict=True)
    ]
    assert [text for _, text in read_pdf(tmp_path / "fruit.pdf", marks)] == ["Apples: 12", "Plums: 7"]
