"""Run the UI: draw the screen first, start the backend in a thread, turn its events into messages.

Slow work runs in thread workers that touch no widget: they post messages, and the screen's handlers own all state.
Nothing else may write to the terminal, so logging goes to a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on, work
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.message import Message
from textual.screen import Screen
from textual.worker import get_current_worker

from desk_rag.errors import DeskRagError, ModelError
from desk_rag.ingest.events import IndexEvent
from desk_rag.sanitize import home_path
from desk_rag.tui import messages as m
from desk_rag.tui.backend import Backend, Freshness, Status
from desk_rag.tui.keys.bindings import bound
from desk_rag.tui.keys.order import KeyOrder, KeysSettled
from desk_rag.tui.palette import turn_commands, with_key
from desk_rag.tui.panels.host import PanelHost
from desk_rag.tui.panels.registry import panel_bindings
from desk_rag.tui.screens.chat import ChatScreen
from desk_rag.tui.shutdown import leave_at_once, leave_unless_ended, new_loop, threads_ended
from desk_rag.tui.terminal.notices import LongWork, signal_of
from desk_rag.tui.turns.answering import Asking
from desk_rag.tui.widgets.question_input import QuestionInput

_LOG = logging.getLogger(__name__)
_STATUS_SECONDS = 1.0
_RESTING_SECONDS = 5.0
"""Seconds between two checks of an idle index; events are handled sooner."""
_SOONEST_SECONDS = 0.2
_TWICE_SECONDS = 2.0


class DeskRagApp(PanelHost):
    """The UI's application over one Backend."""

    TITLE = "desk-rag"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
    BINDINGS: ClassVar[list[BindingType]] = [
        bound("help", "help", "Help", show=True, priority=True),
        *panel_bindings(),
        bound("pause", "pause_or_resume", "Pause", show=True, priority=True),
        bound("undo", "undo", "Undo", priority=True),
        bound("jump", "jump", "Jump", priority=True),
        bound("quit", "quit", "Quit", show=True, priority=True),
        Binding("ctrl+c", "copy_or_quit", "Quit", show=False, priority=True),
    ]

    is_alone = False
    """True if the process runs nothing but this app."""
    terminal_attributes: list[Any] | None = None
    """Attributes of the terminal to restore in the end, if the first frame has changed them."""

    def __init__(self, backend: Backend, folders: Sequence[Path], log_file: Path | None = None) -> None:
        super().__init__(driver_class=_driver_class())
        self.backend = backend
        self._log_file = log_file
        self._folders = tuple(folders)
        self._chat = ChatScreen(folders)
        self._stop = threading.Event()
        self._in_haste = threading.Event()
        """True if the running answer must not wait for files."""
        self._leaving = threading.Event()
        self._look = threading.Event()
        """Set when the status has probably changed."""
        self._status = Status()
        self._status_told = False
        self._can_pause = False
        """True once the state of the index is known."""
        self._pressed_ctrl_c = float("-inf")
        self._long_work = LongWork()
        self._key_order = KeyOrder(self, self._deliver)

    def on_mount(self) -> None:
        self.use_ui_settings()
        self.push_screen(self._chat)
        self._main_loop = loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Textual installs none; without it the terminal stays in the alternate screen.
            loop.add_signal_handler(number, partial(self._leave, 128 + number))
        self.call_after_refresh(self.start if self._folders else self.look_for_folders)

    async def on_event(self, event: events.Event) -> None:
        """Deliver an event; keys and pastes wait for what was typed before them."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            await self._key_order.take(event)
        else:
            await super().on_event(event)

    async def _deliver(self, event: events.Event) -> None:
        """Deliver a key or a paste; what is typed anywhere on the chat screen goes to the prompt."""
        if self._chat.is_current:
            self._chat.take_input(event)
        await super().on_event(event)

    async def on_keys_settled(self, message: KeysSettled) -> None:
        """Forward the next of the waiting keys."""
        await self._key_order.settled(message)

    def on_unmount(self) -> None:
        self._end_workers()

    def terminal_gone(self) -> None:
        """Quit, because the terminal was closed. Called from the thread that reads it."""
        leave_unless_ended(128 + signal.SIGHUP, self.backend.stop)
        with contextlib.suppress(RuntimeError):  # the loop is closed when the app is quitting already
            self._main_loop.call_soon_threadsafe(self._leave, 128 + signal.SIGHUP)

    def _leave(self, code: int) -> None:
        self._end_workers()
        self.exit(return_code=code, result=code)

    def _end_workers(self) -> None:
        self._leaving.set()
        self._stop.set()
        self._look.set()

    def _tell(self, message: Message) -> None:
        if not self._leaving.is_set():
            self._chat.post_message(message)

    # Workers --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load everything heavy and begin."""
        self.tell_of_new_folders()
        self.start_backend()

    @work(thread=True, exclusive=True, group="start", exit_on_error=False)
    def start_backend(self) -> None:
        """Load everything heavy, then keep the status bar true until the app ends."""
        if not self._opens_backend():
            return
        while not self._leaving.is_set() and not get_current_worker().is_cancelled:
            if self.backend.has_ended() and not self._opens_backend():
                return
            self._look.clear()
            self._look_at_status()
            resting = self._status.freshness in (Freshness.WATCHING, Freshness.PAUSED)
            if self._look.wait(_RESTING_SECONDS if resting else _STATUS_SECONDS):
                self._leaving.wait(_SOONEST_SECONDS)

    def _opens_backend(self) -> bool:
        """Start the backend, and say how that went; return whether it can answer."""
        try:
            started = self.backend.start(self._report, self._listen)
        except Exception as error:
            if self._leaving.is_set():
                return False
            _LOG.exception("the backend did not start")
            self.failure = error if isinstance(error, DeskRagError) else DeskRagError(str(error))
            self._tell(m.BackendFailed(m.Problem.of(error), self.failure.exit_code == ModelError.exit_code))
            return False
        self._tell(m.BackendReady(started))
        return True

    def _look_at_status(self) -> None:
        try:
            status = self.backend.status()
        except Exception:
            _LOG.exception("no status")
            return
        if status != self._status or not self._status_told:
            self._status, self._status_told = status, True
            self._tell(m.StatusCame(status))

    def _report(self, text: str) -> None:
        self._tell(m.Loading(text))

    def _listen(self, event: IndexEvent) -> None:
        self._look.set()
        self._tell(m.IndexEventCame(event))

    @on(m.AnswerWanted)
    @on(m.ComparisonWanted)
    def _asked(self, message: m.AnswerWanted | m.ComparisonWanted) -> None:
        self._stop.clear()
        self._in_haste.clear()
        self._long_work.asked()
        self.ask_backend(message)

    @work(thread=True, exclusive=True, group="answer", exit_on_error=False)
    def ask_backend(self, wanted: m.AnswerWanted | m.ComparisonWanted) -> None:
        """Answer a question or compare both ways; posts AnswerOver last."""
        worker = get_current_worker()
        asking = Asking(
            self.backend,
            self._tell,
            stop=lambda: self._stop.is_set() or worker.is_cancelled,
            wait=lambda: not self._in_haste.is_set(),
        )
        if isinstance(wanted, m.AnswerWanted):
            asking.answer(wanted)
        else:
            asking.compare(wanted)

    @on(m.AnswerOver)
    def _answer_over(self, message: m.AnswerOver) -> None:
        self._signal(self._long_work.answered())
        if message.then is not None:
            self._long_work.asked()

    @on(m.IndexEventCame)
    def _index_event_came(self, message: m.IndexEventCame) -> None:
        self._signal(self._long_work.indexed(message.event))

    def _signal(self, notice: str) -> None:
        """Ring or show a notice outside the window, as the settings say."""
        written = signal_of(self.backend.session.settings.ui.notify, notice)
        if written and self._driver is not None:
            self._driver.write(written)

    @on(m.StatusCame)
    def _status_came(self) -> None:
        if not self._can_pause and self.screen_stack:  # no screen is left while the app quits
            self._can_pause = True
            self.refresh_bindings()

    @on(m.BackendReady)
    def _keep_what_is_loaded(self) -> None:
        """Have the garbage collector pass over what was loaded until now: looking through all of it holds up keys."""
        if self.is_alone:
            gc.freeze()

    @on(m.HasteWanted)
    def _haste_wanted(self) -> None:
        self._in_haste.set()

    @on(m.QuestionExpected)
    def _question_expected(self, message: m.QuestionExpected) -> None:
        self.prefetch(message.question)

    @work(thread=True, group="prefetch", exit_on_error=False)
    def prefetch(self, question: str) -> None:
        """Have the backend prefetch for the next question; a failure only makes that one slower."""
        try:
            self.backend.prefetch(question)
        except Exception:
            _LOG.exception("nothing was fetched ahead")

    @on(m.StopWanted)
    def _stop_wanted(self) -> None:
        self._stop.set()

    @on(m.DocumentWanted)
    def _document_wanted(self, message: m.DocumentWanted) -> None:
        self.fetch_document(message.path)

    @work(thread=True, exclusive=True, group="document", exit_on_error=False)
    def fetch_document(self, path: Path) -> None:
        """Get the chunks around a source. Without them the preview still shows the source itself."""
        try:
            self._tell(m.DocumentCame(path, self.backend.document(path)))
        except Exception:
            _LOG.exception("no neighbours for the preview")

    # Actions --------------------------------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield every action by name, so that no key is the only way."""
        if screen is self._chat:
            yield from turn_commands(self._chat, self.keymap)
        yield self._command("Pause or resume indexing", "For an hour", "pause", self.action_pause_or_resume)
        if self.backend.session.undo is not None:
            yield self._command("Undo", "The last change made in the library", "undo", self.action_undo)
        yield self._command("Jump", "To a pane, an answer or a source, by a letter", "jump", self.action_jump)
        title = "Remove or keep files that are gone"  # the words of the status line
        yield SystemCommand(title, "In the index; you are asked", self.action_decide_gone)
        yield from self.panel_commands()
        about = f"Colours; your own are files in {home_path(self._themes_folder)}"
        yield SystemCommand("Change the theme", about, self.action_change_theme)
        yield self._command("Help", "Keys and signs", "help", self.action_help)
        yield self._command("Quit", "Leave desk-rag", "quit", self.action_quit)

    def _command(self, title: str, text: str, key: str, run: Callable[[], object]) -> SystemCommand:
        return SystemCommand(title, with_key(text, self.keymap, key), run)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable the pause once there is something to pause."""
        return self._can_pause if action == "pause_or_resume" else super().check_action(action, parameters)

    def action_help(self) -> None:
        """Show keys and signs, or close them."""
        from desk_rag.tui.screens.help import HelpScreen

        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
        else:
            self.push_screen(HelpScreen(self.keymap, self._log_file, *self.help_here()))

    def action_copy_or_quit(self) -> None:
        """Copy what is selected; else clear the prompt; else quit when pressed twice."""
        prompt = self._chat.query_one(QuestionInput)
        selected = self.screen.get_selected_text() or prompt.selected_text
        now = asyncio.get_running_loop().time()
        if selected:
            self.copy_to_clipboard(selected)
        elif prompt.text:
            prompt.clear()
        elif now - self._pressed_ctrl_c < _TWICE_SECONDS:
            self.exit(0)
        else:
            self._pressed_ctrl_c = now
            self.notify("Press Ctrl+C again to quit.", timeout=_TWICE_SECONDS, markup=False)


def _driver_class() -> type[Driver] | None:
    """Return our driver for Unix terminals; None where Textual chooses one."""
    if sys.platform == "win32":
        return None
    from desk_rag.tui.terminal.driver import TerminalDriver

    return TerminalDriver


def run_with(
    backend: Backend, folders: Sequence[Path], log_file: Path | None = None, attributes: list[Any] | None = None
) -> int:
    """Open the UI on any backend; it is stopped however the UI ends. `attributes` are restored to the terminal."""
    app = DeskRagApp(backend, [folder.absolute() for folder in folders], log_file)
    app.terminal_attributes, app.is_alone = attributes, True
    loop = new_loop()
    try:
        app.run(loop=loop)
    finally:
        loop.close()
        ended = threads_ended()
        ended = backend.stop() and ended
    code = app.return_code or (app.failure.exit_code if app.failure else 0)
    if not ended:
        leave_at_once(code)
    return code
