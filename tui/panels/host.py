"""Part of the app that controls the indexing, opens the screens beside the chat, and starts a first run."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from textual import on, work
from textual.app import SystemCommand
from textual.binding import Binding
from textual.filter import LineFilter
from textual.theme import Theme

from desk_rag.errors import DeskRagError
from desk_rag.tui import messages as m
from desk_rag.tui.backend import Backend, Freshness, Status
from desk_rag.tui.keys.keymap import KeyMap, checked
from desk_rag.tui.panels.choice import Choice, ChoiceScreen
from desk_rag.tui.panels.registry import PANELS, panel_commands
from desk_rag.tui.screens.chat import ChatScreen
from desk_rag.tui.source_opening import SourceOpening
from desk_rag.tui.terminal.locale import wants_ascii
from desk_rag.tui.terminal.plain import AsciiFilter
from desk_rag.tui.themes import DARK, LIGHT, own_themes, themes_folder
from desk_rag.tui.widgets.line_input import leave_to_app
from desk_rag.tui.widgets.question_input import QuestionInput
from desk_rag.tui.wording import count, safe

_LOG = logging.getLogger(__name__)
_PAUSE_SECONDS = 3600.0
_MOST_LOOK_SECONDS = 10.0
_NOTICE_SECONDS = 15.0


class PanelHost(SourceOpening):
    """Base of the app, which sets the attributes."""

    backend: Backend
    remembers = False
    """True if a chosen theme is kept for the next run."""
    failure: DeskRagError | None = None
    """Error that kept the backend from starting; its exit code becomes the program's."""
    _plain: AsciiFilter | None = None
    keymap = KeyMap()
    """The keys in use."""
    _chat: ChatScreen
    _folders: tuple[Path, ...]
    _status: Status

    @property
    def status(self) -> Status:
        """The last status of the index."""
        return self._status

    def start(self) -> None:
        """Import the heavy modules and start the backend."""

    def start_backend(self) -> object:
        """Load everything heavy, then keep the status bar true until the app ends."""

    def _look_at_status(self) -> None:
        """Show the state of the index as it is now."""

    def on_pause_wanted(self, message: m.PauseWanted) -> None:
        self.set_pause(message.seconds)

    def use_ui_settings(self) -> None:
        """Take theme and signs from the settings, and write a theme that is chosen later to their file."""
        session = self.backend.session
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self._read_themes()
        if session.settings.ui.ascii or wants_ascii(os.environ):
            self._plain = AsciiFilter()
        self.use_keys()
        wanted = session.settings.ui.theme
        if wanted in self.available_themes:
            self.theme = wanted
        else:
            self.theme = DARK.name
            self._warn(f"There is no theme '{wanted}' (theme under [ui]). Ctrl+P, Change the theme, lists all.")
        if self.remembers:
            self.theme_changed_signal.subscribe(self, self._theme_chosen)

    def _read_themes(self) -> None:
        """Add the themes that the user's files define, and say which files cannot be used."""
        themes, faults = own_themes(self._themes_folder)
        for theme in themes:
            self.register_theme(theme)
        for fault in faults:
            self._warn(fault)

    @property
    def _themes_folder(self) -> Path:
        return themes_folder(self.backend.session.file.path)

    def _warn(self, sentence: str) -> None:
        said = safe(sentence, single_line=True, most=600).plain
        self.notify(said, severity="warning", timeout=_NOTICE_SECONDS, markup=False)

    def action_change_theme(self) -> None:
        """List the themes, the user's files as they are now."""
        self._read_themes()
        if self.theme not in (DARK.name, LIGHT.name):
            self.refresh_css()  # the file of the theme in use may have changed
        super().action_change_theme()

    def use_keys(self) -> None:
        """Take the keys from the settings, where they were checked."""
        self.keymap = checked(self.backend.session.settings.ui.keys)
        self.set_keymap(dict(self.keymap.chosen))
        if self._chat.is_mounted:
            leave_to_app(self._chat.query_one(QuestionInput))

    def _theme_chosen(self, theme: Theme) -> None:
        if theme.name != self.backend.session.settings.ui.theme:
            self.keep_theme(theme.name)

    @work(thread=True, exclusive=True, group="theme", exit_on_error=False)
    def keep_theme(self, name: str) -> None:
        """Write the theme to the settings file; without that it lasts as long as this run."""
        session = self.backend.session
        try:
            ui = session.file.write({("ui", "theme"): name}).ui
            session.settings = session.settings.model_copy(update={"ui": ui})
        except Exception as error:
            _LOG.exception("the theme cannot be kept")
            self.call_from_thread(self.complain, error)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters, and ours where only ASCII may be drawn."""
        filters = super().get_line_filters()
        return filters if self._plain is None else [*filters, self._plain]

    def get_key_display(self, binding: Binding) -> str:
        """Return the name of a key for the footer; the sign for Enter has no likeness in ASCII."""
        is_enter = binding.key == "enter" and not binding.key_display
        return "enter" if is_enter and self._plain is not None else super().get_key_display(binding)

    def panel_commands(self) -> Iterator[SystemCommand]:
        """Yield the entries of the command palette about these screens."""
        yield from panel_commands(self.action_panel, self.keymap)
        if not self._folders:
            yield SystemCommand("Choose a folder", "Look at it first, then index it", self.action_first_run)

    def help_here(self) -> tuple[str, Sequence[tuple[str, str]]]:
        """Return what has the focus, and its keys."""
        from desk_rag.tui.panels.base import PanelScreen
        from desk_rag.tui.screens.help import HERE

        if isinstance(self.screen, PanelScreen):
            return self.screen.NAME, self.screen.KEYS
        return HERE.get((self.focused.id or "") if self.focused is not None else "", ("", ()))

    def action_panel(self, name: str) -> None:
        """Open a screen beside the chat, in place of another one that is open."""
        from desk_rag.tui.panels.base import PanelScreen

        panel = PANELS[name].load(name)
        if isinstance(self.screen, panel):
            self.screen.dismiss()
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

    @work(thread=True, exclusive=True, group="new-folders", exit_on_error=False)
    def tell_of_new_folders(self) -> None:
        """Say in one sentence what will be read of new folders; questions can already be asked."""
        from desk_rag.tui.management.first_run import FirstRun

        until = time.monotonic() + _MOST_LOOK_SECONDS
        try:
            for sentence in FirstRun(self.backend.session).new_folders(lambda: time.monotonic() > until):
                key = self.keymap.shown("library")
                said = safe(f"{sentence} {key} shows every file.", single_line=True, most=600).plain
                self.call_from_thread(self.notify, said, timeout=_NOTICE_SECONDS, markup=False)
        except Exception:
            _LOG.exception("new folders cannot be looked through")

    @on(m.FolderWanted)
    def action_first_run(self) -> None:
        """Ask for a folder, and start with the chosen one."""
        from desk_rag.tui.panels.first_run import FirstRunScreen

        self.push_screen(FirstRunScreen(self.backend.session), self._chose)

    def on_start_wanted(self) -> None:
        """Start again, if the backend did not start."""
        if self.failure is not None:
            self.failure = None
            self._chat.try_again()
            self.start()

    def _chose(self, _: object) -> None:
        folders = self.backend.session.folders
        if folders:
            self._folders = folders
            self._chat = ChatScreen(folders)
            self.switch_screen(self._chat)
            self.call_after_refresh(self.start_backend)
        elif not self.backend.session.indexing:
            self._chat.without_folder()

    # Jump and undo ----------------------------------------------------------------------------------------------

    def action_jump(self) -> None:
        """Show a letter at every place of this screen that can be gone to."""
        from desk_rag.tui.keys.jump import JumpScreen

        places = getattr(self.screen, "jump_targets", None)
        if places is not None:
            self.push_screen(JumpScreen(places()), lambda target: target.go() if target is not None else None)

    def action_undo(self) -> None:
        """Take back the last change made in the library."""
        session = self.backend.session
        undo, session.undo = session.undo, None
        if undo is None:
            self.notify(
                "There is nothing to undo: no change was made in the library since this start. An earlier exclusion "
                "ends with “Read it from now on” there.",
                markup=False,
            )
        else:
            self.take_back(undo)

    @work(thread=True, exclusive=True, group="undo", exit_on_error=False)
    def take_back(self, undo: Callable[[], str]) -> None:
        """Undo a change, say so, and have the screen read its data again."""
        try:
            said = safe(undo(), single_line=True, most=400).plain
        except Exception as error:
            _LOG.exception("a change cannot be taken back")
            self.backend.session.undo = undo
            self.call_from_thread(self.complain, error)
            return
        self.call_from_thread(self.notify, said, markup=False)
        self.screen.post_message(m.Undone())
        self.call_from_thread(self.refresh_bindings)

    # Indexing ---------------------------------------------------------------------------------------------------

    @work(thread=True, exclusive=True, group="pause", exit_on_error=False)
    def set_pause(self, seconds: float | None) -> None:
        """Pause or resume background work and show it at once."""
        try:
            self.backend.pause(seconds)
            self._look_at_status()
        except Exception as error:
            _LOG.exception("no pause")
            self.call_from_thread(self.complain, error)

    @work(thread=True, exclusive=True, group="deletions", exit_on_error=False)
    def decide_deletions(self, *, keep: bool) -> None:
        """Keep or remove the documents whose files are gone, and say how many there are."""
        try:
            number = self.backend.decide_deletions(keep=keep)
            done = "kept in the index" if keep else "on the way out of the index"
            said = f"{count(number, 'document')} {done}." if number else "No documents are kept whose files are gone."
            self.call_from_thread(self.notify, said, markup=False)
            self._look_at_status()
        except Exception as error:
            _LOG.exception("no decision")
            self.call_from_thread(self.complain, error)

    def action_decide_gone(self) -> None:
        """Ask whether documents whose files are gone leave the index now or stay in it."""

        def answered(name: str | None) -> None:
            if name is not None:
                self.decide_deletions(keep=name == "keep")

        key = self.keymap.shown("library")
        text = f"As long as they are kept, answers quote them and say that the files are gone. {key} lists them."
        remove = Choice("remove", "r", "Remove them from the index now")
        choices = (Choice("keep", "k", "Keep them in the index"), remove)
        self.push_screen(ChoiceScreen("Files that are gone", text, choices), answered)

    def action_pause_or_resume(self) -> None:
        """Pause background work for an hour, or let it go on."""
        self.set_pause(None if self._status.freshness is Freshness.PAUSED else _PAUSE_SECONDS)
