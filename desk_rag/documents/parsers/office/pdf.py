"""PDF: text with page numbers. pypdfium2 reads it; pypdf is asked where PDFium fails.

A PDF knows glyphs at places, not paragraphs: headings are told by letter size, paragraphs by gaps and by lines that end
early, words cut at a line end are joined, lines that repeat on most pages (running heads, page numbers) are dropped.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from desk_rag.documents import ocr
from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import NOWHERE, Builder, Parsed
from desk_rag.documents.parsers.office.layout import PrintedLine, in_rows
from desk_rag.documents.parsers.office.page_blocks import add_page, printed_lines
from desk_rag.documents.parsers.office.scans import (
    LONGEST_SIDE,
    TextRecognition,
    only_some_pages,
    recognized_note,
)
from desk_rag.errors import BrokenDocument

if TYPE_CHECKING:
    import pypdfium2

_UNTITLED = re.compile(r"(?:\(?(?:untitled|anonymous)\)?|microsoft \w+ - .*|.*\.(?:docx?|pdf|tex|odt))$", re.IGNORECASE)
_LOCKED = "is locked with a password"
_NO_TEXT = "has no text layer (scanned pages need OCR first)"
_NO_TEXT_FOUND = "has no text layer, and OCR recognises no text in it"
_PAGE_NUMBER = re.compile(r"(?:.{0,80}\W)?(?:page|p\.)\s*\d+(?:\s*(?:of|/)\s*\d+)?|\W*\d{1,4}\W*", re.IGNORECASE)
_LONGEST_NOTE = 200_000
"""Bytes of an annotation; a longer one is left out."""
_NOTE_NUMBER = re.compile(r"(?<=[^\W\d_])\d{1,3}(?!\w)|(?<=[.,;:!?”’)\"'])\d{1,3}(?=\s|$)|^\d{1,3}(?=\s)")
_LEAST_RISE, _LARGEST_MARK = 0.12, 0.82
"""Rise and size of the number of a footnote, in letter sizes of the text beside it."""
_SPACES = re.compile(r"\s+")
_WIDE_SPACE = 1.5
"""Width of a space, in letter sizes, that separates columns or cells."""


def parse(data: bytes, recognition: TextRecognition | None = None) -> Parsed:
    """Return blocks with pages; pages without a text layer are read by `recognition`, if there is one.

    Raises BrokenDocument for a locked or damaged file and for one without any text.
    """
    import pypdfium2

    notes: list[list[str]] = []
    try:
        title, pages, notes = _read_pdfium(data)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise BrokenDocument(_LOCKED, remedy="Save a copy without a password.") from error
        title, pages = _read_pypdf(data)
    builder = Builder()
    if not _UNTITLED.match(title):
        builder.set_title(title)
    notes += [[]] * (len(pages) - len(notes))
    empty = [number for number, lines in enumerate(pages, 1) if not lines and not notes[number - 1]]
    recognized: dict[int, list[PrintedLine]] = {}
    if recognition is not None and empty:
        recognized = _recognize(data, empty, recognition)
    if len(empty) == len(pages) and not any(recognized.values()):
        if recognition is not None:
            raise BrokenDocument(_NO_TEXT_FOUND)
        raise BrokenDocument(_NO_TEXT, remedy=ocr.REMEDY)
    pages = _without_running_lines([recognized.get(number, lines) for number, lines in enumerate(pages, 1)])
    sizes = _heading_sizes(pages)
    for number, (lines, written) in enumerate(zip(pages, notes, strict=True), 1):
        add_page(builder, lines, sizes)
        for text in written:
            builder.add(text, BlockKind.PARAGRAPH, NOWHERE, number)
    if builder.empty:
        raise BrokenDocument(_NO_TEXT, remedy=ocr.REMEDY)
    return builder.done(_note(empty, recognized), first_heading_is_title=not recognized)


def _note(empty: list[int], recognized: dict[int, list[PrintedLine]]) -> str:
    """Return what the user should know about pages without a text layer."""
    done = [number for number in empty if recognized.get(number)]
    left = [number for number in empty if number not in recognized]
    parts = [recognized_note(_shown(done)) if done else ""]
    if left and recognized:
        parts.append(only_some_pages(len(recognized), len(empty)))
    elif left:
        parts.append(f"no text layer on page {_shown(left)}")
    return "; ".join(filter(None, parts))


def _shown(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")


def _recognize(data: bytes, numbers: list[int], recognition: TextRecognition) -> dict[int, list[PrintedLine]]:
    """Return the printed lines of scanned pages, as many as there is time for."""
    import pypdfium2

    recognized: dict[int, list[PrintedLine]] = {}
    document = pypdfium2.PdfDocument(data)
    try:
        document.init_forms()
        for number in numbers:
            if not recognition.has_time():
                break
            page = document[number - 1]
            width, height = page.get_size()
            picture = page.render(scale=LONGEST_SIDE / max(width, height, 1.0)).to_pil()
            page.close()
            recognized[number] = printed_lines(recognition.lines(picture), number, width, height)
    finally:
        document.close()
    return recognized


def _read_pdfium(data: bytes) -> tuple[str, list[list[PrintedLine]], list[list[str]]]:
    """Return title, printed lines by page, and annotations and form fields by page."""
    import pypdfium2

    document = pypdfium2.PdfDocument(data)
    try:
        document.init_forms()
        title = str(document.get_metadata_dict().get("Title") or "").strip()
        pages = [_page_lines(document[index], index + 1) for index in range(len(document))]
        notes = [
            list(dict.fromkeys(_annotations(document[index], document.formenv)))  # buttons of a group share a value
            for index in range(len(document))
        ]
        return title, pages, notes
    finally:
        document.close()


def _page_lines(page: pypdfium2.PdfPage, number: int) -> list[PrintedLine]:
    """Return the pieces of a page's printed lines, in the order of the file."""
    textpage = page.get_textpage()
    try:
        count = textpage.count_chars()
        text = textpage.get_text_range() if count > 0 else ""
        pieces: list[PrintedLine] = []
        offset = 0
        for row, line in enumerate(text.split("\n")):
            words = line.rstrip("\r")
            if words.strip() and offset < count:
                pieces += _pieces(textpage, words, offset, PrintedLine("", number, row=row))
            elif words.strip():
                pieces.append(PrintedLine(words.strip(), number))
            offset += len(line) + 1
        return in_rows(pieces)
    finally:
        textpage.close()
        page.close()


