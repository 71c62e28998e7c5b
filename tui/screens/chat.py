"""Main screen: transcript, sources, prompt and status bar, and the queue of questions.

It decides which question is answered next and which turn is shown, and posts messages to the app, which does the work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static, Tab, Tabs

from desk_rag.answering.events import Answer, AnswerMode, Evidence
from desk_rag.ingest.events import DeletionsWaiting, RootAbsent
from desk_rag.tui import messages as m
from desk_rag.tui.backend import Status
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.index_status import IndexStatus
from desk_rag.tui.widgets.question_input import QuestionInput
from desk_rag.tui.widgets.source_list import SourceList
from desk_rag.tui.widgets.source_preview import SourcePreview
from desk_rag.tui.widgets.transcript import Transcript
from desk_rag.tui.widgets.welcome import welcome
from desk_rag.tui.wording import as_text, count, missing_notice, safe, short_path

_FOOTER_CELLS = 80
"""What all keys of the footer take. Below it the palette's, docked at the right, would lie over others."""


class ChatScreen(Screen[None]):
    """One transcript with its sources beside it, or behind a tab where the terminal is narrow."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop"),
        Binding("escape", "back", "Back"),
        Binding("f7", "full_prefill", "Full prefill"),
        Binding("f", "full_prefill", "Full prefill", show=False),
        Binding("ctrl+b", "toggle_sources", "Sources", key_display="^b"),
        Binding("ctrl+o", "open_source", "Open", key_display="^o"),
        Binding("n", "step_source(1)", "Next source", show=False),
        Binding("N", "step_source(-1)", "Previous source", show=False),
        Binding("o", "open_source", "Open source", show=False),
        Binding("y", "copy_answer", "Copy answer", show=False),
        Binding("t", "toggle_timing", "Timing", show=False),
        *[Binding(f"alt+{n}", f"show_source({n})", f"Source {n}", show=False) for n in range(1, 10)],
    ]

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self._folders = folders
        self._turns: dict[int, AnswerView] = {}
        self._queue: deque[AnswerView] = deque()
        self._answering: AnswerView | None = None
        self._can_answer = False
        self._problem: m.Problem | None = None
        self._status = Status()

    def compose(self) -> ComposeResult:
        names = ", ".join(folder.name or str(folder) for folder in self._folders) or "no folder"
        with Horizontal(id="title"):
            yield Static(Content.assemble((" desk-rag", "bold"), "  ", safe(names, single_line=True)), markup=False)
            yield Static("", id="model", markup=False)
        yield Tabs(Tab("Chat", id="tab-chat"), Tab("Sources", id="tab-sources"), id="tabs")
        with Horizontal(id="body"):
            yield Transcript()
            with Vertical(id="side"):
                yield Static("Sources", id="side-title", markup=False)
                yield SourceList(self._folders)
                yield SourcePreview(self._folders)
        yield QuestionInput()
        yield IndexStatus()
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.query_one(Tabs).can_focus = False
        self.query_one(SourcePreview).show(None, ())
        self._welcome()
        self.query_one(QuestionInput).focus()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < _FOOTER_CELLS, "-tight")

    # Questions ------------------------------------------------------------------------------------------------

    async def on_question_input_submitted(self, message: QuestionInput.Submitted) -> None:
        await self._enqueue(message.question, AnswerMode.CACHED, None)

    async def _enqueue(self, question: str, mode: AnswerMode, other: Answer | None) -> None:
        view = AnswerView(len(self._turns) + 1, question, self._folders, mode, other)
        self._turns[view.turn] = view
        self.add_class("-with-turns")
        await self.query_one(Transcript).add(view)
        self._queue.append(view)
        self._show_pane("tab-chat")
        if self._answering is None:
            self.query_one(Transcript).select(view)
        self._next()

    def _next(self) -> None:
        if self._problem is not None:
            while self._queue:
                view = self._queue.popleft()
                view.fail(self._problem)
                view.end()
        elif self._answering is None and self._can_answer and self._queue:
            self._answering = self._queue.popleft()
            self.query_one(Transcript).select(self._answering)
            self._answering.waiting("looking through your documents …")
            self.post_message(m.AnswerWanted(self._answering.turn, self._answering.question, self._answering.mode))
        if self._answering is not None and self._queue and self._queue[0].mode is AnswerMode.CACHED:
            self.post_message(m.QuestionExpected(self._queue[0].question))
        for view in self._queue:
            view.waiting("waits for the answer above" if self._can_answer else "waits for the model to load")
        self.refresh_bindings()

    def on_answer_event_came(self, message: m.AnswerEventCame) -> None:
        view = self._turns[message.turn]
        view.take(message.event)
        if view is self.query_one(Transcript).selected:
            if isinstance(message.event, Evidence):
                self.query_one(SourceList).choose_first_cited(message.event.citation.source_number)
            self._show_sources(view)

    def on_answer_grew(self, message: m.AnswerGrew) -> None:
        self._turns[message.turn].grow(message.text)

    def on_answer_failed(self, message: m.AnswerFailed) -> None:
        self._turns[message.turn].fail(message.problem)

    def on_answer_over(self, message: m.AnswerOver) -> None:
        self._turns[message.turn].end()
        self._answering = None
        self._next()

    # Sources --------------------------------------------------------------------------------------------------

    def on_transcript_selected(self, message: Transcript.Selected) -> None:
        self._show_sources(message.view)
        self.refresh_bindings()

    def on_answer_view_source_clicked(self, message: AnswerView.SourceClicked) -> None:
        self.query_one(Transcript).select(message.view)
        self._show_sources(message.view)
        self.action_show_source(message.number)

    def on_option_list_option_highlighted(self, message: OptionList.OptionHighlighted) -> None:
        self._preview()

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.query_one("#preview-text").focus()

    def _show_sources(self, view: AnswerView) -> None:
        cited = frozenset(citation.source_number for citation in view.citations)
        self.query_one("#side-title", Static).update(
            Content(count(len(view.sources), "source") if view.sources else "Sources")
        )
        self.query_one(SourceList).show(view.sources, cited)
        self._preview()

    def _preview(self) -> None:
        source = self.query_one(SourceList).current
        view = self.query_one(Transcript).selected
        quotes = [c.quote for c in view.citations if source and c.source_number == source.number] if view else []
        self.query_one(SourcePreview).show(source, quotes)
        if source is not None:
            self.post_message(m.DocumentWanted(source.path))

    def on_document_came(self, message: m.DocumentCame) -> None:
        self.query_one(SourcePreview).show_neighbours(message.path, message.chunks)

    # Backend and index ----------------------------------------------------------------------------------------

    def on_loading(self, message: m.Loading) -> None:
        self.query_one(IndexStatus).notice(f"{message.text} …")

    def on_backend_ready(self, message: m.BackendReady) -> None:
        self._can_answer = True
        started = message.started
        self.query_one("#model", Static).update(safe(f"{started.model} · {started.device} ", single_line=True))
        self._notice()
        self._next()

    def on_backend_failed(self, message: m.BackendFailed) -> None:
        self._problem = message.problem
        self.query_one(IndexStatus).notice("! desk-rag could not start")
        self._welcome()
        self._next()

    def on_status_came(self, message: m.StatusCame) -> None:
        self._status = message.status
        self.query_one(IndexStatus).show(message.status)
        if self._can_answer:
            self._notice()
        self._welcome()

    def on_index_event_came(self, message: m.IndexEventCame) -> None:
        event = message.event
        if isinstance(event, RootAbsent | DeletionsWaiting):
            reason = event.reason if isinstance(event, RootAbsent) else event.sentence
            said = safe(f"{short_path(event.root, ())}: {reason}", single_line=True, most=300)
            self.notify(said.plain, severity="warning", timeout=8, markup=False)

    def _notice(self) -> None:
        self.query_one(IndexStatus).notice(missing_notice(self._status))

    def _welcome(self) -> None:
        if not self._turns:
            self.query_one(Transcript).welcome(welcome(self._folders, self._status, self._problem))

    # Actions --------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        view = self.query_one(Transcript).selected if self.is_mounted else None
        if action == "stop":
            return self._answering is not None
        if action == "back":
            return self._answering is None and not isinstance(self.focused, QuestionInput)
        if action == "full_prefill":
            return view is not None and view.over and view.mode is AnswerMode.CACHED
        if action in ("open_source", "toggle_sources", "copy_answer", "toggle_timing"):
            return view is not None
        return True

    def action_stop(self) -> None:
        """Stop the stream; what has come stays."""
        if self._answering is not None:
            # The model looks up between tokens only; a long prefill ends first.
            self._answering.waiting("stopping …")
        self.post_message(m.StopWanted())

    def action_back(self) -> None:
        """Leave the sources tab and go back to the prompt."""
        self._show_pane("tab-chat")
        self.query_one(QuestionInput).focus()

    async def action_full_prefill(self) -> None:
        """Answer the selected question again with full prefill, to compare both times to first token."""
        view = self.query_one(Transcript).selected
        if view and view.over and view.mode is AnswerMode.CACHED:
            await self._enqueue(view.question, AnswerMode.FULL, view.answer)

    def action_toggle_sources(self) -> None:
        """Show or hide the sources: a pane on a wide terminal, a tab on a narrow one."""
        if self.has_class("-narrow"):
            self._show_pane("tab-chat" if self._pane_is("tab-sources") else "tab-sources")
        else:
            self.toggle_class("-without-sources")

    def action_show_source(self, number: int) -> None:
        """Show source `number` of the selected answer."""
        self.remove_class("-without-sources")
        self.query_one(SourceList).choose(number)
        self._show_pane("tab-sources")

    def action_step_source(self, by: int) -> None:
        """Show the next or previous source."""
        self.query_one(SourceList).step(by)

    def action_open_source(self) -> None:
        """Open the shown source in the user's own program."""
        source = self.query_one(SourceList).current
        if source is not None:
            self.post_message(m.OpenWanted(source))

    def action_copy_answer(self) -> None:
        """Copy the selected answer with its quotes."""
        view = self.query_one(Transcript).selected
        if view is None or view.answer is None:
            self.notify("No finished answer to copy.", severity="warning", markup=False)
            return
        self.app.copy_to_clipboard(as_text(view.answer, self._folders))
        self.notify("Answer copied.", markup=False)

    def action_toggle_timing(self) -> None:
        """Show or hide the stages of the time to first token."""
        view = self.query_one(Transcript).selected
        if view is not None:
            view.toggle_details()

    # Panes on a narrow terminal -------------------------------------------------------------------------------

    def on_tabs_tab_activated(self, message: Tabs.TabActivated) -> None:
        self.set_class(message.tab.id == "tab-sources", "-sources-tab")
        if self.has_class("-narrow"):
            target = SourceList if message.tab.id == "tab-sources" else QuestionInput
            self.query_one(target).focus()
        self.refresh_bindings()

    def on_descendant_focus(self) -> None:
        self.refresh_bindings()

    def _show_pane(self, tab: str) -> None:
        self.query_one(Tabs).active = tab

    def _pane_is(self, tab: str) -> bool:
        return self.has_class("-narrow") and self.query_one(Tabs).active == tab
