"""Rich Text Format (.rtf): the text of its paragraphs, without lines or pages, as if all changes were accepted."""

from __future__ import annotations

import re

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, table_rows
from desk_rag.errors import BrokenDocument

_TOKEN = re.compile(r"\\(?:bin(?P<length>\d+) ?|[a-z]+-?\d* ?|.)|[{}]", re.DOTALL)
_END_OF_PARAGRAPH_IN_CELL = re.compile(r"\\par(?![a-z])\s*(?=[\s{}]*\\cell(?![a-z]))")


def parse(data: bytes) -> Parsed:
    """Paragraphs; table rows as words. Raises BrokenDocument for RTF that cannot be read."""
    from striprtf.striprtf import rtf_to_text

    try:
        source = _END_OF_PARAGRAPH_IN_CELL.sub("", _without_deletions(data.decode("latin-1")))
        text = rtf_to_text(source, errors="replace")
    except Exception as error:  # striprtf lets IndexError, LookupError and ValueError through
        raise BrokenDocument("is not an RTF file that can be read (damaged?)") from error
    builder = Builder()
    for line in text.split("\n"):
        if line.count("|") >= 2:
            (words,) = table_rows([[cell.strip() for cell in line.strip().strip("|").split("|")]], False)
            builder.add(words, BlockKind.TABLE)
        else:
            builder.add(line, BlockKind.PARAGRAPH)
    return builder.done()


def _without_deletions(source: str) -> str:
    """Return RTF without the text that tracked changes deleted, from its mark to the end of the mark's group."""
    if "\\deleted" not in source:
        return source
    kept: list[str] = []
    depth = begin = position = 0
    deleted_depth: int | None = None
    while token := _TOKEN.search(source, position):
        position = token.end() + int(token["length"] or 0)
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if deleted_depth is not None and depth < deleted_depth:
                begin, deleted_depth = token.start(), None
        elif deleted_depth is None and token[0].rstrip() in ("\\deleted", "\\deleted1"):
            kept.append(source[begin : token.start()])
            deleted_depth = depth
    return "".join(kept) + (source[begin:] if deleted_depth is None else "")
