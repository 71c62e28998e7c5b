"""Parse TOML and INI files: lines that carry their section and key, with the comments.

Read line by line because TOML parsers keep no line numbers, and INI files follow no standard.
"""

from __future__ import annotations

import re

from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.markup import code
from desk_rag.documents.parsers.structured.nodes import Node, add_nodes

_SECTION = re.compile(r"\s*\[{1,2}\s*(?P<name>[^\[\]]+?)\s*\]{1,2}\s*(?:[#;].*)?$")
_PAIR = re.compile(r"\s*(?P<key>\"[^\"\n]*\"|'[^'\n]*'|[^\s#;=:\[\"'][^=:#;]*?)\s*[=:]\s*(?P<value>.*)$")
_STRING = re.compile(r"(?P<mark>[\"'])(?P<text>(?:(?!(?P=mark))[^\\])*)(?P=mark)(?P<rest>\s*(?:#.*)?)$")
_TRIPLE = re.compile(r"\"\"\"|'''")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|#.*$")
_LONGEST_VALUE = 300
"""Lines of one value."""


def parse(text: str, note: str = "") -> Parsed:
    """Lines that carry their keys; a file most of whose lines are no keys is read as code."""
    root = Node("", 1, 1)
    comments: list[tuple[int, str]] = []
    lines = text.split("\n")
    section, other, index = root, 0, 0
    while index < len(lines):
        line, number = lines[index], index + 1
        index += 1
        if not line.strip():
            continue
        if line.lstrip().startswith(("#", ";")):
            comments.append((number, line.strip()))
        elif name := _SECTION.match(line):
            section = Node(name["name"], number, number, is_item=line.lstrip().startswith("[["))
            root.children.append(section)
        elif pair := _PAIR.match(line):
            index = _end_of_value(lines, index, pair["value"])
            value = " ".join([pair["value"].strip(), *(part.strip() for part in lines[number:index])])
            section.children.append(Node(pair["key"].strip("\"'"), number, index, _plain(value)))
        else:
            other += 1
            section.children.append(Node("", number, number, line.strip()))
    if other * 2 > len(root.children) + sum(len(each.children) for each in root.children):
        return code.parse(text, note)
    builder = Builder()
    builder.set_title(code.opening_comment(lines))
    add_nodes(builder, root, comments)
    return builder.done(note)


def _end_of_value(lines: list[str], index: int, value: str) -> int:
    """Return the index behind a value that begins before `index`: of an array or a text over several lines."""
    last = min(len(lines), index + _LONGEST_VALUE)
    if mark := _TRIPLE.match(value):
        if value.count(mark[0]) > 1:
            return index
        return next((end + 1 for end in range(index, last) if mark[0] in lines[end]), index)
    if value.startswith(("[", "{")):
        depth = _depth(value)
        for end in range(index, last):
            if depth <= 0:
                return end
            depth += _depth(lines[end])
        return last if depth <= 0 else index
    while index < last and lines[index][:1] in (" ", "\t") and _is_continued(lines[index]):
        index += 1
    return index


def _is_continued(line: str) -> bool:
    return bool(line.strip()) and not (_PAIR.match(line) or _SECTION.match(line) or line.lstrip()[0] in "#;")


def _depth(text: str) -> int:
    """Return how many brackets of a line stay open."""
    bare = _QUOTED.sub("", text)
    return sum(bare.count(mark) for mark in "[{") - sum(bare.count(mark) for mark in "]}")


def _plain(value: str) -> str:
    """Return a value without the quotation marks around it."""
    if mark := _TRIPLE.match(value):
        return value.strip().removeprefix(mark[0]).removesuffix(mark[0]).strip()
    text = _STRING.match(value)
    return f"{text['text']}{text['rest']}" if text else value
