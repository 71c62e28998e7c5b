"""Jump mode: a letter at every place that can be gone to; the letter goes there, any other key goes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widgets import Static

_LETTERS = "asdfghjklqwertyuiopzxcvbnm"


@dataclass(frozen=True, slots=True)
class JumpTarget:
    """One place on the screen."""

    column: int
    row: int
    go: Callable[[], object]


class JumpScreen(ModalScreen[JumpTarget | None]):
    """Screen that shows the letters over the one below it; returns the chosen target, or None."""

    def __init__(self, targets: Sequence[JumpTarget]) -> None:
        super().__init__()
        places = sorted(targets, key=lambda target: (target.row, target.column))
        self._targets = dict(zip(_LETTERS, places, strict=False))

    def compose(self) -> ComposeResult:
        for letter, target in self._targets.items():
            label = Static(f" {letter} ", classes="jump-letter", markup=False)
            label.styles.offset = (target.column, target.row)
            yield label

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss(self._targets.get(event.character or ""))

    def on_click(self) -> None:
        self.dismiss(None)
