"""Turn the printed or recognised lines of a page into blocks: headings, paragraphs, list items and table rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import NOWHERE, Builder, table_rows
from desk_rag.documents.parsers.markup.prose import LIST_ITEM, NARROWEST_WRAP, UNFINISHED, is_form_break
from desk_rag.documents.parsers.office.layout import PrintedLine, in_reading_order, table_at, usual_gap
from desk_rag.documents.sentences import ends_sentence

_CUT_WORD = re.compile(r"(?<=[^\W\d_])[\x02\ufffe]\s*(?=[a-zß-ÿ])")
"""PDFium's mark for a hyphen at a line end, inside a word."""
_OTHER_CUT = re.compile(r"[\x02\ufffe]\s*")
_ENTRY = re.compile(r"[^\W\d_]\w*(?:\s\w+)?:\s")
"""Begins with a word or two and a colon; among several such lines, it is an entry of a list."""
_LINE_END_HYPHEN = re.compile(r"[^\W\d_]-$")


@dataclass(frozen=True, slots=True)
class RecognizedLine:
    """A line of text with its box, as shares of the page's width and height."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


def printed_lines(
    lines: list[RecognizedLine], page: int, width: float = 595.0, height: float = 842.0
) -> list[PrintedLine]:
    """Return recognised lines with their measures in points; boxes at the same height share a row."""
    printed: list[PrintedLine] = []
    row, middle = -1, 0.0
    for line in sorted(lines, key=lambda line: line.top + line.bottom):
        centre, half = (line.top + line.bottom) / 2, (line.bottom - line.top) / 2
        if row < 0 or abs(centre - middle) > half:
            row, middle = row + 1, centre
        top = (1 - line.top) * height
        printed.append(PrintedLine(line.text, page, 1.0, top, top, line.left * width, line.right * width, row))
    return sorted(printed, key=lambda piece: (piece.row, piece.left))


def add_recognized(builder: Builder, lines: list[RecognizedLine], page: int | None) -> None:
    """Append the text of a picture; `page` is its number in a file of several."""
    add_page(builder, printed_lines(lines, page or 0), [])


def add_page(builder: Builder, pieces: list[PrintedLine], sizes: list[float]) -> None:
    """Append the blocks of a page; lines in one of `sizes` are headings, largest first."""
    lines = in_reading_order(pieces)
    gap = usual_gap(lines)
    wrapped = _has_wrapped_prose(lines)
    start = index = 0
    while index < len(lines):
        if table := table_at(lines, index):
            if start < index:
                _add_block(builder, lines[start:index], sizes)
            for words in table_rows(table):
                builder.add(words, BlockKind.TABLE, NOWHERE, lines[index].page or None)
            index += len(table)
            start = index
            continue
        index += 1
        if index == len(lines) or not _continues(lines[start:index], lines[index], gap, wrapped=wrapped):
            _add_block(builder, lines[start:index], sizes)
            start = index


def _add_block(builder: Builder, lines: list[PrintedLine], sizes: list[float]) -> None:
    text = _join([line.text for line in lines])
    page = lines[0].page or None  # a picture has no pages
    if lines[0].size in sizes and len(text) <= 160:
        builder.heading(sizes.index(lines[0].size) + 1, text, NOWHERE, page)
    else:
        builder.add(text, BlockKind.LIST if LIST_ITEM.match(text) else BlockKind.PARAGRAPH, NOWHERE, page)


def _has_wrapped_prose(lines: Sequence[PrintedLine]) -> bool:
    """True if some full line goes on in small letters: the widest lines of a form are full as well."""
    return any(_is_full(line, following) and following.text[:1].islower() for line, following in pairwise(lines))


def _continues(block: Sequence[PrintedLine], following: PrintedLine, gap: float, *, wrapped: bool) -> bool:
    """True if `following` goes on where the last line of `block` was wrapped; `wrapped` if the page has such prose."""
    line = block[-1]
    if _ENTRY.match(block[0].text) and _ENTRY.match(following.text):
        return False
    if LIST_ITEM.match(following.text) or line.size != following.size or is_form_break(line.text, following.text):
        return False
    goes_on = following.text[:1].islower() and not ends_sentence(line.text)
    if not line.size:  # without measures: prose goes on until a line ends a sentence early
        return not (line.text.endswith((".", "!", "?", ":")) and len(line.text) < 60)
    if following.top > line.last_top + line.size:  # at the top of the next column
        return goes_on
    if gap and line.last_top - following.top > gap * 1.3:
        return False
    if (goes_on or UNFINISHED.search(line.text)) and _is_prose(block, following):
        return True
    is_row = bool(line.cells or following.cells)
    return _is_full(line, following) and (following.text[:1].islower() or (wrapped and not is_row))


def _is_prose(block: Sequence[PrintedLine], following: PrintedLine) -> bool:
    """True if the last line of `block` is long, or a word or two of prose that was wrapped twice, at two widths."""
    if len(block[-1].text) >= NARROWEST_WRAP:
        return True
    is_rest = len(block) > 1 and len(block[-2].text) >= NARROWEST_WRAP
    return is_rest and (len(following.text) >= NARROWEST_WRAP or ends_sentence(following.text))


def _is_full(line: PrintedLine, following: PrintedLine) -> bool:
    """True if the next word would not have fitted into the column."""
    letter = (line.right - line.left) / max(len(line.text), 1)
    return line.right + letter * (1 + len(following.text.split()[0])) > line.column_right - letter


def _join(parts: list[str]) -> str:
    """Return lines as one run of text; a word cut at a line end is put together."""
    text = ""
    for part in parts:
        if _LINE_END_HYPHEN.search(text) and part[:1].islower():
            text = text[:-1] + part
        else:
            text = f"{text} {part}" if text else part
    return _OTHER_CUT.sub("-", _CUT_WORD.sub("", text)).replace("\xad", "")
