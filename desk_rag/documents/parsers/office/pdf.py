"""PDF: text with page numbers. pypdfium2 reads it; pypdf is asked where PDFium fails.

A PDF knows glyphs at places, not paragraphs: headings are told by letter size, paragraphs by gaps and by lines that end
early, words cut at a line end are joined, lines that repeat on most pages (running heads, page numbers) are dropped.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import NOWHERE, Builder, Parsed
from desk_rag.documents.parsers.markup.prose import LIST_ITEM
from desk_rag.errors import BrokenDocument

if TYPE_CHECKING:
    import pypdfium2

_UNTITLED = re.compile(r"(?:\(?(?:untitled|anonymous)\)?|microsoft \w+ - .*|.*\.(?:docx?|pdf|tex|odt))$", re.IGNORECASE)
_LOCKED = "is locked with a password"
_NO_TEXT = "has no text layer (scanned pages need OCR first)"
_CUT_WORD = re.compile(r"(?<=[^\W\d_])[\x02\ufffe]\s*(?=[a-zß-ÿ])")
"""PDFium's mark for a hyphen at a line end, inside a word."""
_OTHER_CUT = re.compile(r"[\x02\ufffe]\s*")
_PAGE_NUMBER = re.compile(r"(?:.{0,80}\W)?(?:page|p\.)\s*\d+(?:\s*(?:of|/)\s*\d+)?|\W*\d{1,4}\W*", re.IGNORECASE)
_LONGEST_NOTE = 200_000
"""Bytes of an annotation; a longer one is left out."""
_LINE_END_HYPHEN = re.compile(r"[^\W\d_]-$")


@dataclass(frozen=True, slots=True)
class _Line:
    """One printed line; measures in points, size 0 where they are unknown."""

    text: str
    page: int
    size: float = 0.0
    top: float = 0.0
    """Top of the first letter; PDFium gives two printed lines as one where a word is cut between them."""
    last_top: float = 0.0
    left: float = 0.0
    right: float = 0.0


