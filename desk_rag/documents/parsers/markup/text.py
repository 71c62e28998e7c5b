"""Plain text: paragraphs at blank lines, headings where a short line stands alone and looks like one."""

from __future__ import annotations

import re

from desk_rag.documents.parsers.building import Builder, Lines, Parsed
from desk_rag.documents.parsers.markup.prose import LIST_ITEM, add_lines

_UNDERLINE = re.compile(r"(?:=+|-{3,}|~{3,}|\*{3,}|_{3,})\s*$")
_NUMBERED = re.compile(r"(?P<number>\d{1,2}(?:\.\d{1,2}){0,3})[.)]?\s+[^\W\d_]")
_ORG_HEADING = re.compile(r"(?P<stars>\*{1,6}|={1,6}) (?P<name>\S.*)$")
_LONGEST_HEADING = 70


def parse(text: str, note: str = "") -> Parsed:
    """Blocks with line numbers; the title is a short first line that stands alone."""
    builder = Builder()
    lines = text.split("\n")
    start = 0
    while start < len(lines):
        if not lines[start].strip():
            start += 1
            continue
        end = start
        while end < len(lines) and lines[end].strip():
            end += 1
        _add_run(builder, lines[start:end], start + 1)
        start = end
    return builder.done(note)


def _add_run(builder: Builder, run: list[str], first_line: int) -> None:
    """A run of non-blank lines: one or two may be a heading, the rest is prose."""
    taken = 0
    if len(run) > 1 and _UNDERLINE.match(run[1]) and len(run[0].strip()) <= 2 * _LONGEST_HEADING:
        builder.heading(1 if run[1].startswith("=") else 2, run[0], Lines(first_line, first_line))
        taken = 2
    elif len(run) == 1 and (level := _heading_level(run[0], opens=builder.empty)):
        marked = _ORG_HEADING.match(run[0])
        builder.heading(level, marked["name"] if marked else run[0], Lines(first_line, first_line))
        taken = 1
    if taken < len(run):
        add_lines(builder, run[taken:], first_line + taken)


def _heading_level(line: str, *, opens: bool) -> int:
    """1 or more when a line that stands alone is a heading, else 0."""
    words = line.strip()
    marked = _ORG_HEADING.match(line)
    if marked:
        return len(marked["stars"])
    if len(words) > _LONGEST_HEADING or words.endswith((".", ",", ";", ":", "!", "?")) or not words[0].isalnum():
        return 0
    if opens:
        return 1
    numbered = _NUMBERED.match(words)
    if numbered:
        return 2 + numbered["number"].count(".")
    capitals = words.isupper() and sum(char.isalpha() for char in words) >= 4
    return 2 if capitals and not LIST_ITEM.match(line) else 0