def _pieces(textpage: pypdfium2.PdfTextPage, line: str, offset: int, place: PrintedLine) -> Iterator[PrintedLine]:
    """Yield a line in pieces, split where the space between two words is wider than letters are high."""
    import pypdfium2.raw as raw

    last = textpage.count_chars() - 1
    size = 0.0
    begin: int | None = None
    spaces = (match.span() for match in _SPACES.finditer(line))
    for space_begin, space_end in [*spaces, (len(line), len(line))]:
        if begin is None:
            begin = 0 if space_begin else space_end
            if not space_begin:
                continue
        first, end = min(offset + begin, last), min(offset + space_begin - 1, last)
        box, end_box = textpage.get_charbox(first, loose=True), textpage.get_charbox(end, loose=True)
        size = size or round(float(raw.FPDFText_GetFontSize(textpage.raw, first)), 1)
        if space_end < len(line):
            following = textpage.get_charbox(min(offset + space_end, last), loose=True)
            same_height = abs(following[3] - end_box[3]) < (end_box[3] - end_box[1]) / 2
            if not same_height or following[0] - end_box[2] < _WIDE_SPACE * max(size, 4.0):
                continue
        words = _with_note_marks(textpage, line[begin:space_begin], offset + begin)
        yield replace(place, text=words, size=size, top=box[3], last_top=end_box[3], left=box[0], right=end_box[2])
        begin, size = space_end, 0.0


def _with_note_marks(textpage: pypdfium2.PdfTextPage, words: str, offset: int) -> str:
    """Return printed words with the small raised numbers of footnotes in brackets: 'eleven mills [1]'."""
    import pypdfium2.raw as raw

    last = textpage.count_chars() - 1
    parts, end = [], 0
    for number in _NOTE_NUMBER.finditer(words):
        neighbour = number.start() - 1 if number.start() else number.end() + 1
        if offset + neighbour > last or neighbour >= len(words):
            continue
        size, size_beside = (
            float(raw.FPDFText_GetFontSize(textpage.raw, offset + at)) for at in (number.start(), neighbour)
        )
        bottom, bottom_beside = (textpage.get_charbox(offset + at)[1] for at in (number.start(), neighbour))
        if 0 < size <= size_beside * _LARGEST_MARK and bottom > bottom_beside + size_beside * _LEAST_RISE:
            parts += [words[end : number.start()], " " if number.start() else "", f"[{number[0]}]"]
            end = number.end()
    return "".join([*parts, words[end:]])


