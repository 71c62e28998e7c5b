"""Open the UI of the command line: its engine is launched first, and loads while Textual is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from desk_rag.store.layout import Layout
from desk_rag.tui.keys.keymap import checked
from desk_rag.tui.live_backend import LiveBackend
from desk_rag.tui.logfile import log_to_file
from desk_rag.tui.shutdown import leave_at_once

if TYPE_CHECKING:
    from desk_rag.tui.management.session import Session
    from desk_rag.tui.terminal.first_frame import FirstFrame


def run(session: Session, frame: FirstFrame | None = None) -> NoReturn:
    """Open the UI in place of its first frame; exits with 0, 143/129 after a signal, or the code of a failed start."""
    place = session.settings.data_dir
    Layout(place).check_owner()  # before the log file is made there
    checked(session.settings.ui.keys)
    backend = LiveBackend(session)
    backend.launch()
    from desk_rag.tui.app import DeskRagApp, run_with

    DeskRagApp.remembers = True
    before = None if frame is None else frame.before
    code = run_with(backend, session.folders, log_to_file(place / "logs"), before)
    leave_at_once(code)  # unloading the libraries would take longer than all else
