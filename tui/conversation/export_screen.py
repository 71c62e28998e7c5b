"""Ask where a conversation should be written."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from desk_rag.sanitize import clean
from desk_rag.tui.widgets.line_input import LineInput

_HINT = "Markdown, or JSON if the name ends in .json · Enter writes · Esc goes back"


class ExportScreen(ModalScreen[Path]):
    """Screen that asks for the path of the new file; returns it, None after Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]

    def __init__(self, proposed: Path) -> None:
        super().__init__()
        self._proposed = proposed

    def compose(self) -> ComposeResult:
        with Vertical(id="export"):
            yield Static(Content.styled("Export this conversation with its sources", "bold"), markup=False)
            yield LineInput("export-path", value=clean(str(self._proposed), single_line=True), submits=True)
            yield Static(Content.styled(_HINT, "$foreground 60%"), markup=False)

    def on_mount(self) -> None:
        self.set_focus(self.query_one(LineInput))

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """End with the path."""
        if text := clean(message.value, single_line=True).strip():
            self.dismiss(Path(text))