def _annotations(page: pypdfium2.PdfPage, form: pypdfium2.PdfFormEnv | None) -> Iterator[str]:
    """Yield the notes that readers wrote on a page, and its form fields as 'name: value'."""
    import pypdfium2.raw as raw

    for index in range(raw.FPDFPage_GetAnnotCount(page.raw)):
        annotation = raw.FPDFPage_GetAnnot(page.raw, index)
        if not annotation:
            continue
        try:
            kind = raw.FPDFAnnot_GetSubtype(annotation)
            if kind == raw.FPDF_ANNOT_WIDGET and form is not None:
                name = _string(raw.FPDFAnnot_GetFormFieldName, form.raw, annotation)
                value = _string(raw.FPDFAnnot_GetFormFieldValue, form.raw, annotation)
                if value and value not in ("Off", "Yes") and name:
                    yield f"{name}: {value}"
                elif value == "Yes" and name:
                    yield f"{name}: yes"
            elif kind not in (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP):
                author = _string(raw.FPDFAnnot_GetStringValue, annotation, b"T")
                if text := _string(raw.FPDFAnnot_GetStringValue, annotation, b"Contents"):
                    yield f"Note by {author}: {text}" if author else f"Note: {text}"
        finally:
            raw.FPDFPage_CloseAnnot(annotation)


def _string(get: Callable[..., int], *arguments: object) -> str:
    """Return a UTF-16 string of PDFium's, which is asked for its length first."""
    import ctypes

    import pypdfium2.raw as raw

    length = get(*arguments, None, 0)
    if not 2 < length <= _LONGEST_NOTE:
        return ""
    buffer = ctypes.create_string_buffer(length)
    get(*arguments, ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR)), length)
    return " ".join(buffer.raw.decode("utf-16-le", "replace").rstrip("\0").split())


def _read_pypdf(data: bytes) -> tuple[str, list[list[PrintedLine]]]:
    import pypdf

    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BrokenDocument(_LOCKED, remedy="Save a copy without a password.")
        pages = []
        for number, page in enumerate(reader.pages, 1):
            lines = page.extract_text().split("\n")
            pages.append([PrintedLine(line.strip(), number) for line in lines if line.strip()])
        return str((reader.metadata or {}).get("/Title") or "").strip(), pages
    except BrokenDocument:
        raise
    except Exception as error:  # pypdf raises many kinds on damaged files
        raise BrokenDocument("is not a PDF that can be opened (damaged?)") from error


def _without_running_lines(pages: list[list[PrintedLine]]) -> list[list[PrintedLine]]:
    """Drop first and last lines that are page numbers, or the same on most pages but for their numbers."""
    texts = [_edge_texts(pieces) for pieces in pages]
    edges = Counter(_pattern(text) for page_texts in texts for text in set(page_texts.values()))
    running = {pattern for pattern, times in edges.items() if len(pages) > 2 and times * 10 >= len(pages) * 6}
    kept = []
    for pieces, page_texts in zip(pages, texts, strict=True):
        rows = {row for row, text in page_texts.items() if _is_running(text, running)}
        kept.append([piece for number, piece in enumerate(pieces) if _row(piece, number) not in rows])
    return kept


def _edge_texts(pieces: list[PrintedLine]) -> dict[int, str]:
    """Return the texts of the first and the last line of a page, by their rows."""
    rows = [_row(piece, number) for number, piece in enumerate(pieces)]
    heights = sorted((piece.top, row) for piece, row in zip(pieces, rows, strict=True) if piece.size)
    printed = [row for _, row in (*heights[:1], *heights[-1:])]
    return {
        edge: " ".join(piece.text for piece, row in zip(pieces, rows, strict=True) if row == edge)
        for edge in {*rows[:1], *rows[-1:], *printed}
    }


def _row(piece: PrintedLine, number: int) -> int:
    return piece.row if piece.row >= 0 else number


def _is_running(text: str, running: set[str]) -> bool:
    return _pattern(text) in running or bool(_PAGE_NUMBER.fullmatch(text))


def _pattern(text: str) -> str:
    return re.sub(r"\d+", "#", text)


def _heading_sizes(pages: list[list[PrintedLine]]) -> list[float]:
    """Letter sizes clearly above that of the running text, largest first."""
    letters: Counter[float] = Counter()
    for lines in pages:
        for line in lines:
            letters[line.size] += len(line.text)
    if not letters:
        return []
    body = letters.most_common(1)[0][0]
    return sorted((size for size in letters if body > 0 and size >= body * 1.12), reverse=True)[:6]
