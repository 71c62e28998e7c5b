"""Ask where a conversation should be written, until it could be written there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from desk_rag.errors import DeskRagError
from desk_rag.sanitize import clean
from desk_rag.tui.widgets.line_input import LineInput
from desk_rag.tui.wording import safe

_HINT = "Markdown, or JSON if the name ends in .json · Enter writes · Esc goes back"


class ExportScreen(ModalScreen[Path]):
    """Screen that writes the new file and returns its path, None after Esc; a name that cannot be used stays in it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]

    def __init__(self, proposed: Path, write: Callable[[Path], Path]) -> None:
        """`write` writes to a path as it was typed and returns the file; it raises DeskRagError."""
        super().__init__()
        self._proposed, self._write = proposed, write

    def compose(self) -> ComposeResult:
        with Vertical(id="export"):
            yield Static(Content.styled("Export this conversation with its sources", "bold"), markup=False)
            yield LineInput("export-path", value=clean(str(self._proposed), single_line=True), submits=True)
            yield Static(Content.styled(_HINT, "$foreground 60%"), id="export-hint", markup=False)

    def on_mount(self) -> None:
        self.set_focus(self.query_one(LineInput))

    def on_input_changed(self) -> None:
        """Say again what is asked for, once the name that was refused is changed."""
        self._hint(_HINT, "$foreground 60%")

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Write the file."""
        if text := clean(message.value, single_line=True).strip():
            self.write(Path(text))

    @work(thread=True, exclusive=True, group="export", exit_on_error=False)
    def write(self, place: Path) -> None:
        """Write the file in a thread; end with its path, or say why it cannot be written."""
        try:
            path = self._write(place)
        except DeskRagError as error:
            self.app.call_from_thread(self._hint, f"{error.message} {error.remedy}".strip(), "$warning")
            return
        self.app.call_from_thread(self.dismiss, path)

    def _hint(self, text: str, style: str) -> None:
        if self.is_running:
            self.query_one("#export-hint", Static).update(safe(text, style, single_line=True, most=300))
