"""Lines of plain text become paragraphs and list items. Used by the text, rst and pdf parsers.

Tells soft wraps (the next word would not have fitted) from meant line breaks (addresses, verse, short notes).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import NOWHERE, Builder, Lines

LIST_ITEM = re.compile(r"\s*(?:[-*+•‣▪–\uf0b7\uf0a7]|\(?(?:\d{1,3}|[a-zA-Z])[.)])\s+\S")
_TIMED = re.compile(
    r"\s*[\[(]?(?:\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}|[A-Z][a-z]{2} [ \d]\d)?[T ,]*\d\d:\d\d(?::\d\d)?\b"
)
"""Begins with a time: a line of a log."""
_UNFINISHED = re.compile(
    r"(?:^|\s)(?:an?|the|this|that|these|those|my|your|his|her|its|our|their|of|to|in|on|at|by|for|from|with|and|or|but|if"
    r"|is|are|was|were|be|been|has|have|had|will|would|can|could|should|must|may|not|which|who|than|as)$"
)
"""Ends with a word that ends no sentence, table row or line of an address."""
_NARROWEST_WRAP = 45
"""Characters: nobody wraps prose narrower than this, so shorter lines were broken on purpose."""


def add_lines(builder: Builder, lines: Sequence[str], first_line: int | None, page: int | None = None) -> None:
    """Add a run of non-blank lines that begins at line `first_line`; None in formats without lines."""
    width = max(len(line.rstrip()) for line in lines)
    start = 0
    for index in range(1, len(lines) + 1):
        if index < len(lines) and _continues(lines[index - 1], lines[index], lines[start], width):
            continue
        kind = BlockKind.LIST if LIST_ITEM.match(lines[start]) else BlockKind.PARAGRAPH
        place = NOWHERE if first_line is None else Lines(first_line + start, first_line + index - 1)
        builder.add("\n".join(lines[start:index]), kind, place, page)
        start = index


def _continues(line: str, following: str, opening: str, width: int) -> bool:
    """True if `following` goes on where `line` was wrapped; `opening` is the first line of the block so far."""
    if LIST_ITEM.match(following) or _TIMED.match(following):
        return False
    if LIST_ITEM.match(opening):
        return indent(following) > indent(opening) or _is_wrap(line, following, width)
    return _is_wrap(line, following, width)


def _is_wrap(line: str, following: str, width: int) -> bool:
    """True if the next word would not have fitted, or if a long line ends in the middle of a sentence."""
    length = len(line.rstrip())
    if width < _NARROWEST_WRAP:
        return False
    return length + 1 + len(following.split()[0]) > width or (
        length >= _NARROWEST_WRAP and bool(_UNFINISHED.search(line.rstrip()))
    )


def indent(line: str) -> int:
    """Leading blanks of `line`, tabs as four."""
    expanded = line.expandtabs(4)
    return len(expanded) - len(expanded.lstrip())
