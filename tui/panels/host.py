"""The part of the app that directs the indexing, opens the screens beside the chat, and begins with a first run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from textual import work
from textual.app import App, SystemCommand

from desk_rag.tui import messages as m
from desk_rag.tui.backend import Backend, Freshness, Status
from desk_rag.tui.panels.registry import PANELS, panel_commands
from desk_rag.tui.screens.chat import ChatScreen
from desk_rag.tui.wording import count

_LOG = logging.getLogger(__name__)
_PAUSE_SECONDS = 3600.0


class PanelHost(App[int]):
    """Base of the app, which sets the attributes."""

    backend: Backend
    _chat: ChatScreen
    _folders: tuple[Path, ...]
    _status: Status

    @property
    def status(self) -> Status:
        """The last look at the index."""
        return self._status

    def start(self) -> None:
        """Load everything heavy and begin."""

    def _look_at_status(self) -> None:
        """Show the state of the index as it is now."""

    def _complain(self, error: Exception) -> None:
        """Show what went wrong."""

    def on_pause_wanted(self, message: m.PauseWanted) -> None:
        self.set_pause(message.seconds)

    def panel_commands(self) -> Iterator[SystemCommand]:
        """Yield the entries of the command palette about these screens."""
        yield from panel_commands(self.action_panel)
        if not self._folders:
            yield SystemCommand("Choose a folder", "Look at it first, then index it", self.action_first_run)

    def action_panel(self, name: str) -> None:
        """Open a screen beside the chat, in place of another one that is open."""
        from desk_rag.tui.panels.base import PanelScreen

        panel = PANELS[name].load(name)
        if isinstance(self.screen, panel):
            self.screen.action_close()
        elif isinstance(self.screen, PanelScreen):
            self.switch_screen(panel(self.backend.session))
        elif self.screen is self._chat:
            self.push_screen(panel(self.backend.session))

    @work(thread=True, exclusive=True, group="start", exit_on_error=False)
    def look_for_folders(self) -> None:
        """Start, or ask for a folder first if none is known."""
        from desk_rag.tui.management.first_run import FirstRun

        try:
            is_due = FirstRun(self.backend.session).is_due()
        except Exception:
            _LOG.exception("the index cannot be looked into")
            is_due = False  # the start says what is wrong with it
        self.call_from_thread(self.action_first_run if is_due else self.start)

    def action_first_run(self) -> None:
        """Ask for a folder; start with it once it is chosen."""
        from desk_rag.tui.panels.first_run import FirstRunScreen

        self.push_screen(FirstRunScreen(self.backend.session), self._chose)

    def _chose(self, _: object) -> None:
        folders = self.backend.session.folders
        if folders:
            self._folders = folders
            self._chat = ChatScreen(folders)
            self.switch_screen(self._chat)
            self.call_after_refresh(self.start)

    # Indexing ---------------------------------------------------------------------------------------------------

    @work(thread=True, exclusive=True, group="pause", exit_on_error=False)
    def set_pause(self, seconds: float | None) -> None:
        """Pause or resume background work and show it at once."""
        try:
            self.backend.pause(seconds)
            self._look_at_status()
        except Exception as error:
            _LOG.exception("no pause")
            self.call_from_thread(self._complain, error)

    @work(thread=True, exclusive=True, group="deletions", exit_on_error=False)
    def decide_deletions(self, *, keep: bool) -> None:
        """Keep or remove the documents whose files are gone, and say how many there are."""
        try:
            number = self.backend.decide_deletions(keep=keep)
            done = "kept in the index" if keep else "on the way out of the index"
            told = f"{count(number, 'document')} {done}." if number else "No documents are kept whose files are gone."
            self.call_from_thread(self.notify, told, markup=False)
            self._look_at_status()
        except Exception as error:
            _LOG.exception("no decision")
            self.call_from_thread(self._complain, error)

    def action_pause_or_resume(self) -> None:
        """Pause background work for an hour, or let it go on."""
        self.set_pause(None if self._status.freshness is Freshness.PAUSED else _PAUSE_SECONDS)
