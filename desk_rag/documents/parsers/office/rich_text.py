"""Rich Text Format (.rtf): the text of its paragraphs, without lines or pages."""

from __future__ import annotations

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, table_rows
from desk_rag.errors import BrokenDocument


def parse(data: bytes) -> Parsed:
    """Paragraphs; table rows as words. Raises BrokenDocument for RTF that cannot be read."""
    from striprtf.striprtf import rtf_to_text

    try:
        text = rtf_to_text(data.decode("latin-1"), errors="replace")
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
