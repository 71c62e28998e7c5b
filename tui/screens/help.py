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

from desk_rag.tui.wording import safe

_KEYS = (
    ("letters", "always go to the prompt"),
    ("Enter", "ask; on an empty prompt, answer from the files read so far"),
    ("Ctrl+J", "new line in the question; Alt+Enter does the same"),
    ("Up, Down", "earlier questions; in the transcript, the answer above or below"),
    ("Tab", "from the prompt to the transcript and the sources"),
    ("Esc", "withdraw a question that waits, stop the answer, or go back to the prompt"),
    ("Alt+M", "what can be done with the selected answer; in the transcript, Enter"),
    ("Alt+Up, Down", "select the answer above, below"),
    ("Alt+1 … 9", "show source 1 … 9"),
    ("Alt+N, P", "next, previous source"),
    ("Alt+V", "read the source's document here, at the quote"),
    ("Ctrl+O", "open it in your editor or viewer, at the quote"),
    ("Alt+C", "copy the answer with its quotes"),
    ("Alt+R, E", "ask the selected question again; edit it"),
    ("Alt+T", "where the time to the first word went"),
    ("F2 … F5, F8", "settings, library, activity, cache, doctor; again: back"),
    ("F7", "compare with full prefill: times and words"),
    ("Alt+W", "edit the completed question that a follow-up was asked as"),
    ("@", "in the prompt: search only in a folder or file; Tab or Enter takes the marked name"),
    ("/", "at the beginning of the prompt: list the passages with these words, without an answer"),
    ("Ctrl+N", "new chat; Ctrl+P also offers a private one"),
    ("Ctrl+R", "saved chats: search, open, delete"),
    ("Ctrl+F", "find in this chat"),
    ("Alt+S", "export this chat as Markdown or JSON"),
    ("Ctrl+B", "sources: pane or tab"),
    ("F6", "pause indexing for an hour, or resume"),
    ("Ctrl+P", "every action by name"),
    ("Ctrl+Q", "quit; Ctrl+C twice does the same"),
)
_SIGNS = (
    ("●", "warm: the chunk's KV was on disk, so its text was not read again"),
    ("○", "cold: the chunk was prefilled live; a later answer finds it warm"),
    ("◐", "stale: the file has changed or gone since it was read"),
    ("[2]", "the quote stands word for word in source 2"),
    ("another process", "it keeps the index fresh; this one does once it has ended"),
    ("!", "needs your attention"),
)

HERE = {
    "prompt": ("The prompt", (("letters", "your question; Enter asks it"), ("Up, Down", "earlier questions"))),
    "transcript": (
        "The transcript",
        (("Up, Down", "select an answer"), ("Enter", "what can be done with it"), ("Esc", "back to the prompt")),
    ),
    "sources": (
        "The sources",
        (("Up, Down", "show another one below"), ("Enter", "read on below"), ("Ctrl+O", "open it at the quote")),
    ),
    "preview-text": ("The source", (("Up, Down", "scroll"), ("Ctrl+O", "open it at the quote"), ("Esc", "back"))),
}
"""Name and keys of each widget of the chat screen, by its id."""


class HelpScreen(ModalScreen[None]):
    """Closed by Esc, F1 or q."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "Close")]

    def __init__(self, log_file: Path | None, title: str = "", keys: Sequence[tuple[str, str]] = ()) -> None:
        """`title` and `keys` say what has the focus and what can be done there; they come first."""
        super().__init__()
        self._log_file, self._title, self._keys = log_file, title, keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            if self._keys:
                yield from _table(self._title, self._keys)
            yield from _table("Keys", _KEYS)
            yield from _table("Signs", _SIGNS)
            if self._log_file is not None:
                yield from _table("Log", (("file", str(self._log_file)),))


def _table(title: str, rows: Sequence[tuple[str, str]]) -> ComposeResult:
    yield Static(Content.styled(title, "bold"), markup=False)
    for key, meaning in rows:
        with Horizontal(classes="help-row"):
            yield Static(Content.styled(key, "$accent"), classes="help-key", markup=False)
            yield Static(safe(meaning, single_line=True), classes="help-meaning", markup=False)
