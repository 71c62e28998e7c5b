"""Menu of what can be done with the selected turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from desk_rag.tui.keys.keymap import KeyMap
from desk_rag.tui.turns.actions import TurnAction
from desk_rag.tui.wording import safe

_TITLE_CELLS = 34


class TurnMenu(ModalScreen[str]):
    """Menu of one turn; returns the name of the chosen action, None after Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,alt+m", "dismiss", "Close")]

    def __init__(self, question: str, actions: Sequence[TurnAction], keymap: KeyMap) -> None:
        super().__init__()
        self._keymap = keymap
        self._question = question
        self._actions = actions

    def compose(self) -> ComposeResult:
        with Vertical(id="menu"):
            yield Static(safe(self._question, "bold", single_line=True, most=200), id="menu-title", markup=False)
            yield OptionList(
                *[Option(_line(one.title, self._keymap.shown(one.key)), one.name) for one in self._actions],
                markup=False,
                compact=True,
            )
            yield Static(Content.styled("Enter does it · Esc goes back", "$foreground 60%"), markup=False)

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        """End with the chosen action."""
        message.stop()
        self.dismiss(message.option.id)


def _line(title: str, key: str) -> Content:
    return Content.assemble(f"{title:<{_TITLE_CELLS}}", (key, "$accent"))
