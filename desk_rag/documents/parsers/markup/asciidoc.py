"""Parse AsciiDoc: sections, paragraphs, lists, tables and code, with line numbers, without attributes and comments."""

from __future__ import annotations

import re

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed, table_rows
from desk_rag.documents.parsers.markup.prose import add_lines

_HEADING = re.compile(r"(?P<marks>={1,6}|#{1,6})\s+(?P<name>\S.*?)(?:\s+=+)?$")
_ATTRIBUTE = re.compile(r":(?P<name>!?[\w-]+!?):(?:\s+(?P<value>.*))?$")
_REFERENCE = re.compile(r"\{(?P<name>[\w-]+)\}")
_BLOCK_ATTRIBUTES = re.compile(r"\[[^\]]*\]\s*$")
_BLOCK_TITLE = re.compile(r"\.(?P<name>[^\s.].*)$")
_FENCE = re.compile(r"(?P<mark>-{4,}|\.{4,}|={4,}|\*{4,}|_{4,}|\+{4,}|/{4,}|--|```)\s*\w*$")
_CODE_FENCES = ("----", "....", "++++", "```")
_TABLE_FENCE = re.compile(r"[|,:!]===+\s*$")
_LIST_ITEM = re.compile(r"\s*(?:[*.-]{1,5}|\d+\.)\s+\S")
_MACRO = re.compile(r"\s*(?:include|image|toc|video|audio)::\S*\[(?P<text>[^\]]*)\]\s*$")
_INLINE = (
    (re.compile(r"(?:link:|xref:|mailto:|https?://)[^\s\[\]]+\[(?P<text>[^\]]*)\]"), r"\g<text>"),
    (re.compile(r"<<[^,>]+,\s*(?P<text>[^>]+)>>"), r"\g<text>"),
    (
        re.compile(r"(?<![\w*_`#])(?P<mark>\*\*|__|``|[*_`#])(?=\S)(?P<text>[^\n]*?\S)(?P=mark)(?![\w*_`#])"),
        r"\g<text>",
    ),
    (re.compile(r"(?:latexmath|asciimath|stem|pass|kbd|btn|menu):\w*\[\$?(?P<text>[^\]\n]*?)\$?\]"), r"\g<text>"),
)
_FOOTNOTE = re.compile(r" ?footnote:\w*\[(?P<text>[^\]]*)\]")
_LONGEST_LINE = 4000
"""Characters of a line in which marks are looked for."""
_MOST_ATTRIBUTES, _LONGEST_VALUE = 1000, 200


def parse(text: str, note: str = "") -> Parsed:
    """Blocks with line numbers."""
    builder = Builder()
    lines = _filled_in(text.split("\n"))
    index = 0
    while index < len(lines):
        index = _add_element(builder, lines, index)
    return builder.done(note)


def _filled_in(lines: list[str]) -> list[str]:
    """Return the lines with the values of the attributes that the file defines; unknown ones are left out.

    A value is filled in as it stands, and only short ones are, so that no file grows without end.
    """
    values: dict[str, str] = {}
    filled = []
    for line in lines:
        attribute = _ATTRIBUTE.match(line)
        if attribute is not None and len(values) < _MOST_ATTRIBUTES:
            values[attribute["name"]] = (attribute["value"] or "").strip()[:_LONGEST_VALUE]
        elif "{" in line and len(line) <= _LONGEST_LINE:
            line = _REFERENCE.sub(lambda reference: values.get(reference["name"], ""), line)
        filled.append(line)
    return filled


def _add_element(builder: Builder, lines: list[str], index: int) -> int:
    """Add the element that begins at `index`; returns the index after it."""
    line = lines[index]
    place = Lines(index + 1, index + 1)
    if not line.strip() or _ATTRIBUTE.match(line) or _BLOCK_ATTRIBUTES.match(line):
        return index + 1
    if heading := _HEADING.match(line):
        builder.heading(len(heading["marks"]), _plain(heading["name"]), place)
        return index + 1
    if _TABLE_FENCE.match(line):
        return _add_table(builder, lines, index)
    if fence := _FENCE.match(line):
        return _add_fenced(builder, lines, index, fence["mark"])
    if line.startswith("//"):
        return index + 1
    if title := _BLOCK_TITLE.match(line):
        builder.add(_plain(title["name"]), BlockKind.PARAGRAPH, place)
        return index + 1
    if macro := _MACRO.match(line):
        builder.add(macro["text"].split(",")[0], BlockKind.PARAGRAPH, place)
        return index + 1
    return _add_prose(builder, lines, index)


def _add_fenced(builder: Builder, lines: list[str], index: int, mark: str) -> int:
    """Add a code block; the marks around other blocks are left out, and what they hold is read as usual."""
    if mark.startswith("////"):
        return _end_of(lines, index, mark) + 1
    if not mark.startswith(_CODE_FENCES):
        return index + 1
    end = _end_of(lines, index, mark)
    builder.add("\n".join(lines[index + 1 : end]), BlockKind.CODE, Lines(index + 2, max(end, index + 2)))
    return end + 1


def _end_of(lines: list[str], index: int, mark: str) -> int:
    return next((end for end in range(index + 1, len(lines)) if lines[end].rstrip() == mark), len(lines))


def _add_table(builder: Builder, lines: list[str], index: int) -> int:
    """Add a table; cells begin with '|', and a row may stand on one line or on one line a cell."""
    end = _end_of(lines, index, lines[index].rstrip())
    rows: list[tuple[int, list[str]]] = []
    width = 0
    header = "header" in lines[index - 1] if index else False
    for number in range(index + 1, end):
        line = lines[number]
        if not line.strip():
            header = header or len(rows) == 1
            continue
        cells = [_plain(cell.strip()) for cell in re.split(r"(?:^|\s)(?:\d+(?:\.\d+)?\+)?[.<^>]*[aehlmsd]?\|", line)]
        cells = cells[1:] if not cells[0] else cells
        if not line.lstrip().startswith("|") and rows:
            rows[-1][1][-1] = f"{rows[-1][1][-1]} {' '.join(cells)}"
        elif rows and len(rows[-1][1]) < width and len(cells) == 1:
            rows[-1][1].append(cells[0])
        else:
            rows.append((number + 1, cells))
            width = width or len(cells)
    words = table_rows([cells for _, cells in rows], header or None) if rows else []
    for (number, _), row in zip(rows, words, strict=True):
        builder.add(row, BlockKind.TABLE, Lines(number, number))
    return end + 1


def _add_prose(builder: Builder, lines: list[str], index: int) -> int:
    end = index + 1
    while end < len(lines) and lines[end].strip() and not _begins_element(lines[end]):
        end += 1
    shown = [_plain(re.sub(r"^(\s*)[*.-]{1,5}\s+", r"\1- ", line)) if _LIST_ITEM.match(line) else _plain(line)
             for line in _FOOTNOTE.sub(r" (\g<text>)", "\n".join(lines[index:end])).split("\n")]  # fmt: skip
    add_lines(builder, shown, index + 1)
    return end


def _begins_element(line: str) -> bool:
    marks = (_HEADING, _ATTRIBUTE, _TABLE_FENCE, _FENCE, _BLOCK_ATTRIBUTES, _MACRO)
    return line.startswith("//") or any(mark.match(line) for mark in marks)


def _plain(text: str) -> str:
    """Return a line without the marks of its links and emphasis."""
    if len(text) > _LONGEST_LINE:
        return text
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return re.sub(r"\s\+$", "", text)