def parse(data: bytes) -> Parsed:
    """Blocks with pages.

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
    if len(empty) == len(pages):
        raise BrokenDocument(_NO_TEXT, remedy="Run an OCR program over it and save the result.")
    pages = _without_running_lines(pages)
    sizes = _heading_sizes(pages)
    for number, (lines, written) in enumerate(zip(pages, notes, strict=True), 1):
        _add_page(builder, lines, sizes)
        for text in written:
            builder.add(text, BlockKind.PARAGRAPH, NOWHERE, number)
    if builder.empty:
        raise BrokenDocument(_NO_TEXT, remedy="Run an OCR program over it and save the result.")
    shown = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
    return builder.done(f"no text layer on page {shown}" if empty else "")


def _read_pdfium(data: bytes) -> tuple[str, list[list[_Line]], list[list[str]]]:
    """Return title, printed lines by page, and annotations and form fields by page."""
    import pypdfium2

    document = pypdfium2.PdfDocument(data)
    try:
        document.init_forms()
        title = str(document.get_metadata_dict().get("Title") or "").strip()
        pages = [_page_lines(document[index], index + 1) for index in range(len(document))]
        notes = [list(_annotations(document[index], document.formenv)) for index in range(len(document))]
        return title, pages, notes
    finally:
        document.close()


def _page_lines(page: pypdfium2.PdfPage, number: int) -> list[_Line]:
    import pypdfium2.raw as raw

    textpage = page.get_textpage()
    try:
        count = textpage.count_chars()
        text = textpage.get_text_range() if count > 0 else ""
        lines, at = [], 0
        for row in text.split("\n"):
            words = row.rstrip("\r")
            if words.strip() and at < count:
                first = min(at + len(words) - len(words.lstrip()), count - 1)
                last = min(at + len(words.rstrip()) - 1, count - 1)
                box, end = textpage.get_charbox(first, loose=True), textpage.get_charbox(last, loose=True)
                size = round(float(raw.FPDFText_GetFontSize(textpage.raw, first)), 1)
                lines.append(_Line(words.strip(), number, size, box[3], end[3], box[0], end[2]))
            elif words.strip():
                lines.append(_Line(words.strip(), number))
            at += len(row) + 1
        return lines
    finally:
        textpage.close()
        page.close()


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


def _read_pypdf(data: bytes) -> tuple[str, list[list[_Line]]]:
    import pypdf

    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted:
            raise BrokenDocument(_LOCKED, remedy="Save a copy without a password.")
        pages = []
        for number, page in enumerate(reader.pages, 1):
            pages.append([_Line(line.strip(), number) for line in page.extract_text().split("\n") if line.strip()])
        return str((reader.metadata or {}).get("/Title") or "").strip(), pages
    except BrokenDocument:
        raise
    except Exception as error:  # pypdf raises many kinds on damaged files
        raise BrokenDocument("is not a PDF that can be opened (damaged?)") from error


def _without_running_lines(pages: list[list[_Line]]) -> list[list[_Line]]:
    """Drop first and last lines that are page numbers, or the same on most pages but for their numbers."""
    edges = Counter(_pattern(line) for lines in pages if lines for line in {lines[0], lines[-1]})
    running = {pattern for pattern, times in edges.items() if len(pages) > 2 and times * 10 >= len(pages) * 6}
    kept = []
    for lines in pages:
        edge = {0, len(lines) - 1}
        running_here = {at for at in edge if lines and _is_running(lines[at], running)}
        kept.append([line for at, line in enumerate(lines) if at not in running_here])
    return kept


def _is_running(line: _Line, running: set[str]) -> bool:
    return _pattern(line) in running or bool(_PAGE_NUMBER.fullmatch(line.text))


def _pattern(line: _Line) -> str:
    return re.sub(r"\d+", "#", line.text)


def _heading_sizes(pages: list[list[_Line]]) -> list[float]:
    """Letter sizes clearly above that of the running text, largest first."""
    letters: Counter[float] = Counter()
    for lines in pages:
        for line in lines:
            letters[line.size] += len(line.text)
    if not letters:
        return []
    body = letters.most_common(1)[0][0]
    return sorted((size for size in letters if body > 0 and size >= body * 1.12), reverse=True)[:6]


def _add_page(builder: Builder, lines: list[_Line], sizes: list[float]) -> None:
    gap = _usual_gap(lines)
    column = max((line.right for line in lines), default=0.0)
    start = 0
    for index in range(1, len(lines) + 1):
        if index < len(lines) and _continues(lines[index - 1], lines[index], gap, column):
            continue
        _add_block(builder, lines[start:index], sizes)
        start = index


def _add_block(builder: Builder, lines: list[_Line], sizes: list[float]) -> None:
    text = _join([line.text for line in lines])
    page = lines[0].page
    if lines[0].size in sizes and len(text) <= 160:
        builder.heading(sizes.index(lines[0].size) + 1, text, NOWHERE, page)
    else:
        builder.add(text, BlockKind.LIST if LIST_ITEM.match(text) else BlockKind.PARAGRAPH, NOWHERE, page)


def _usual_gap(lines: list[_Line]) -> float:
    drops = (before.last_top - after.top for before, after in pairwise(lines))
    gaps = sorted(drop for drop in drops if drop > 0)
    # The lower quartile: a page of short paragraphs has more gaps between them than lines within.
    return gaps[len(gaps) // 4] if gaps else 0.0


def _continues(line: _Line, following: _Line, gap: float, column: float) -> bool:
    """True if `following` goes on where `line` was wrapped."""
    if LIST_ITEM.match(following.text) or line.size != following.size:
        return False
    if not line.size:  # without measures: prose goes on until a line ends a sentence early
        return not (line.text.endswith((".", "!", "?", ":")) and len(line.text) < 60)
    if gap and line.last_top - following.top > gap * 1.3:
        return False
    letter = (line.right - line.left) / max(len(line.text), 1)
    return line.right + letter * (1 + len(following.text.split()[0])) > column - letter


def _join(parts: list[str]) -> str:
    """Lines as one run of text; a word cut at a line end is put together."""
    text = ""
    for part in parts:
        if _LINE_END_HYPHEN.search(text) and part[:1].islower():
            text = text[:-1] + part
        else:
            text = f"{text} {part}" if text else part
    return _OTHER_CUT.sub("-", _CUT_WORD.sub("", text)).replace("\xad", "")
