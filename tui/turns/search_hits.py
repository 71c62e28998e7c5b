"""The passages that a search in the prompt found, each with the words around the first hit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from textual.content import Content
from textual.widgets import Static

from desk_rag.answering.events import Answer, Source
from desk_rag.tui.turns.afterword import source_line
from desk_rag.tui.wording import hanging, safe

_EXCERPT, _BEFORE_WORD = 160, 40
"""Characters of a passage that are shown, and those of them before the word."""
_INDENT = Content("    ")


class SearchHits(Static):
    """List of passages, the best first; an excerpt is indented in all its lines."""

    def __init__(self, answer: Answer, folders: Sequence[Path]) -> None:
        self._hits = [(source_line(each, folders), _excerpt(each, answer.question)) for each in answer.sources]
        self._width = 0
        super().__init__(self._lines(), classes="hits", markup=False)

    def on_resize(self) -> None:
        """Wrap the excerpts to the width that there is now."""
        if self.content_region.width != self._width:
            self._width = self.content_region.width
            self.update(self._lines())

    def _lines(self) -> Content:
        lines = []
        for where, excerpt in self._hits:
            lines += [where, hanging(_INDENT, excerpt, self._width) if self._width else _INDENT + excerpt]
        return Content("\n").join(lines)


def _excerpt(source: Source, query: str) -> Content:
    """Return the part of a passage around the first word of the query in it."""
    text = " ".join(source.text.split())
    words = [re.escape(word) for word in query.removeprefix("/").split()]
    hit = re.search("|".join(words), text, re.IGNORECASE) if words else None
    start = max(0, hit.start() - _BEFORE_WORD) if hit else 0
    start = text.find(" ", start) + 1 if start else 0
    before, after = "…" if start else "", "…" if start + _EXCERPT < len(text) else ""
    return safe(f"{before}{text[start : start + _EXCERPT]}{after}", "$foreground 80%", most=_EXCERPT + 10)
