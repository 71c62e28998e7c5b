"""Textual's driver for Unix terminals, which also ends when the terminal does.

Textual's own input thread spins at the end of its input, and its output blocks the screen once a write has failed.
"""

from __future__ import annotations

import os
import selectors
from codecs import getincrementaldecoder
from typing import IO, TYPE_CHECKING, Any, cast

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from desk_rag.tui.keys.order import joined
from desk_rag.tui.terminal.parser import TerminalParser

if TYPE_CHECKING:
    from desk_rag.tui.app import DeskRagApp

_LOOK_SECONDS = 0.1
"""Interval of the timeout that tells a lone ESC from the beginning of a sequence."""


class TerminalDriver(LinuxDriver):
    """Textual's driver; calls the app's `terminal_gone` when the terminal was closed."""

    def __init__(self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: Any = None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = cast("Any", _Output(cast("IO[str]", self._file)))
        self._attributes_before = cast("DeskRagApp", app).terminal_attributes

    def start_application_mode(self) -> None:
        """Take the terminal; what it was before the first frame was drawn is restored in the end."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self._attributes_before is not None:
            self.attrs_before = self._attributes_before

    def run_input_thread(self) -> None:
        """Read until told to end, or until the terminal is closed."""
        parser = TerminalParser(self._debug)
        decode = getincrementaldecoder("utf-8")(errors="replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_LOOK_SECONDS):
                    data = self._read()
                    if not data:
                        cast("DeskRagApp", self._app).terminal_gone()
                        return
                    for message in joined(parser.feed(decode(data))):
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, 4096)
        except OSError:  # a terminal that hung up
            return b""


class _Output:
    """The terminal's output; what cannot be written to a closed terminal is dropped."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._closed = False

    def write(self, text: str) -> int:
        if not self._closed:
            try:
                return self._file.write(text)
            except (OSError, ValueError):
                self._closed = True
        return len(text)

    def flush(self) -> None:
        if not self._closed:
            try:
                self._file.flush()
            except (OSError, ValueError):
                self._closed = True

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()
