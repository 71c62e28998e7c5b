"""Download screen: what the hub offers under a name, then how far fetching it has come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static

from desk_rag.tui.management.download import Described, ModelDownload
from desk_rag.tui.management.session import Session
from desk_rag.tui.messages import Problem
from desk_rag.tui.panels.base import PanelScreen
from desk_rag.tui.wording import safe

_BAR_CELLS = 30
_EVERY_SECONDS = 0.1
_BEFORE = "It is not on this computer. Enter asks the hub (huggingface.co) what it is; only the name is sent."


class DownloadScreen(PanelScreen):
    """Screen of one model that is not on this computer; each step waits for Enter."""

    NAME = "Download"
    KEYS = (
        ("Enter", "ask the hub; then fetch the model, or go on after a stop"),
        ("Esc", "stop fetching; what has come is kept; then back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "ask", "Ask the hub"),
        Binding("enter", "fetch", "Fetch it"),
        Binding("enter", "go_on", "Go on"),
        Binding("enter", "try_again", "Try again"),
        Binding("escape", "stop", "Stop"),
        Binding("escape", "close", "Back"),
    ]
    _STATE_OF = {"ask": "new", "fetch": "offered", "go_on": "stopped", "try_again": "failed"}

    def __init__(self, session: Session, name: str, done: Callable[[], None]) -> None:
        """`done` is called once the model is on this computer."""
        super().__init__(session)
        self._download, self._done = ModelDownload(name), done
        self._state = "new"
        """'new', 'asking', 'offered', 'fetching', 'stopped' or 'failed'."""
        self._stop = threading.Event()

    def compose_body(self) -> ComposeResult:
        yield Static(safe(self._download.name, "bold", single_line=True, most=200), id="download-name", markup=False)
        yield Static(Content(_BEFORE), id="download-facts", markup=False)
        yield Static("", id="download-progress", markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "stop":
            return self._state == "fetching"
        if action == "close":
            return self._state != "fetching"
        if action in self._STATE_OF:
            return self._state == self._STATE_OF[action]
        return super().check_action(action, parameters)

    def on_unmount(self) -> None:
        self._stop.set()

    def action_ask(self) -> None:
        """Ask the hub what the model is."""
        self._go("asking", "asking the hub …")
        self.in_thread(self._download.ask, self._came, group="download", failed=self._failed)

    def _came(self, offer: Described) -> None:
        lines = [safe(offer.facts, most=600)]
        lines += [safe(offer.access, "$warning", most=600)] if offer.access else []
        self.query_one("#download-facts", Static).update(Content("\n").join(lines))
        if offer.is_here:
            self._finished(None)
        else:
            self._go("offered", "Enter fetches it; Esc leaves it.")

    def action_fetch(self) -> None:
        """Fetch what is missing."""
        self._stop = threading.Event()
        self._go("fetching", "fetching …")
        self.in_thread(partial(self._fetch, self._stop), self._finished, group="download", failed=self._failed)

    def action_go_on(self) -> None:
        """Fetch what is still missing."""
        self.action_ask()

    def action_try_again(self) -> None:
        """Ask the hub again."""
        self.action_ask()

    def action_stop(self) -> None:
        """Stop fetching; the thread that does it ends when its next piece comes."""
        self._stop.set()
        self._go("stopped", "Stopped. What has come is kept; Enter goes on.")

    def _fetch(self, stop: threading.Event) -> None:
        shown_at = float("-inf")

        def report(sentence: str, share: float) -> None:
            nonlocal shown_at
            now = time.monotonic()
            if now - shown_at >= _EVERY_SECONDS and not stop.is_set() and self.is_running:
                shown_at = now
                self.app.call_from_thread(self._advanced, stop, f"{_bar(share)}  {sentence}")

        self._download.fetch(report, stop.is_set)

    def _advanced(self, stop: threading.Event, text: str) -> None:
        if not stop.is_set():
            self._say(text)

    def _finished(self, _: None) -> None:
        self.dismiss()
        self._done()

    def _failed(self, problem: Problem) -> None:
        if self._state != "stopped":
            self._go("failed", f"{problem.message} {problem.remedy}".strip())

    def _go(self, state: str, text: str) -> None:
        self._state = state
        self._say(text)
        self.refresh_bindings()

    def _say(self, text: str) -> None:
        if self.is_running:
            style = "$error" if self._state == "failed" else ""
            self.query_one("#download-progress", Static).update(safe(text, style, most=800))


def _bar(share: float) -> str:
    full = round(min(1.0, max(0.0, share)) * _BAR_CELLS)
    return f"{'█' * full}{'░' * (_BAR_CELLS - full)} {share:4.0%}"
