"""Parse bibliographies (.bib): one block per entry, with its lines in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed
from desk_rag.documents.parsers.latex.document import words

_ENTRY = re.compile(r"@(?P<kind>\w+)\s*[{(]\s*(?P<key>[^,\s]+)\s*,")
_PART = r"(?:\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*\}|\"(?:[^\"{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\"|\w+)"
"""A value, or one of those that '#' joins."""
_FIELD = re.compile(rf"(?P<name>[\w-]+)\s*=\s*(?P<value>{_PART}(?:\s*#\s*{_PART})*)\s*(?:,|\}}?\s*$)")
_STRING = re.compile(rf"(?im)^\s*@string\s*[{{(]\s*(?P<name>[\w-]+)\s*=\s*(?P<value>{_PART})")
_PARTS = re.compile(_PART)
_NOT_SHOWN = ("abstract", "file", "keywords", "timestamp")


def parse(text: str, note: str = "") -> Parsed:
    """Entries as 'title: ...; author: ...; year: ...'; defined strings are filled in, comments left out."""
    builder = Builder()
    strings = {string["name"].lower(): _part(string["value"], {}) for string in _STRING.finditer(text)}
    lines = text.split("\n")
    starts = [index for index, line in enumerate(lines) if line.lstrip().startswith("@")]
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        while end > begin + 1 and not lines[end - 1].strip():
            end -= 1
        body = "\n".join(lines[begin:end])
        entry = _ENTRY.match(body.lstrip())
        if entry is None:
            continue
        fields = [
            (field["name"].lower(), _value(field["value"], strings)) for field in _FIELD.finditer(body, entry.end())
        ]
        shown = [f"{name}: {value}" for name, value in fields if value and name not in _NOT_SHOWN]
        builder.add(
            "; ".join([f"{entry['kind'].lower()} {entry['key']}", *shown]), BlockKind.TABLE, Lines(begin + 1, end)
        )
        abstract = dict(fields).get("abstract")
        if abstract:
            builder.add(abstract, BlockKind.PARAGRAPH, Lines(begin + 1, end))
    return builder.done(note)


def _value(source: str, strings: Mapping[str, str]) -> str:
    return " ".join("".join(_part(part, strings) for part in _PARTS.findall(source)).split())


def _part(part: str, strings: Mapping[str, str]) -> str:
    """Return one part of a value as words: what stands in braces or quotes, a number, or a defined string."""
    if part[0] not in '{"':
        return strings.get(part.lower(), part)
    inner = part[1:-1]
    shown = words(inner) if "\\" in inner else re.sub(r"[{}]", "", inner)
    return f"{shown} " if inner.endswith(" ") else f" {shown}" if inner.startswith(" ") else shown
