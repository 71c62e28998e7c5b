"""Lines of plain text become paragraphs and list items. Used by the text, rst and pdf parsers.

Tells soft wraps (the next word would not have fitted) from meant line breaks (addresses, verse, short notes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import NOWHERE, Builder, Lines, looks_like_header, row_text

LIST_ITEM = re.compile(r"\s*(?:[-*+•‣▪–\uf0b7\uf0a7]|\(?(?:\d{1,3}|[a-zA-Z])[.)])\s+\S")
_TIMED = re.compile(
    r"\s*[\[(]?(?:\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}|[A-Z][a-z]{2} [ \d]\d)?[T ,]*\d\d:\d\d(?::\d\d)?\b"
)
"""Begins with a time: a line of a log."""
UNFINISHED = re.compile(
    r"(?:^|\s)(?:an?|the|this|that|these|those|my|your|his|her|its|our|their|of|to|in|on|at|by|for|from|with|and|or|but|if"
    r"|is|are|was|were|be|been|has|have|had|will|would|can|could|should|must|may|not|which|who|than|as)$"
)
"""Ends with a word that ends no sentence, table row or line of an address."""
_DATED = re.compile(r"\s*(?:\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4})\b")
"""Begins with a day: an entry of a diary or record."""
_LABEL = re.compile(r"\s*[A-Z][\w ]{1,30}:\s")
_LEADERS = re.compile(r"(?:\.\s?){4,}|…\s?…|_{4,}")
"""Dots that lead the eye from a thing to its price or page."""
_PRICE_AT_END = re.compile(r"(?:\s{2,}|\t)[£$€¥]?\s*\d[\d.,]*\s*[€£$¥]?\s*$")
_GAP = re.compile(r"\s{2,}|\t")
_FEWEST_COLUMNS, _FEWEST_ROWS = 3, 2
_PAIR = 2
"""Lines of a paragraph in which the first is always full."""
NARROWEST_WRAP = 45
"""Characters: nobody wraps prose narrower than this, so shorter lines were broken on purpose."""


def add_lines(builder: Builder, lines: Sequence[str], first_line: int | None, page: int | None = None) -> None:
    """Add a run of non-blank lines that begins at line `first_line`; None in formats without lines."""
    start = 0
    for begin, end in _tables(lines):
        _add_text(builder, lines[start:begin], _below(first_line, start), page)
        headers, *rows = (_cells(line) for line in lines[begin:end])
        for index, cells in enumerate(rows, start=begin + 1):
            place = NOWHERE if first_line is None else Lines(first_line + index, first_line + index)
            builder.add(row_text(headers, cells), BlockKind.TABLE, place, page)
        start = end
    _add_text(builder, lines[start:], _below(first_line, start), page)


def _below(first_line: int | None, offset: int) -> int | None:
    return None if first_line is None else first_line + offset


def _tables(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of runs of lines in aligned columns under a line with their names."""
    counts, begin = [len(_cells(line)) for line in lines], 0
    while begin < len(lines):
        end = begin + 1
        while end < len(lines) and counts[end] == counts[begin]:
            end += 1
        headers = range(begin, end - _FEWEST_ROWS) if counts[begin] >= _FEWEST_COLUMNS else ()
        header = next((row for row in headers if looks_like_header(_cells(lines[row]))), None)
        if header is not None:
            yield header, end
        begin = end


def _cells(line: str) -> list[str]:
    return _GAP.split(line.strip())


def _add_text(builder: Builder, lines: Sequence[str], first_line: int | None, page: int | None) -> None:
    if not lines:
        return
    width = max(len(line.rstrip()) for line in lines)
    goes_on = (_is_full(one, other, width) and other.lstrip()[0].islower() for one, other in pairwise(lines))
    wrapped = any(goes_on) or len(lines) == _PAIR
    start = 0
    for index in range(1, len(lines) + 1):
        if index < len(lines) and _continues(lines[index - 1], lines[index], lines[start], width, wrapped=wrapped):
            continue
        kind = BlockKind.LIST if LIST_ITEM.match(lines[start]) else BlockKind.PARAGRAPH
        place = NOWHERE if first_line is None else Lines(first_line + start, first_line + index - 1)
        builder.add("\n".join(lines[start:index]), kind, place, page)
        start = index


def _continues(line: str, following: str, opening: str, width: int, *, wrapped: bool) -> bool:
    """True if `following` goes on where `line` was wrapped; `opening` is the first line of the block so far."""
    if LIST_ITEM.match(following) or _TIMED.match(following) or (_DATED.match(opening) and _DATED.match(following)):
        return False
    if _PRICE_AT_END.search(line) or is_form_break(line, following):
        return False
    if LIST_ITEM.match(opening) and indent(following) > indent(opening):
        return True
    return _is_wrap(line, following, width, wrapped=wrapped)


def _is_wrap(line: str, following: str, width: int, *, wrapped: bool) -> bool:
    """True if the next word would not have fitted, or if a long line ends in the middle of a sentence.

    The longest lines of a form have no room for the next word either, so some line must go on in small letters
    (`wrapped`).
    """
    if width < NARROWEST_WRAP:
        return False
    if wrapped and _is_full(line, following, width):
        return True
    return len(line.rstrip()) >= NARROWEST_WRAP and bool(UNFINISHED.search(line.rstrip()))


def is_form_break(line: str, following: str) -> bool:
    """True between lines of a form or bill: one has dots that lead to a price, or the next begins with a label."""
    return bool(_LEADERS.search(line) or _LEADERS.search(following) or _LABEL.match(following))


def _is_full(line: str, following: str, width: int) -> bool:
    return len(line.rstrip()) + 1 + len(following.split()[0]) > width


def indent(line: str) -> int:
    """Leading blanks of `line`, tabs as four."""
    expanded = line.expandtabs(4)
    return len(expanded) - len(expanded.lstrip())
