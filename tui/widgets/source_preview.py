"""Preview of a source: its chunk with marked quotes, between the neighbouring chunks of the document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from desk_rag.answering.events import Source
from desk_rag.documents.chunking import Chunk
from desk_rag.tui.wording import place, safe, short_path

_NEIGHBOURS = 4
"""Chunks shown before and after; enough to read on, cheap for a book."""


class SourcePreview(Vertical):
    """Text of a source, shown at once, and its neighbours, shown when they arrive."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__(id="preview")
        self._folders = folders
        self._source: Source | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="preview-title", markup=False)
        with VerticalScroll(id="preview-text"):
            yield Static("", id="before", classes="neighbour", markup=False)
            yield Static("", id="chunk", markup=False)
            yield Static("", id="after", classes="neighbour", markup=False)

    def show(self, source: Source | None, quotes: Sequence[str]) -> None:
        """Show `source` with `quotes` marked in it; None empties the preview."""
        same = source is not None and self._source is not None and source.chunk_id == self._source.chunk_id
        self._source = source
        self.set_class(source is None, "-empty")
        self._set("preview-title", self._title(source) if source else Content(""))
        self._set("chunk", _marked(_body(source.text, source.location.heading), quotes) if source else Content(""))
        if not same:
            self._set("before", Content(""))
            self._set("after", Content(""))
            self.query_one("#preview-text", VerticalScroll).scroll_home(animate=False, force=True)

    def show_neighbours(self, path: Path, chunks: Sequence[Chunk]) -> None:
        """Add the text around the chunk; ignored if another file is shown by now."""
        source = self._source
        if source is None or source.path != path:
            return
        places = [index for index, chunk in enumerate(chunks) if chunk.chunk_id == source.chunk_id]
        if not places:
            return
        here = places[0]
        self._set("before", _joined(chunks[max(0, here - _NEIGHBOURS) : here], source))
        self._set("after", _joined(chunks[here + 1 : here + 1 + _NEIGHBOURS], source))
        self.call_after_refresh(self._to_chunk)

    def _to_chunk(self) -> None:
        # A few lines of what comes before stay in view, so that the eye sees where it is.
        scroll = self.query_one("#preview-text", VerticalScroll)
        top = self.query_one("#chunk").virtual_region.y
        scroll.scroll_to(y=max(0, top - 3), animate=False, force=True)

    def _title(self, source: Source) -> Content:
        parts = [part for part in (short_path(source.path, self._folders), place(source)) if part]
        title = Content.assemble(
            (f"{source.number} ", "bold $accent"), safe(" · ".join(parts), "bold", single_line=True)
        )
        heading = safe(source.location.heading, "$foreground 60%", single_line=True, most=200)
        return Content.assemble(title, "\n", heading) if heading else title

    def _set(self, name: str, content: Content) -> None:
        widget = self.query_one(f"#{name}", Static)
        widget.update(content)
        widget.display = bool(content)


def _joined(chunks: Sequence[Chunk], source: Source) -> Content:
    return Content("\n\n").join([safe(_body(chunk.text, source.location.heading)) for chunk in chunks])


def _body(text: str, heading: str) -> str:
    """A chunk's text without its title line where that only repeats the heading shown above."""
    return text.removeprefix(f"{heading}\n") if heading else text


def _marked(text: str, quotes: Sequence[str]) -> Content:
    content = safe(text)
    for quote in quotes:
        wanted = safe(quote).plain.strip()
        start = content.plain.find(wanted) if wanted else -1
        if start >= 0:
            content = content.stylize("bold $accent", start, start + len(wanted))
    return content
