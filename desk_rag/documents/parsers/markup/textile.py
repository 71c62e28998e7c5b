"""Parse Textile: headings, paragraphs, lists, tables and code, with line numbers."""

from __future__ import annotations

import re

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed, table_rows
from desk_rag.documents.parsers.markup.prose import add_lines

_ATTRIBUTES = r"(?:\([^)]*\)|\{[^}]*\}|\[[^\]]*\]|[<>=()])*"
_BLOCK = re.compile(rf"(?P<kind>h[1-6]|p|bq|bc|pre|notextile|fn\d+|###){_ATTRIBUTES}\.(?P<long>\.?)\s+(?P<text>.*)$")
_LIST_ITEM = re.compile(rf"(?P<marks>[*#]+){_ATTRIBUTES}\s+(?P<text>\S.*)$")
_HEAD_CELL = re.compile(rf"_{_ATTRIBUTES}\.\s*")
_CELL_ATTRIBUTES = re.compile(r"(?:[\\/]\d+|[<>=^~]|\{[^}]*\}|\([^)]*\))+\.\s+")
_INLINE = (
    (re.compile(r"</?[a-z][a-z0-9]{0,10}(?:\s[^<>\n]{0,300})?/?>"), ""),
    (re.compile(r'"(?P<text>[^"\n]{1,300})":\S*[\w/]'), r"\g<text>"),
    (re.compile(r"!(?:[<>=])?[^\s!(]+(?:\((?P<text>[^)]*)\))?!(?::\S+)?"), lambda match: match["text"] or ""),
    (re.compile(r"(?<![\w@])@(?P<text>[^@\n]+)@(?!\w)"), r"\g<text>"),
    (re.compile(r"(?<!\w)(?P<mark>\*\*|__|\?\?|[*_+~^%-])(?=\S)(?P<text>[^\n]{0,500}?\S)(?P=mark)(?!\w)"), r"\g<text>"),
)
_LONGEST_LINE = 4000
"""Characters of a line in which marks are looked for."""


def parse(text: str, note: str = "") -> Parsed:
    """Blocks with line numbers."""
    builder = Builder()
    lines = text.split("\n")
    index = 0
    while index < len(lines):
        end = index + 1
        while end < len(lines) and lines[end].strip() and lines[index].strip():
            end += 1
        if lines[index].strip():
            _add_run(builder, lines[index:end], index + 1)
        index = end
    return builder.done(note)


def _add_run(builder: Builder, run: list[str], first: int) -> None:
    """Add a run of lines without a blank one; `first` is the number of its first line."""
    block = _BLOCK.match(run[0])
    if block is None:
        _add_lines(builder, run, first)
        return
    kind, text = block["kind"], block["text"]
    if kind == "###":
        return  # a comment
    if kind in ("bc", "pre"):
        builder.add("\n".join([text, *run[1:]]), BlockKind.CODE, Lines(first, first + len(run) - 1))
    elif kind.startswith("h"):
        builder.heading(int(kind[1]), _plain(text), Lines(first, first))
        if run[1:]:
            _add_lines(builder, run[1:], first + 1)
    else:
        _add_lines(builder, [text, *run[1:]], first)


def _add_lines(builder: Builder, run: list[str], first: int) -> None:
    begin = 0
    for index in range(1, len(run) + 1):
        if index < len(run) and _is_row(run[index]) == _is_row(run[begin]):
            continue
        if _is_row(run[begin]):
            _add_table(builder, run[begin:index], first + begin)
        else:
            add_lines(builder, [_plain(_item(line)) for line in run[begin:index]], first + begin)
        begin = index


def _is_row(line: str) -> bool:
    return line.lstrip().startswith("|") and line.count("|") > 1


def _add_table(builder: Builder, lines: list[str], first: int) -> None:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    has_header = all(_HEAD_CELL.match(cell) for cell in rows[0])
    plain = [[_plain(_CELL_ATTRIBUTES.sub("", _HEAD_CELL.sub("", cell), count=1)) for cell in row] for row in rows]
    for number, text in enumerate(table_rows(plain, has_header or None)):
        builder.add(text, BlockKind.TABLE, Lines(first + number, first + number))


def _item(line: str) -> str:
    item = _LIST_ITEM.match(line)
    return f"- {item['text']}" if item else line


def _plain(text: str) -> str:
    """Return a line without the marks of its links and emphasis."""
    if len(text) > _LONGEST_LINE:
        return text
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return text
