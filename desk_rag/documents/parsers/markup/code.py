"""Source code and settings files: blocks begin where a top-level definition or paragraph begins, text stays as it is.

Knows no language in depth: a line without indent after a blank line opens a block, and so does a line that reads like a
definition. The title is the first sentence of the comment or docstring that opens the file.
"""

from __future__ import annotations

import re

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed

_DEFINITION = re.compile(
    r"(?:(?:export|default|public|private|protected|static|final|abstract|async|unsafe|pub(?:\([a-z]+\))?|inline|extern|"
    r"data|sealed|open|override)\s+)*"
    r"(?:def|class|func|fun|fn|function|struct|enum|interface|trait|impl|module|namespace|type|protocol|object|sub|package)\s"
    r"|(?:CREATE|ALTER|INSERT|SELECT|DROP|UPDATE|DELETE|WITH)\s|\[[^\]]+\]\s*$|\[\[[^\]]+\]\]\s*$",
)
_DECORATION = re.compile(r"@|#\[|//|/\*|\*/| \*|#|--|template\s*<")
_OPENING = re.compile(r"(?:#+|//+!?|--|;+|%+|/\*+!?|\"\"\"|'''|r\"\"\"|<!--|\*)\s*(?P<words>[^\W\d_].*)$")
_NOT_A_TITLE = re.compile(r"coding[:=]|copyright|licen[cs]e|spdx|eslint|vim?:|!/|pragma|generated", re.IGNORECASE)
_TITLE_CHARS = 100


def parse(text: str, note: str = "") -> Parsed:
    """CODE blocks whose line numbers are exact."""
    builder = Builder()
    lines = text.split("\n")
    builder.set_title(opening_comment(lines))
    start = 0
    for index in range(1, len(lines) + 1):
        if index == len(lines) or _opens_block(lines, index):
            _add(builder, lines, start, index)
            start = index
    return builder.done(note)


def _add(builder: Builder, lines: list[str], start: int, end: int) -> None:
    while start < end and not lines[start].strip():
        start += 1
    while end > start and not lines[end - 1].strip():
        end -= 1
    if start < end:
        body = "\n".join(line.rstrip() for line in lines[start:end])
        builder.add(body, BlockKind.CODE, Lines(start + 1, end))


def _opens_block(lines: list[str], index: int) -> bool:
    line, before = lines[index], lines[index - 1]
    if not line or line[0].isspace() or line[0] in ")]}":
        return False
    if not before.strip():
        return True
    return bool(_DEFINITION.match(line)) and not _DECORATION.match(before)


def opening_comment(lines: list[str]) -> str:
    """Return the first sentence of the comment that opens a file, if it says what the file is; else ''."""
    for line in lines[:8]:
        match = _OPENING.match(line)
        if match and not _NOT_A_TITLE.search(line):
            words = match["words"].split(". ")[0].rstrip("-*/=# \t").removesuffix('"""').removesuffix("'''").rstrip(".")
            return words if len(words) <= _TITLE_CHARS else ""
        if line.strip() and not line.startswith(("#!", "<?", "#", "//", "/*", "<?php")):
            return ""
    return ""
