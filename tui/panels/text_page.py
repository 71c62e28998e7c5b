"""A page of text to read: what was extracted from a file."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from desk_rag.tui.wording import safe


class TextScreen(ModalScreen[None]):
    """Closed by Esc or q."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Close")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(id="text-page"):
            yield Static(safe(self._title, "bold", single_line=True, most=300), markup=False, id="text-title")
            with VerticalScroll(id="text-body"):
                yield Static(safe(self._text), markup=False)

    def on_mount(self) -> None:
        self.query_one("#text-body").focus()
