"""List of saved chats: search, open, rename, delete."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from desk_rag.errors import DeskRagError
from desk_rag.sanitize import clean
from desk_rag.store.chats.records import ChatRow
from desk_rag.tui.conversation.keeper import Keeper
from desk_rag.tui.panels.value_input import ValueScreen
from desk_rag.tui.widgets.line_input import LineInput
from desk_rag.tui.wording import count, safe

_HINT = "Enter opens · Ctrl+T renames · Delete deletes · Esc goes back"
_MOST_OF_TITLE = 40
"""Characters of a chat's title in a sentence that must stay on one line of a narrow terminal."""


class ChatsScreen(ModalScreen[int]):
    """Screen of the saved chats; returns the number of the chosen one, None after Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+r", "dismiss", "Close", priority=True),
        Binding("down", "move(1)", "Next", show=False, priority=True),
        Binding("up", "move(-1)", "Previous", show=False, priority=True),
        Binding("ctrl+t", "rename", "Rename", priority=True),
        Binding("delete", "delete", "Delete", priority=True),
    ]

    def __init__(self, keeper: Keeper) -> None:
        super().__init__()
        self._keeper = keeper
        self._rows: Sequence[ChatRow] = ()
        self._to_delete: int | None = None
        self._looking = self._choose_when_there = False

    def compose(self) -> ComposeResult:
        with Vertical(id="chats"):
            yield Static(Content.styled("Saved chats", "bold"), markup=False)
            yield LineInput("chat-words", "words in questions, answers, quotes and file names", submits=True)
            yield OptionList(id="chat-rows", markup=False, compact=True)
            yield Static(Content.styled(_HINT, "$foreground 60%"), id="chats-hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self.set_focus(self.query_one(LineInput))
        self.look("")

    def on_input_changed(self, message: Input.Changed) -> None:
        """Search while the user types."""
        self._choose_when_there = False
        self.look(clean(message.value, single_line=True))

    def look(self, words: str) -> None:
        """Find the chats and show them."""
        self._looking = True
        self.find(words)

    @work(thread=True, exclusive=True, group="chats", exit_on_error=False)
    def find(self, words: str) -> None:
        """Find the chats with these words, in a thread."""
        try:
            rows = self._keeper.rows(words)
        except DeskRagError as error:
            self.app.call_from_thread(self._cannot_look, error.message)
            return
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show, rows, words)

    def action_move(self, step: int) -> None:
        """Mark the next or previous chat."""
        self._to_delete = None
        rows = self.query_one(OptionList)
        if self._rows:
            rows.highlighted = min(max((rows.highlighted or 0) + step, 0), len(self._rows) - 1)

    def on_input_submitted(self) -> None:
        """Open the marked chat, among those that contain the words typed so far."""
        self.choose()

    def choose(self) -> None:
        """Return the marked chat; while the list is being read, as soon as it is there."""
        self._choose_when_there = self._looking
        if not self._looking and (row := self._current):
            self.dismiss(row.chat_id)

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        """Open the clicked chat."""
        message.stop()
        self.choose()

    def action_rename(self) -> None:
        """Ask for another title of the marked chat."""
        row = self._current
        if row is None:
            return
        self._to_delete = None
        about = f"{count(row.num_turns, 'turn')}, last changed {_when(row)}"
        hint = "Enter takes it; Esc leaves it as it is."
        self.app.push_screen(ValueScreen("Title of the chat", about, row.title, hint=hint), partial(self._retitle, row))

    def _retitle(self, row: ChatRow, title: str | None) -> None:
        plain = clean(title or "", single_line=True).strip()
        if plain and plain != row.title:
            self.rename_chat(row, plain)

    @work(thread=True, group="chats", exit_on_error=False)
    def rename_chat(self, row: ChatRow, title: str) -> None:
        """Give a chat another title and show it."""
        try:
            self._keeper.rename(row.chat_id, title)
        except DeskRagError as error:
            self.app.call_from_thread(self._say, error.message)
            return
        self.app.call_from_thread(self._look_again)

    def action_delete(self) -> None:
        """Delete the marked chat when pressed twice."""
        row = self._current
        if row is None:
            return
        if self._to_delete != row.chat_id:
            self._to_delete = row.chat_id
            self._say(f"Press Delete again to delete “{_short(row.title)}”.")
            return
        self._to_delete = None
        self.remove_chat(row)

    @work(thread=True, group="chats", exit_on_error=False)
    def remove_chat(self, row: ChatRow) -> None:
        """Delete a chat and show the others."""
        try:
            self._keeper.delete(row.chat_id)
            said = f"“{_short(row.title)}” is deleted."
        except DeskRagError as error:
            said = error.message
        self.app.call_from_thread(self._say, said)
        self.app.call_from_thread(self._look_again)

    @property
    def _current(self) -> ChatRow | None:
        marked = self.query_one(OptionList).highlighted
        return self._rows[marked] if marked is not None and marked < len(self._rows) else None

    def _look_again(self) -> None:
        self.look(self.query_one(Input).value)

    def _cannot_look(self, message: str) -> None:
        self._looking = self._choose_when_there = False
        self._say(message)

    def _show(self, rows: Sequence[ChatRow], words: str) -> None:
        self._rows, self._looking = rows, False
        shown = self.query_one(OptionList)
        shown.clear_options()
        shown.add_options([Option(_line(row)) for row in rows])
        shown.highlighted = 0 if rows else None
        if not rows:
            self._say("No chat contains these words." if words.strip() else "There are no saved chats yet.")
        elif self._choose_when_there:
            self.choose()
        elif self._to_delete is None:
            self.call_after_refresh(partial(self._say, _HINT))

    def _say(self, text: str) -> None:
        self.query_one("#chats-hint", Static).update(safe(text, "$foreground 60%", single_line=True))


def _short(title: str) -> str:
    return title if len(title) <= _MOST_OF_TITLE else f"{title[: _MOST_OF_TITLE - 1].rstrip()}…"


def _when(row: ChatRow) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(row.changed_at))


def _line(row: ChatRow) -> Content:
    head = f"{_when(row)}  {count(row.num_turns, 'turn'):<8}  "
    lines = [Content.assemble((head, "$foreground 65%"), safe(row.title, single_line=True, most=120))]
    if row.excerpt and row.excerpt != row.title:
        lines.append(Content.assemble(" " * len(head), safe(row.excerpt, "$foreground 65%", single_line=True)))
    return Content("\n").join(lines)
