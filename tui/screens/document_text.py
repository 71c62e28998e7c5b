"""Text of a document as desk-rag read it, whole or at the quote of a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static, TextArea
from textual.widgets.text_area import Selection

from desk_rag.answering.events import Source
from desk_rag.documents.chunking import Chunk
from desk_rag.sanitize import clean
from desk_rag.tui.keys.footer import KeyFooter
from desk_rag.tui.wording import safe, sent_for_clipboard

_LAYOUT_SECONDS = 0.02
_MOST_CHARS = 200_000
"""Text shown before and after the source; more would take seconds to wrap."""


class DocumentTextScreen(Screen[None]):
    """Read-only text, with a quote selected if one is given; closed by Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,alt+v,q", "dismiss", "Back"),
        Binding("alt+c", "copy", "Copy"),
    ]

    def __init__(self, title: str, text: str, start: int = 0, end: int = 0) -> None:
        """Show `text`, with what is between `start` and `end` selected."""
        super().__init__()
        self._title, self._text = title, text
        self._start, self._end = start, end

    def compose(self) -> ComposeResult:
        yield Static(safe(self._title, "bold", single_line=True), id="document-title", markup=False)
        area = TextArea("", id="document", read_only=True, soft_wrap=True, show_cursor=False, compact=True)
        for key in ("f6", "f7"):  # keys of the app, which would stand first in the footer
            area._bindings.key_to_bindings.pop(key, None)
        yield area
        yield KeyFooter(compact=True)

    def on_mount(self) -> None:
        area = self.query_one(TextArea)
        area.text = self._text
        area.focus()
        area.selection = Selection(_row_and_column(self._text, self._start), _row_and_column(self._text, self._end))
        self.call_after_refresh(self._show_selection)

    def _show_selection(self) -> None:
        """Bring what is selected into view; a text area without a cursor does not do so by itself."""
        area = self.query_one(TextArea)
        top = area.wrapped_document.location_to_offset(area.selection.start).y
        if area.virtual_size.height > top:
            area.scroll_to(y=max(0, top - area.size.height // 3), animate=False)
        else:  # the text is not laid out yet
            self.set_timer(_LAYOUT_SECONDS, self._show_selection)

    def action_copy(self) -> None:
        """Copy what is selected, at first the quote; everything if nothing is."""
        area = self.query_one(TextArea)
        self.app.copy_to_clipboard(area.selected_text or area.text)
        self.notify(sent_for_clipboard("Selection" if area.selected_text else "Text"), markup=False)


def _row_and_column(text: str, index: int) -> tuple[int, int]:
    return text.count("\n", 0, index), index - text.rfind("\n", 0, index) - 1


def excerpt(source: Source, quote: str, chunks: Sequence[Chunk]) -> tuple[str, int, int]:
    """Return the document's text around `source`, and where in it the quote, or else the source, begins and ends."""
    places = [index for index, chunk in enumerate(chunks) if chunk.chunk_id == source.chunk_id]
    places = places or _holding(source, quote, chunks)
    if not places:
        text = clean(source.text)
        return text, *_place(text, clean(quote), 0)
    here = places[0]
    before = "\n\n".join(clean(chunk.text) for chunk in chunks[:here])[-_MOST_CHARS:]
    own = clean(chunks[here].text)
    after = "\n\n".join(clean(chunk.text) for chunk in chunks[here + 1 :])[:_MOST_CHARS]
    offset = len(before) + 2 if before else 0
    text = "\n\n".join(part for part in (before, own, after) if part)
    start, end = _place(own, clean(quote), offset)
    return text, start, end


def _holding(source: Source, quote: str, chunks: Sequence[Chunk]) -> list[int]:
    """The chunks with the quote of a saved source, whose own chunk is not known; those at its place first."""
    holding = [index for index, chunk in enumerate(chunks) if quote.strip() and quote.strip() in chunk.text]

    def is_elsewhere(index: int) -> tuple[bool, bool, bool]:
        here, saved = chunks[index].location, source.location
        first, last = here.line_start or 0, here.line_end or 0
        on_page = (here.page_start or 0) <= (saved.page_start or 0) <= (here.page_end or 0)
        return not on_page, not first <= (saved.line_start or 0) <= last, here.heading != saved.heading

    return sorted(holding, key=is_elsewhere)


def _place(text: str, quote: str, offset: int) -> tuple[int, int]:
    start = text.find(quote.strip()) if quote.strip() else -1
    return (offset, offset + len(text)) if start < 0 else (offset + start, offset + start + len(quote.strip()))
