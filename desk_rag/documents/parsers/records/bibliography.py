"""Parse bibliographies (.bib): one block per entry, with its lines in the file."""

from __future__ import annotations

import re

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed

_ENTRY = re.compile(r"@(?P<kind>\w+)\s*[{(]\s*(?P<key>[^,\s]+)\s*,")
_FIELD = re.compile(
    r"(?P<name>[\w-]+)\s*=\s*(?P<value>\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}|\"[^\"]*\"|[\w#\s]+?)\s*(?:,|\}?\s*$)"
)
_NOT_SHOWN = ("abstract", "file", "keywords", "timestamp")


def parse(text: str, note: str = "") -> Parsed:
    """Entries as 'title: ...; author: ...; year: ...'; comments and string definitions are left out."""
    builder = Builder()
    lines = text.split("\n")
    starts = [index for index, line in enumerate(lines) if line.lstrip().startswith("@")]
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        while end > begin + 1 and not lines[end - 1].strip():
            end -= 1
        body = "\n".join(lines[begin:end])
        entry = _ENTRY.match(body.lstrip())
        if entry is None:
            continue
        fields = [(field["name"].lower(), _value(field["value"])) for field in _FIELD.finditer(body, entry.end())]
        shown = [f"{name}: {value}" for name, value in fields if value and name not in _NOT_SHOWN]
        builder.add(
            "; ".join([f"{entry['kind'].lower()} {entry['key']}", *shown]), BlockKind.TABLE, Lines(begin + 1, end)
        )
        abstract = dict(fields).get("abstract")
        if abstract:
            builder.add(abstract, BlockKind.PARAGRAPH, Lines(begin + 1, end))
    return builder.done(note)


def _value(text: str) -> str:
    return " ".join(re.sub(r"[{}\"]", "", text).split())
