"""Input for questions: Enter asks, Ctrl+J or Alt+Enter starts a new line, Up and Down recall earlier questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from desk_rag.sanitize import clean
from desk_rag.tui.conversation import prompt_commands
from desk_rag.tui.widgets.line_input import leave_to_app

_PICKER_KEYS = frozenset({"up", "down", "tab", "enter", "escape"})
_NEW_LINE_KEYS = frozenset({"ctrl+j", "alt+enter", "shift+enter"})


class QuestionInput(TextArea):
    """A prompt that grows with its text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Ask")]

    @dataclass
    class Submitted(Message):
        question: str

    @dataclass
    class Commanded(Message):
        """Message that something of `prompt_commands` was typed: the text, the name of its key, and the action."""

        text: str
        key: str
        action: str

    @dataclass
    class Picked(Message):
        """Message with a key for the open picker of names."""

        key: str

    @dataclass
    class PageWanted(Message):
        """Message to scroll what is read beside the prompt by a page: down if `step` is 1, up if -1."""

        step: int

    class EmptySubmitted(Message):
        """Message that Enter was pressed on an empty prompt."""

    def __init__(self) -> None:
        super().__init__(
            id="prompt",
            compact=True,
            soft_wrap=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder="Ask about your files",
        )
        self.cursor_blink = False  # two redraws a second, for ever, also over slow connections
        for key in ("f6", "f7", "ctrl+f"):
            # TextArea uses these; here they belong to the app.
            self._bindings.key_to_bindings.pop(key, None)
        self._history: list[str] = []
        self.picking = False
        """The picker of names is open and gets some keys."""
        self._recalled: int | None = None
        """Index into the history while the user walks through it."""

    def on_mount(self) -> None:
        leave_to_app(self)

    def on_key(self, event: events.Key) -> None:
        """Let Enter ask and Ctrl+J start a line, instead of what a text area does with them."""
        if self.picking and event.key in _PICKER_KEYS:
            event.stop()
            event.prevent_default()
            self.post_message(self.Picked(event.key))
        elif event.key == "enter" or event.key in _NEW_LINE_KEYS:
            event.stop()
            event.prevent_default()
            if event.key == "enter":
                self.action_submit()
            else:
                self.action_new_line()

    def on_paste(self, event: events.Paste) -> None:
        """A pasted escape sequence must not get into the prompt either."""
        event.text = clean(event.text)

    def load_history(self, questions: Sequence[str]) -> None:
        """Put questions of earlier conversations before those of this one."""
        self._history[:0] = questions
        if self._recalled is not None:
            self._recalled += len(questions)

    def offer(self, question: str) -> bool:
        """Put `question` into the prompt to be edited; False if something is being written there."""
        if self.text.strip():
            return False
        self.text = clean(question)  # names of files in it may hold escape sequences
        self.move_cursor(self.document.end)
        return True

    def action_submit(self) -> None:
        """Hand the question on and empty the prompt."""
        question = clean(self.text).strip()
        if not question:
            self.post_message(self.EmptySubmitted())
            return
        self._history.append(question)
        self._recalled = None
        self.clear()
        command = prompt_commands.of(question)
        self.post_message(self.Submitted(question) if command is None else self.Commanded(question, *command))

    def action_new_line(self) -> None:
        self.insert("\n")

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up; from the first line, to the question before."""
        if select or self.cursor_location[0] > 0 or not self._history:
            super().action_cursor_up(select)
            return
        last = len(self._history) if self._recalled is None else self._recalled
        self._recall(max(0, last - 1))

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down; from the last line, to the question after."""
        if select or self._recalled is None or self.cursor_location[0] < self.document.line_count - 1:
            super().action_cursor_down(select)
            return
        self._recall(self._recalled + 1)

    def action_cursor_page_up(self) -> None:
        """Scroll the answers; a prompt has no pages."""
        self.post_message(self.PageWanted(-1))

    def action_cursor_page_down(self) -> None:
        """Scroll the answers down."""
        self.post_message(self.PageWanted(1))

    def _recall(self, index: int) -> None:
        if index >= len(self._history):
            self._recalled = None
            self.clear()
            return
        self._recalled = index
        self.text = clean(self._history[index])
        self.move_cursor(self.document.end)
