"""Ask for one of a few things to do: a menu, or a question before something that costs work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from desk_rag.tui.wording import safe


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the choices."""

    name: str
    """Result of the screen."""
    key: str
    """A letter that chooses it at once."""
    label: str


class ChoiceScreen(ModalScreen[str | None]):
    """Screen of a few choices; returns the chosen name, None after Esc. The first choice is the safe one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, title: str, text: str, choices: Sequence[Choice]) -> None:
        super().__init__()
        self._title, self._text, self._choices = title, text, tuple(choices)

    def compose(self) -> ComposeResult:
        with Vertical(id="choice"):
            yield Static(safe(self._title, "bold", single_line=True, most=300), markup=False, id="choice-title")
            if self._text:
                yield Static(safe(self._text, most=2_000), markup=False, id="choice-text")
            yield OptionList(*[Option(_line(choice), id=choice.name) for choice in self._choices], compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_key(self, event: events.Key) -> None:
        chosen = next((choice for choice in self._choices if choice.key == event.character), None)
        if chosen is not None:
            event.stop()
            self.dismiss(chosen.name)
        elif event.is_printable:
            keys = ", ".join(choice.key for choice in self._choices)
            self.notify(f"One of {keys} chooses; Esc cancels.", timeout=4, markup=False)

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(message.option_id)

    def action_cancel(self) -> None:
        """Do nothing."""
        self.dismiss(None)


def _line(choice: Choice) -> Content:
    return Content.assemble((f" {choice.key}  ", "$accent"), safe(choice.label, single_line=True, most=120))
