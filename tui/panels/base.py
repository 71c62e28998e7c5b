"""Base of the screens beside the chat: title, body, footer, and work in threads whose results come back here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from desk_rag.errors import DeskRagError
from desk_rag.tui.keys.footer import KeyFooter
from desk_rag.tui.keys.jump import JumpTarget
from desk_rag.tui.keys.keymap import KeyMap
from desk_rag.tui.management.session import Session
from desk_rag.tui.messages import Problem
from desk_rag.tui.widgets.entry_list import EntryList
from desk_rag.tui.wording import safe

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class PanelScreen(Screen[None]):
    """A full screen over the chat, left with Esc."""

    NAME: ClassVar[str] = ""
    """As the title bar shows it."""
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Keys, or the names of actions that have one, and what they do; for the help."""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Back")]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static(Content.assemble((" desk-rag", "bold"), "  ", self.NAME), markup=False)
            yield Static("", id="title-right", markup=False)
        yield from self.compose_body()
        yield KeyFooter(compact=True)

    def compose_body(self) -> ComposeResult:
        """Yield the widgets between title and footer."""
        yield from ()

    def title_right(self, text: str) -> None:
        """Show `text` at the right of the title bar."""
        self.query_one("#title-right", Static).update(safe(f"{text} ", single_line=True, most=200))

    def in_thread(
        self,
        job: Callable[[], T],
        then: Callable[[T], None],
        *,
        group: str,
        failed: Callable[[Problem], None] | None = None,
    ) -> None:
        """Run `job` in a thread and `then` with its result here, unless a later job of the group came before it."""
        self.run_worker(
            partial(self._run, job, then, failed or self.complain, group),
            thread=True,
            group=group,
            exclusive=True,
            exit_on_error=False,
        )

    def _run(
        self, job: Callable[[], T], then: Callable[[T], None], failed: Callable[[Problem], None], group: str
    ) -> None:
        from textual.worker import get_current_worker

        worker = get_current_worker()
        try:
            result = job()
        except Exception as error:
            if not isinstance(error, DeskRagError):
                _LOG.exception("%s failed", group)
            if not worker.is_cancelled and self.is_running:
                self.app.call_from_thread(failed, Problem.of(error))
            return
        if not worker.is_cancelled and self.is_running:
            self.app.call_from_thread(self._if_here, then, result)

    def _if_here(self, then: Callable[[T], None], result: T) -> None:
        if self.is_running:
            then(result)

    @property
    def keymap(self) -> KeyMap:
        """The keys in use."""
        keymap: KeyMap = self.app.keymap  # type: ignore[attr-defined]
        return keymap

    def complain(self, problem: Problem) -> None:
        """Show what went wrong and what to do about it."""
        said = safe(f"{problem.message} {problem.remedy}", single_line=True, most=600)
        self.notify(said.plain, severity="error", timeout=10, markup=False)

    def say(self, text: str) -> None:
        """Show one sentence for a while."""
        self.notify(safe(text, single_line=True, most=400).plain, timeout=6, markup=False)

    def jump_targets(self) -> list[JumpTarget]:
        """Return the places of this screen that can be gone to: rows in view, and whatever takes the focus."""
        targets = [
            JumpTarget(widget.region.x, widget.region.y, partial(self.set_focus, widget)) for widget in self.focus_chain
        ]
        for rows in self.query(EntryList):
            targets += [
                JumpTarget(rows.region.x, rows.region.y + line, partial(rows.highlight, row))
                for line, row in enumerate(rows.rows_in_view)
            ]
        return targets

    def action_close(self) -> None:
        """Go back to where this screen was opened from."""
        self.dismiss()
