"""Line for searching in the transcript: what to find, and how many turns contain it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from desk_rag.sanitize import clean
from desk_rag.tui.widgets.line_input import LineInput


class FindBar(Horizontal):
    """Search line, hidden until it is opened; Enter goes to the next match, Shift+Tab or Up to the previous one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", priority=True),
        Binding("down", "step(1)", "Next", priority=True),
        Binding("up", "step(-1)", "Previous", priority=True),
    ]

    @dataclass
    class Wanted(Message):
        """Request to find the turns with this text; `step` moves among them, 0 is the nearest."""

        text: str
        step: int

    class Closed(Message):
        """Message that the user has finished searching."""

    def __init__(self) -> None:
        super().__init__(id="find")
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static("find ", markup=False)
        yield LineInput("find-words", "words in this conversation", submits=True)
        yield Static("", id="found", markup=False)

    def tell(self, text: str) -> None:
        """Say how many turns match."""
        self.query_one("#found", Static).update(text)

    def on_input_changed(self, message: Input.Changed) -> None:
        """Search while the user types."""
        message.stop()
        self.post_message(self.Wanted(clean(message.value, single_line=True), 0))

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Enter goes to the next match."""
        message.stop()
        self.action_step(1)

    def action_step(self, step: int) -> None:
        """Go to the next or previous match."""
        self.post_message(self.Wanted(clean(self.query_one(Input).value, single_line=True), step))

    def action_close(self) -> None:
        """Hide the line."""
        self.query_one(Input).value = ""
        self.display = False
        self.post_message(self.Closed())
