"""Parse Org files: headlines, properties, tables and prose, with dates and tags; logs and keywords are left out."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed, row_text, table_rows
from desk_rag.documents.parsers.markup.prose import add_lines

_HEADLINE = re.compile(r"(?P<stars>\*+) +(?P<name>.*)$")
_DRAWER = re.compile(r"\s*:(?!END:)[\w-]+:\s*$", re.IGNORECASE)
_DRAWER_END = re.compile(r"\s*:END:\s*$", re.IGNORECASE)
_PROPERTY = re.compile(r"\s*:(?P<key>[\w-]+)\+?:\s+(?P<value>\S.*)$")
_BOOKKEEPING = frozenset(
    {"ID", "CUSTOM_ID", "CREATED", "LAST_MODIFIED", "ORDERED", "VISIBILITY", "CATEGORY", "ARCHIVE"}
)
_KEYWORD = re.compile(r"\s*#\+(?P<key>[\w-]+):\s*(?P<value>.*)$")
_BLOCK = re.compile(r"\s*#\+begin_(?P<kind>\w+)", re.IGNORECASE)
_BLOCK_END = re.compile(r"\s*#\+end_", re.IGNORECASE)
_TABLE_RULE = re.compile(r"\s*\|[-+|]+\s*$")
_TAGS = re.compile(r"\s+:(?:[\w@#%]+:)+\s*$")
_LINK = re.compile(r"\[\[(?P<target>[^\]]+)\](?:\[(?P<text>[^\]]+)\])?\]")


def parse(text: str, note: str = "") -> Parsed:
    """Blocks with line numbers. Line numbers are why this is not left to orgparse, which keeps only the headlines'."""
    builder = Builder()
    lines = text.split("\n")
    index = 0
    ends = _Ends(
        [index for index, line in enumerate(lines) if _DRAWER_END.match(line)],
        [index for index, line in enumerate(lines) if _BLOCK_END.match(line)],
    )
    while index < len(lines):
        index = _add_element(builder, lines, index, ends)
    return builder.done(note)


@dataclass(frozen=True, slots=True)
class _Ends:
    """Indices of the lines that end drawers and blocks, ascending."""

    drawers: list[int]
    blocks: list[int]


def _first_behind(indices: list[int], index: int) -> int | None:
    place = bisect_right(indices, index)
    return indices[place] if place < len(indices) else None


def _add_element(builder: Builder, lines: list[str], index: int, ends: _Ends) -> int:
    """Add the element that begins at `index`; returns the index after it."""
    line = lines[index]
    if headline := _HEADLINE.match(line):
        name = _plain(_TAGS.sub("", headline["name"]))
        builder.heading(len(headline["stars"]), name, Lines(index + 1, index + 1))
        return index + 1
    if _DRAWER.match(line):
        end = _first_behind(ends.drawers, index)
        if end is None:
            return index + 1
        _add_properties(builder, lines[index + 1 : end], index + 2)
        return end + 1
    if block := _BLOCK.match(line):
        end = _first_behind(ends.blocks, index) or len(lines)
        kind = BlockKind.CODE if block["kind"].lower() in ("src", "example") else BlockKind.PARAGRAPH
        if end > index + 1:
            builder.add("\n".join(lines[index + 1 : end]), kind, Lines(index + 2, end))
        return end + 1
    if keyword := _KEYWORD.match(line):
        if keyword["key"].lower() == "title":
            builder.set_title(keyword["value"])
        return index + 1
    if line.lstrip().startswith("|"):
        return _add_table(builder, lines, index)
    return _add_prose(builder, lines, index)


def _add_properties(builder: Builder, lines: list[str], first: int) -> None:
    """Add what a drawer says of its headline as one row; entries of a log have no names and are left out."""
    properties = [match for line in lines if (match := _PROPERTY.match(line))]
    shown = [match for match in properties if match["key"].upper() not in _BOOKKEEPING]
    row = row_text([match["key"].capitalize() for match in shown], [_plain(match["value"]) for match in shown])
    builder.add(row, BlockKind.TABLE, Lines(first, first + len(lines) - 1))


def _add_table(builder: Builder, lines: list[str], index: int) -> int:
    rows: list[tuple[int, list[str]]] = []
    ruled = False
    while index < len(lines) and lines[index].lstrip().startswith("|"):
        if _TABLE_RULE.match(lines[index]):
            ruled = ruled or len(rows) == 1
        else:
            rows.append((index + 1, [_plain(cell.strip()) for cell in lines[index].strip().strip("|").split("|")]))
        index += 1
    words = table_rows([cells for _, cells in rows], ruled or None) if rows else []
    for (number, _), text in zip(rows, words, strict=True):
        builder.add(text, BlockKind.TABLE, Lines(number, number))
    return index


def _add_prose(builder: Builder, lines: list[str], index: int) -> int:
    begin = index
    while index < len(lines) and lines[index].strip() and (index == begin or not _begins_element(lines[index])):
        index += 1
    if index > begin:
        add_lines(builder, [_plain(line) for line in lines[begin:index]], begin + 1)
    return max(index, begin + 1)


def _begins_element(line: str) -> bool:
    return bool(
        _HEADLINE.match(line) or _DRAWER.match(line) or _BLOCK.match(line) or _KEYWORD.match(line)
    ) or line.lstrip().startswith("|")


def _plain(text: str) -> str:
    """Links by their text, without brackets."""
    return _LINK.sub(lambda link: link["text"] or link["target"], text)
