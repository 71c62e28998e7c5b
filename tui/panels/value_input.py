"""Ask for one value, with what it means and what was wrong with the last one."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from desk_rag.sanitize import clean
from desk_rag.tui.widgets.line_input import LineInput
from desk_rag.tui.wording import safe

_HINT = "Enter takes it; empty means the default; Esc leaves it as it is."


class ValueScreen(ModalScreen[str | None]):
    """Screen that asks for one value; returns the text, None after Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "Take it"),
        Binding("escape", "dismiss", "Cancel"),
    ]

    def __init__(self, title: str, text: str, value: str, problem: str = "", hint: str = _HINT) -> None:
        super().__init__()
        self._hint = hint
        self._title, self._text, self._value, self._problem = title, text, value, problem

    def compose(self) -> ComposeResult:
        with Vertical(id="choice"):
            yield Static(safe(self._title, "bold", single_line=True, most=300), markup=False, id="choice-title")
            yield Static(safe(self._text, most=2_000), markup=False, id="choice-text")
            yield LineInput("value", value=clean(self._value, single_line=True))
            yield Static(safe(self._problem, "$error", most=600), markup=False, id="value-problem")
            yield Static(Content.styled(self._hint, "$foreground 60%"), markup=False)

    def on_mount(self) -> None:
        self.query_one(LineInput).focus()

    def action_take(self) -> None:
        """Return what was typed."""
        self.dismiss(self.query_one(LineInput).value)
