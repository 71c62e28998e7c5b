"""Conversations on the chat screen: new, saved, searched, exported, and '@' names in the prompt."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import SuspendNotSupported
from textual.binding import BindingType
from textual.notifications import SeverityLevel
from textual.widgets import Input, TextArea

from desk_rag.answering.conversation.turns import Turn, turn_of
from desk_rag.answering.events import Answer
from desk_rag.errors import DeskRagError
from desk_rag.sanitize import home_path
from desk_rag.tui import messages as m
from desk_rag.tui.conversation import names, prompt_commands
from desk_rag.tui.conversation.find_bar import FindBar
from desk_rag.tui.conversation.name_picker import MOST, NamePicker
from desk_rag.tui.keys.bindings import bound
from desk_rag.tui.keys.keymap import KeyMap
from desk_rag.tui.opener import edit, editor_for_text
from desk_rag.tui.screens.turn.menu import TurnMenu
from desk_rag.tui.screens.turn_screen import TurnScreen
from desk_rag.tui.turns.actions import TURN_ACTIONS
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.index_status import IndexStatus
from desk_rag.tui.widgets.question_input import QuestionInput
from desk_rag.tui.widgets.transcript import Transcript
from desk_rag.tui.wording import count, reading_seconds, safe

if TYPE_CHECKING:
    from desk_rag.answering.conversation.scope import Names
    from desk_rag.store.chats.records import SavedChat
    from desk_rag.tui.backend import Backend

_MOST_EARLIER = 8


class ConversationScreen(TurnScreen):
    """Base of the chat screen. Whatever may wait for the disk runs in thread workers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("new_chat", "new_chat", "New chat", priority=True),
        bound("chats", "chats", "Chats", show=True, priority=True),
        bound("find", "find", "Find", priority=True),
        bound("export", "export", "Export"),
        bound("edit_searched", "edit_searched", "Edit as searched"),
        bound("write", "write", "Write in your editor"),
    ]

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__(folders)
        self._names: Names | None = None
        self._looking_for_names = False

    @property
    def _backend(self) -> Backend:
        backend: Backend = self.app.backend  # type: ignore[attr-defined]
        return backend

    @property
    def _keymap(self) -> KeyMap:
        keymap: KeyMap = self.app.keymap  # type: ignore[attr-defined]
        return keymap

    @property
    def _views(self) -> list[AnswerView]:
        return list(self.query(AnswerView))

    def _is_busy(self) -> bool:
        return any(not view.over for view in self._views)

    def _earlier(self, view: AnswerView) -> tuple[Turn, ...]:
        """Return the finished turns above `view`, which its question may lean on."""
        turns = []
        for other in self._views:
            if other is view:
                break
            if other.answer is not None and not other.answer.is_search:
                turns.append(turn_of(other.answer))
        return tuple(turns[-_MOST_EARLIER:])

    def _in_thread(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; an error is shown."""

        def run() -> None:
            try:
                work()
            except DeskRagError as error:
                self.app.call_from_thread(self._say, f"{error.message} {error.remedy}".strip(), "warning")

        self.run_worker(run, thread=True, group="conversation", exit_on_error=False)

    def _say(self, text: str, severity: str = "information") -> None:
        said = safe(text, single_line=True, most=300).plain
        kind: SeverityLevel = "warning" if severity == "warning" else "information"
        self.notify(said, severity=kind, timeout=reading_seconds(said), markup=False)

    # Saved chats --------------------------------------------------------------------------------------------------

    @on(m.BackendReady)
    def _load_history(self) -> None:
        """Bring back the questions of saved chats for Up and Down in the prompt."""

        def load() -> None:
            questions = self._backend.keeper.questions()
            self.app.call_from_thread(self.query_one(QuestionInput).load_history, questions)

        self._in_thread(load)

    @on(m.AnswerOver)
    def _say_notice(self) -> None:
        """Say what went wrong with saving."""
        keeper = self._backend.keeper
        if keeper.notice:
            self._say(keeper.notice, "warning")
            keeper.notice = ""

    @on(QuestionInput.Commanded)
    async def _obey(self, message: QuestionInput.Commanded) -> None:
        """Do what a command in the prompt means, and say which key does it."""
        self._say(prompt_commands.explained(message.text, self._keymap.shown(message.key)))
        await self.run_action(message.action)

    async def action_new_chat(self, private: bool = False) -> None:
        """Begin a new conversation; the saved one can be opened again."""
        if self._is_busy():
            self._say("Esc first stops the answer, or withdraws the question that waits.")
            return
        await self._clear()
        self._backend.keeper.begin(private=private)
        self._show_private(private)
        self.query_one(QuestionInput).focus()
        self._say("Private chat: nothing of it is saved." if private else "New chat.")

    def _show_private(self, private: bool) -> None:
        self.set_class(private, "-private")
        self.query_one(IndexStatus).private(private)

    def action_chats(self) -> None:
        """List the saved chats."""
        from desk_rag.tui.conversation.chats_screen import ChatsScreen

        self.app.push_screen(ChatsScreen(self._backend.keeper), self._open_chat)

    def _open_chat(self, chat_id: int | None) -> None:
        if chat_id is None:
            return
        if self._is_busy():
            self._say("Esc first stops the answer, or withdraws the question that waits.")
            return

        def load() -> None:
            from desk_rag.tui.conversation.replay import answer_of

            chat = self._backend.keeper.chat(chat_id)
            answers = [answer_of(turn, self._backend.change_of) for turn in chat.turns]
            self.app.call_from_thread(partial(self.call_later, self._show_chat, chat, answers))

        self._in_thread(load)

    async def _show_chat(self, chat: SavedChat, answers: Sequence[Answer]) -> None:
        await self._clear()
        views = []
        for answer in answers:
            view = await self._add_turn(answer.question)
            view.replay(answer)
            views.append(view)
        self._backend.keeper.resume(chat, [view.turn for view in views])
        self._show_private(False)
        if views:
            self.query_one(Transcript).select(views[-1])
        self.query_one(QuestionInput).focus()

    async def _add_turn(self, question: str) -> AnswerView:
        """Append a turn to the transcript."""
        raise AssertionError("the chat screen does this")

    async def _clear(self) -> None:
        """Empty the transcript."""
        raise AssertionError("the chat screen does this")

    def action_export(self) -> None:
        """Ask for a file name and write the conversation there, as Markdown or JSON."""
        from desk_rag.tui.conversation import exporting
        from desk_rag.tui.conversation.export_screen import ExportScreen

        answers = [view.answer for view in self._views if view.answer is not None]
        title = ""
        with suppress(DeskRagError):  # the file is named after the first question then
            title = self._backend.keeper.title()
        chat = exporting.chat_of(answers, title)
        if not chat.turns:
            self._say("There is nothing to export yet: no question of this chat has been answered.")
            return

        def written(path: Path | None) -> None:
            if path is not None:
                self._say(f"Written to {home_path(path)}.")

        write = partial(exporting.write, chat, change_of=self._backend.change_of)
        self.app.push_screen(ExportScreen(exporting.proposed_path(chat), write), written)

    def action_turn_menu(self) -> None:
        """Offer what can be done with the selected turn."""
        if view := self._selected:
            possible = [one for one in TURN_ACTIONS if self.check_action(one.name, ())]
            self.app.push_screen(TurnMenu(view.question, possible, self._keymap), self._chosen)

    async def _chosen(self, name: str | None) -> None:
        if name is not None:
            await self.run_action(name)

    async def on_transcript_withdraw_wanted(self) -> None:
        await self.run_action("withdraw")

    def on_transcript_menu_wanted(self) -> None:
        self.action_turn_menu()

    def action_edit_searched(self) -> None:
        """Put what was searched into the prompt: the question as it was completed and limited."""
        if view := self._selected:
            self._offer(view.searched)

    def _offer(self, question: str) -> None:
        """Put a question into the prompt to be edited, unless something is being written there."""
        prompt = self.query_one(QuestionInput)
        if not prompt.offer(question):
            self._say("The prompt holds other text. Ctrl+C clears it; then try again.")
        prompt.focus()

    def action_edit(self) -> None:
        """Put the selected question into the prompt."""
        if view := self._selected:
            self._offer(view.question)
            self.action_back()

    def action_back(self) -> None:
        """Leave the sources tab and go back to the prompt."""
        self._show_pane("tab-chat")
        self.query_one(QuestionInput).focus()

    def action_write(self) -> None:
        """Hand the prompt's text to the user's editor, and take back what was written."""
        prompt = self.query_one(QuestionInput)
        try:
            editor = editor_for_text(os.environ)
            with self.app.suspend():
                written = edit(prompt.text, editor)
        except (DeskRagError, SuspendNotSupported, ValueError) as error:
            self._say(f"{error.message} {error.remedy}" if isinstance(error, DeskRagError) else str(error), "warning")
            return
        prompt.clear()
        prompt.offer(written)
        prompt.focus()

    # Search in the transcript -------------------------------------------------------------------------------------

    def action_find(self) -> None:
        """Search in the transcript."""
        bar = self.query_one(FindBar)
        bar.display = True
        self.set_focus(bar.query_one(Input))  # at once, so that the next letter arrives there

    def on_find_bar_closed(self) -> None:
        """Go back to the prompt."""
        self.query_one(QuestionInput).focus()

    def on_find_bar_wanted(self, message: FindBar.Wanted) -> None:
        """Select the nearest turn with the text, or the next or previous one."""
        wanted = message.text.casefold().strip()
        matches = [view for view in self._views if wanted and wanted in view.plain_text.casefold()]
        bar = self.query_one(FindBar)
        if not matches:
            bar.tell("not found" if wanted else "")
            return
        selected = self._selected
        place = matches.index(selected) if selected in matches else len(matches) - 1
        if message.step and selected in matches:
            place = (place + message.step) % len(matches)
        transcript = self.query_one(Transcript)
        transcript.select(matches[place])
        transcript.read_from_its_beginning(matches[place])  # the pane of its sources may open, and wrap its lines anew
        bar.tell(f"{place + 1} of {count(len(matches), 'turn')}")

    # '@' names in the prompt --------------------------------------------------------------------------------------

    def on_text_area_changed(self, message: TextArea.Changed) -> None:
        """Offer folders and files while a name is being written."""
        self._offer_names()

    def on_question_input_picked(self, message: QuestionInput.Picked) -> None:
        """Move in the picker, take what it marks, or close it; a name that is typed in full is asked about."""
        picker = self.query_one(NamePicker)
        if message.key in ("up", "down"):
            picker.move(-1 if message.key == "up" else 1)
            return
        choice = picker.current
        picker.show(())
        prompt = self.query_one(QuestionInput)
        prompt.picking = False
        if choice is not None and message.key != "escape":
            row, column = prompt.cursor_location
            line = prompt.document.get_line(row)[:column]
            begun = names.begun(line)
            if begun is not None and message.key == "enter" and line[begun.start :] == choice.token:
                prompt.action_submit()
            elif begun is not None:
                prompt.replace(f"{choice.token} ", (row, begun.start), (row, column))

    def _offer_names(self) -> None:
        prompt, picker = self.query_one(QuestionInput), self.query_one(NamePicker)
        row, column = prompt.cursor_location
        begun = names.begun(prompt.document.get_line(row)[:column])
        if begun is None:
            self._names = None  # read anew for the next name: files come and go
            choices: Sequence[names.Choice] = ()
        elif self._names is None:
            self._look_for_names()
            return
        else:
            choices = names.matching(begun.name, self._names, self._folders, MOST)
        prompt.picking = bool(choices)
        picker.show(choices)

    def _look_for_names(self) -> None:
        if self._looking_for_names:
            return
        self._looking_for_names = True

        def look() -> None:
            try:
                known = self._backend.names()
                self.app.call_from_thread(self._names_came, known)
            finally:
                self._looking_for_names = False

        self._in_thread(look)

    def _names_came(self, known: Names) -> None:
        self._names = known
        self._offer_names()
