"""One line of input that can leave Enter to the screen, so that the footer says what Enter does there."""

from __future__ import annotations

from textual import events
from textual.widget import Widget
from textual.widgets import Input

from desk_rag.sanitize import clean
from desk_rag.tui.keys.keymap import KeyMap


def leave_to_app(widget: Widget) -> None:
    """Let keys that the user gave to an action reach it, although they would edit text in `widget`."""
    keymap: KeyMap = getattr(widget.app, "keymap", KeyMap())
    for key in keymap.chosen.values():
        widget._bindings.key_to_bindings.pop(key, None)


class LineInput(Input):
    """An input that keeps the focus: letters go here, and keys it does not use go to the screen."""

    def __init__(self, id: str, placeholder: str = "", value: str = "", *, submits: bool = False) -> None:
        """Send Input.Submitted on Enter with `submits`; otherwise leave Enter to the screen."""
        super().__init__(value, placeholder=placeholder, id=id, compact=True)
        if not submits:
            self._bindings.key_to_bindings.pop("enter", None)

    def on_mount(self) -> None:
        leave_to_app(self)

    def on_paste(self, event: events.Paste) -> None:
        """A pasted escape sequence must not get in here."""
        event.text = clean(event.text, single_line=True)
