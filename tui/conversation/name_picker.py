"""Folders and files that match the '@' name being written, above the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from textual.widgets import OptionList
from textual.widgets.option_list import Option

from desk_rag.tui.conversation.names import Choice
from desk_rag.tui.wording import safe

MOST = 8


class NamePicker(OptionList, can_focus=False):
    """List of matching names, hidden while nothing matches. The prompt keeps the focus and forwards keys."""

    def __init__(self) -> None:
        super().__init__(id="names", markup=False, compact=True)
        self._choices: Sequence[Choice] = ()
        self.display = False

    @property
    def is_open(self) -> bool:
        """True if a choice can be made."""
        return bool(self._choices)

    @property
    def current(self) -> Choice | None:
        """The marked choice."""
        return self._choices[self.highlighted] if self._choices and self.highlighted is not None else None

    def show(self, choices: Sequence[Choice]) -> None:
        """Offer these; none closes the picker."""
        self._choices = tuple(choices)
        self.clear_options()
        self.add_options([Option(safe(choice.token, single_line=True, most=200)) for choice in choices])
        self.highlighted = 0 if choices else None
        self.display = bool(choices)

    def move(self, step: int) -> None:
        """Mark the next or previous choice, around the ends."""
        if self._choices and self.highlighted is not None:
            self.highlighted = (self.highlighted + step) % len(self._choices)
