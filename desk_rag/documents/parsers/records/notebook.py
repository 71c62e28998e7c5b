"""Parse Jupyter notebooks (.ipynb): text, code and printed output, cell by cell; the page is the cell's number.

Read as the JSON it is (formats 3 and 4): validating with nbformat would refuse notebooks that still hold readable text.
"""

from __future__ import annotations

import json
import re
from typing import Any

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.markup import markdown
from desk_rag.errors import BrokenDocument

_MOST_OUTPUT_CHARS = 4000
"""Characters kept of one output: the rest is usually a log."""
_EMBEDDED_DATA = re.compile(r"data:[\w.+/-]*;base64,[A-Za-z0-9+/=\s]*")


def parse(text: str, note: str = "") -> Parsed:
    """Cells as blocks. Raises BrokenDocument for JSON that is no notebook."""
    try:
        notebook = json.loads(text)
        cells = notebook.get("cells")
        if cells is None:
            cells = [cell for sheet in notebook["worksheets"] for cell in sheet["cells"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenDocument("is not a notebook that can be read (damaged?)") from error
    builder, cut = Builder(), 0
    for number, cell in enumerate(cells if isinstance(cells, list) else [], start=1):
        if isinstance(cell, dict):
            cut += _add_cell(builder, cell, number)
    of_outputs = f"of {cut} long output{'s' * (cut > 1)} only the beginning is read" if cut else ""
    return builder.done("; ".join(filter(None, [note, of_outputs])))


def _add_cell(builder: Builder, cell: dict[str, Any], number: int) -> int:
    """Add a cell; returns how many of its outputs are cut."""
    source = _joined(cell.get("source", cell.get("input", "")))
    kind = cell.get("cell_type")
    if kind == "heading":
        builder.heading(_level(cell.get("level")), source, page=number)
        return 0
    if kind == "markdown":
        for block in markdown.parse(_EMBEDDED_DATA.sub("", source)).blocks:
            if block.kind is BlockKind.HEADING:
                builder.heading(len(block.heading), block.text, page=number)
            else:
                builder.add(block.text, block.kind, page=number)
        return 0
    builder.add(source, BlockKind.CODE if kind == "code" else BlockKind.PARAGRAPH, page=number)
    outputs = cell.get("outputs")
    printed = [_printed(output) for output in outputs if isinstance(output, dict)] if isinstance(outputs, list) else []
    for text in printed:
        builder.add(text[:_MOST_OUTPUT_CHARS], BlockKind.CODE, page=number)
    return sum(len(text) > _MOST_OUTPUT_CHARS for text in printed)


def _level(level: object) -> int:
    return level if isinstance(level, int) and 1 <= level <= 6 else 1


def _printed(output: dict[str, Any]) -> str:
    """Printed text, or the message of an error; nothing of pictures."""
    if output.get("output_type") in ("error", "pyerr"):
        return ": ".join(str(output[part]) for part in ("ename", "evalue") if output.get(part))
    data = output.get("data")
    plain = data.get("text/plain") if isinstance(data, dict) else output.get("text")
    return _joined(plain or "")


def _joined(source: object) -> str:
    return "".join(str(line) for line in source) if isinstance(source, list) else str(source or "")
