"""Show keys and signs on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from desk_rag.tui.keys.actions import FIXED_KEYS
from desk_rag.tui.keys.keymap import KeyMap
from desk_rag.tui.wording import safe

_SIGNS = (
    ("●", "warm: a cache of the passage was on the disk, so the model did not read its text again"),
    ("○", "cold: the model read the passage for this answer; a later answer finds it warm"),
    ("·", "listed: no model read it, as in lists, searches and saved answers"),
    ("◐", "the file has changed since it was read, or is gone; a line below the answer says which"),
    ("[2]", "the quote stands word for word in source 2"),
    ("another process", "it keeps the index fresh; this one does once it has ended"),
    ("!", "needs your attention"),
    ("●, ○, !", "in the library: read, left out, could not be read"),
)

HERE = {
    "prompt": ("The prompt", (("letters", "your question; Enter asks it"), ("Up, Down", "earlier questions"))),
    "transcript": (
        "The transcript",
        (("Up, Down", "select an answer"), ("Enter", "what can be done with it"), ("Esc", "back to the prompt")),
    ),
    "sources": (
        "The sources",
        (("Up, Down", "show another one below"), ("Enter", "read on below"), ("open_source", "open it at the quote")),
    ),
    "preview-text": ("The source", (("Up, Down", "scroll"), ("open_source", "open it at the quote"), ("Esc", "back"))),
}
"""Name and keys of each widget of the chat screen, by its id; a key may be the name of an action."""

_CHAT_PLACES = {"", *(title for title, _ in HERE.values())}


class HelpScreen(ModalScreen[None]):
    """Screen of keys and signs; Esc, q or the help's key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Close")]

    def __init__(
        self, keymap: KeyMap, log_file: Path | None, title: str = "", keys: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Show the keys of `keymap`; `title` and `keys` describe the place that has the focus and come first."""
        super().__init__()
        self._keymap, self._log_file, self._title, self._keys = keymap, log_file, title, keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            if self._keys:
                yield from _table(self._title, [(self._keymap.shown(key), meaning) for key, meaning in self._keys])
            tables = [("Keys of the chat", self._chat_rows()), ("Keys everywhere", self._keymap.general_rows())]
            for title, rows in tables if self._title in _CHAT_PLACES else reversed(tables):
                yield from _table(title, rows)
            yield from _table("Signs", _SIGNS)
            if self._log_file is not None:
                yield from _table("Log", (("file", str(self._log_file)),))

    def _chat_rows(self) -> list[tuple[str, str]]:
        """Return the keys of the chat without those that the prompt's own lines name above."""
        above = {key for key, _ in self._keys} if self._title == HERE["prompt"][0] else set()
        return [row for row in (*FIXED_KEYS, *self._keymap.help_rows()) if row[0] not in above]


def _table(title: str, rows: Sequence[tuple[str, str]]) -> ComposeResult:
    yield Static(Content.styled(title, "bold"), markup=False)
    for key, meaning in rows:
        with Horizontal(classes="help-row"):
            yield Static(Content.styled(key, "$accent"), classes="help-key", markup=False)
            yield Static(safe(meaning, single_line=True), classes="help-meaning", markup=False)
