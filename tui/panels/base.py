"""Base of the screens beside the chat: title, body, footer, and work in threads whose results come back here."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Generic, TypeVar

from textual import on
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
from desk_rag.tui.widgets.line_input import LineInput
from desk_rag.tui.wording import reading_seconds, safe

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
Row = TypeVar("Row")


class PanelScreen(Screen[None]):
    """A full screen over the chat, left with Esc."""

    NAME: ClassVar[str] = ""
    """Name shown in the title bar."""
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
        """Run `job` in a thread, then `then` with its result in the UI, unless a later job of the group has begun."""
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
        """Show an error and its remedy."""
        said = safe(f"{problem.message} {problem.remedy}", single_line=True, most=600)
        self.notify(said.plain, severity="error", timeout=10, markup=False)

    def say(self, text: str) -> None:
        """Show one sentence for a while."""
        said = safe(text, single_line=True, most=400).plain
        self.notify(said, timeout=reading_seconds(said), markup=False)

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


class ListScreen(PanelScreen):
    """A screen around one list of entries; the keys that move in it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "move_page(-1)", "Page up", show=False),
        Binding("pagedown", "move_page(1)", "Page down", show=False),
        Binding("ctrl+home", "move_end(False)", "First", show=False),
        Binding("ctrl+end", "move_end(True)", "Last", show=False),
    ]

    def action_move(self, by: int) -> None:
        """Move the highlight."""
        self.query_one(EntryList).move(by)

    def action_move_page(self, by: int) -> None:
        """Move the highlight by a screen."""
        self.query_one(EntryList).move_page(by)

    def action_move_end(self, last: bool) -> None:
        """Move the highlight to an end."""
        self.query_one(EntryList).move_to_end(last)


class FilteredScreen(ListScreen, Generic[Row]):
    """A list held in memory, filtered by the words that are typed, with details of the highlighted row below it."""

    PROMPT: ClassVar[str] = "Type to filter"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._all: Sequence[Row] = ()
        self._rows: list[Row] = []

    @abstractmethod
    def words_of(self, row: Row) -> str:
        """Return the text in which every typed word must occur."""

    @abstractmethod
    def line_of(self, row: Row, width: int) -> Content:
        """Return the line of a row in the list."""

    @abstractmethod
    def detail_of(self, row: Row | None) -> Content:
        """Return what stands below the list while this row is highlighted, or none is."""

    @abstractmethod
    def choose(self) -> None:
        """Do what Enter does."""

    def compose_body(self) -> ComposeResult:
        with Horizontal(id="library-filter"):
            yield LineInput("filter", self.PROMPT)
        yield EntryList(id="entries")
        yield Static("", id="entry-detail", markup=False)

    def list_rows(self, *, empty: str, keep: bool = False) -> None:
        """List the rows that match; with `keep` the highlight stays where it is."""
        words = self.query_one(LineInput).value.lower().split()
        self._rows = [row for row in self._all if all(word in self.words_of(row).lower() for word in words)]
        entries = self.query_one(EntryList)
        (entries.change if keep else entries.show)(len(self._rows), empty=empty)
        self._draw()

    @property
    def highlighted_row(self) -> Row | None:
        """The highlighted row, if there is one."""
        number = self.query_one(EntryList).highlighted
        return self._rows[number] if number < len(self._rows) else None

    def _draw(self) -> None:
        entries = self.query_one(EntryList)
        width = entries.scrollable_content_region.width
        entries.take(0, [self.line_of(row, width) for row in self._rows], entries.generation)

    def on_resize(self) -> None:
        self._draw()

    @on(EntryList.RowsWanted)
    def _rows_wanted(self) -> None:
        self._draw()

    @on(EntryList.Highlighted)
    def _highlighted(self) -> None:
        self.query_one("#entry-detail", Static).update(self.detail_of(self.highlighted_row))

    @on(EntryList.Chosen)
    def _clicked_again(self) -> None:
        self.choose()

    def action_close(self) -> None:
        """Clear what was typed; without that go back."""
        words = self.query_one(LineInput)
        if words.value:
            words.value = ""
        else:
            self.dismiss()
