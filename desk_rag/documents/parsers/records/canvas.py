"""Parse Obsidian canvases (.canvas): the text of the cards, top to bottom, with their number as line."""

from __future__ import annotations

import json
from typing import Any

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.markup import markdown
from desk_rag.errors import BrokenDocument


def parse(text: str, note: str = "") -> Parsed:
    """Cards and group names, then the words on arrows; files that a card shows are named. Raises BrokenDocument."""
    try:
        canvas = json.loads(text)
        cards = sorted((node for node in canvas["nodes"] if isinstance(node, dict)), key=_position)
        arrows = [arrow for arrow in canvas.get("edges", ()) if isinstance(arrow, dict)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BrokenDocument("is not a canvas that can be read (damaged?)") from error
    builder = Builder()
    for card in cards:
        builder.next_paragraph()
        if card.get("type") == "text":
            for block in markdown.parse(str(card.get("text", ""))).blocks:
                builder.add(block.text, BlockKind.PARAGRAPH if block.kind is BlockKind.HEADING else block.kind)
        else:
            builder.add(str(card.get("label") or card.get("file") or card.get("url") or ""), BlockKind.PARAGRAPH)
    builder.end_paragraphs()
    for arrow in arrows:
        builder.add(str(arrow.get("label") or ""), BlockKind.PARAGRAPH)
    return builder.done(note)


def _position(card: dict[str, Any]) -> tuple[float, float]:
    return float(card.get("y") or 0), float(card.get("x") or 0)
