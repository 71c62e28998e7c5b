"""Main screen: transcript, sources, prompt and status bar, and the queue of questions.

It decides which question is answered next and which turn is shown, and posts messages to the app, which does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count as counter
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, Static, Tab, Tabs

from desk_rag.answering.events import Evidence, Finished
from desk_rag.ingest.events import DeletionsWaiting, Notice, RootAbsent
from desk_rag.tui import messages as m
from desk_rag.tui.backend import Status
from desk_rag.tui.conversation.find_bar import FindBar
from desk_rag.tui.conversation.name_picker import NamePicker
from desk_rag.tui.conversation.screen import ConversationScreen
from desk_rag.tui.keys.bindings import bound
from desk_rag.tui.keys.footer import KeyFooter
from desk_rag.tui.turns.queue import Job, Queue
from desk_rag.tui.turns.readiness import NO_FOLDER, nothing_to_ask
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.index_status import IndexStatus
from desk_rag.tui.widgets.question_input import QuestionInput
from desk_rag.tui.widgets.source_list import SourceList
from desk_rag.tui.widgets.source_preview import SourcePreview
from desk_rag.tui.widgets.transcript import Transcript
from desk_rag.tui.widgets.welcome import welcome
from desk_rag.tui.wording import notice, other_model, safe, said_of


class ChatScreen(ConversationScreen):
    """One transcript with its sources beside it, or behind a tab where the terminal is narrow."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("back", "withdraw", "Withdraw", show=True),
        bound("back", "stop", "Stop", show=True),
        bound("back", "back", "Back", show=True),
        bound("actions", "turn_menu", "Actions", show=True),
        bound("compare", "compare", "Compare with full prefill"),
        bound("ask_again", "ask_again", "Ask again"),
        bound("edit", "edit", "Edit question"),
    ]

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__(folders)
        self._turns: dict[int, AnswerView] = {}
        self._numbers = counter(1)
        self._queue = Queue()
        self._answering: AnswerView | None = None
        self._started: m.BackendReady | None = None
        self._problem: m.Problem | None = None
        self._status, self._status_known = Status(), False
        self._refused: list[AnswerView] = []
        """Questions that had no answer because of a problem before they were asked."""
        self._withdrawn: AnswerView | None = None
        """Question to withdraw once the backend has stopped."""
        self._is_stopping = False
        """The answer was stopped, and ends after the step in progress."""
        self._loading = ""
        """What is being done before the first answer."""

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
        yield FindBar()
        yield NamePicker()
        yield QuestionInput()
        yield IndexStatus()
        yield KeyFooter(compact=True)

    def on_mount(self) -> None:
        self.query_one(Tabs).can_focus = False
        self.query_one(SourcePreview).show(None, ())
        self._welcome()
        self.query_one(QuestionInput).focus()

    def take_input(self, event: events.Event) -> None:
        """Give the prompt the focus before what is typed or pasted is delivered, so that it arrives there in order."""
        typed = isinstance(event, events.Key) and event.is_printable and not event.key.startswith(("alt+", "ctrl+"))
        if isinstance(self.focused, Input):  # of the line for searching
            return
        if typed or isinstance(event, events.Paste):
            prompt = self.query_one(QuestionInput)
            if self.focused is not prompt:
                self.set_focus(prompt)

    # Questions ------------------------------------------------------------------------------------------------

    async def on_question_input_submitted(self, message: QuestionInput.Submitted) -> None:
        view = await self._add_turn(message.question)
        self._show_pane("tab-chat")
        if self._answering is None:
            self.query_one(Transcript).select(view)
        self._enqueue(Job(view))

    async def _add_turn(self, question: str) -> AnswerView:
        markdown = self._started is not None and self._started.started.markdown
        view = AnswerView(next(self._numbers), question, self._folders, markdown=markdown)
        self._turns[view.turn] = view
        await self.query_one(Transcript).add(view)
        return view

    async def _clear(self) -> None:
        for view in list(self._turns.values()):
            await self._drop(view)

    def on_question_input_empty_submitted(self) -> None:
        if self._problem is NO_FOLDER:
            self.post_message(m.FolderWanted())
        elif self._problem is not None:
            self.post_message(m.StartWanted())
        else:
            self.action_answer_now()

    def without_folder(self) -> None:
        """Answer nothing until a folder is chosen."""
        self._problem = NO_FOLDER
        self.query_one(IndexStatus).notice("no folder")
        self._welcome()
        self._next()

    def _enqueue(self, job: Job) -> None:
        self._queue.append(job)
        self._next()

    def _next(self) -> None:
        """Start the next question if possible, and show what the others wait for."""
        problem = self._problem
        if problem is None and self._can_answer:
            problem = nothing_to_ask(self._status, self._folders, self._keymap)
        while problem is not None and self._queue:
            view = self._queue.popleft().view
            self._refused.append(view)
            view.fail(problem)
            view.end()
        if self._answering is None and self._can_answer and self._queue:
            self._begin(self._queue.popleft())
        if self._answering is not None and self._queue and not self._queue[0].comparing:
            self.post_message(m.QuestionExpected(self._queue[0].view.question))
        for job in self._queue:
            job.view.waiting(self._waits_for())
        self.refresh_bindings()

    @property
    def _can_answer(self) -> bool:
        return self._started is not None and self._status_known

    def _waits_for(self) -> str:
        if self._started is not None:
            return "waits for the answer above" if self._status_known else "waits for the first look at the index"
        return f"waits for the model to load: {self._loading} …" if self._loading else "waits for the model to load"

    def _begin(self, job: Job, *, is_asked: bool = False) -> None:
        """Ask a question, unless it was asked together with the one before."""
        view = self._answering = job.view
        self.query_one(Transcript).select(view)
        if job.comparing:
            view.begin_comparison()
            self.post_message(m.ComparisonWanted(view.turn, view.question))
            return
        view.begin()
        if not is_asked:
            self.post_message(m.AnswerWanted(view.turn, view.question, self._earlier(view), self._queue.questions()))

    def on_answer_event_came(self, message: m.AnswerEventCame) -> None:
        view = self._turns[message.turn]
        view.take(message.event)
        if isinstance(message.event, Finished) and message.event.answer.is_search:
            self.query_one(Transcript).read_from_its_beginning(view)
        if view is self.query_one(Transcript).selected:
            if isinstance(message.event, Evidence):
                self.query_one(SourceList).choose_first_cited(message.event.citation.source_number)
            self._show_sources(view)

    def on_answer_grew(self, message: m.AnswerGrew) -> None:
        self._turns[message.turn].grow(message.text)

    def on_comparison_step(self, message: m.ComparisonStep) -> None:
        self._turns[message.turn].waiting(message.text)

    def on_comparison_came(self, message: m.ComparisonCame) -> None:
        self._turns[message.turn].show_comparison(message.comparison)

    def on_comparison_failed(self, message: m.ComparisonFailed) -> None:
        sentence = safe(f"{message.problem.message} {message.problem.remedy}", single_line=True).plain
        self.notify(sentence, severity="error", timeout=8, markup=False)

    def on_answer_failed(self, message: m.AnswerFailed) -> None:
        self._turns[message.turn].fail(message.problem)

    async def on_answer_over(self, message: m.AnswerOver) -> None:
        view = self._turns[message.turn]
        is_last, self._answering, self._is_stopping = self._is_stopping, None, False
        view.end()
        if view is self._withdrawn:
            await self._forget(view)
        elif view is self.query_one(Transcript).selected:
            self._show_sources(view)
        following = None if is_last or view is self._withdrawn else self._queue.take(message.then)
        message.goes_on.set_result(following is not None)
        if following is not None:
            self._begin(following, is_asked=True)
        self._look_for_lacked_files()
        self._next()

    def _look_for_lacked_files(self) -> None:
        """Check whether files that answers lacked have been read by now."""
        if self._answering is None and not self._status.is_reading and any(view.lacked for view in self._views):

            def look() -> None:
                self.post_message(m.BacklogCame(frozenset(self._backend.backlog().new)))

            self._in_thread(look)

    async def on_backlog_came(self, message: m.BacklogCame) -> None:
        """Ask refused questions again whose missing files were read; offer it for those that have an answer."""
        again = []
        for view in self._views:
            if view.answer is None or not view.lacked or not message.new.isdisjoint(view.lacked):
                continue
            if view.answer.found:
                view.offer(f"all files are read now: {self._keymap.shown('ask_again')} asks again")
            else:
                again.append(view)
        await self._queue_again(again)

    # Backend and index ----------------------------------------------------------------------------------------

    def on_loading(self, message: m.Loading) -> None:
        self._loading = message.text.removesuffix("…").rstrip()
        self.query_one(IndexStatus).notice(f"{self._loading} …")
        for job in self._queue:
            job.view.waiting(self._waits_for())

    def on_backend_ready(self, message: m.BackendReady) -> None:
        self._started = message
        started = message.started
        self.query_one("#model", Static).update(safe(f"{started.model} · {started.device} ", single_line=True))
        self._notice()
        for sentence in started.notices:
            self.notify(safe(sentence, most=600).plain, severity="warning", timeout=20, markup=False)

    def on_backend_failed(self, message: m.BackendFailed) -> None:
        other = other_model(self._keymap.shown("models")) if message.is_model else ""
        remedy = " ".join(part for part in (message.problem.remedy, other, "Enter tries again.") if part)
        self._problem = problem = m.Problem(message.problem.message, remedy)
        self.query_one(IndexStatus).notice("! desk-rag could not start")
        self._welcome()
        if self._turns and not self._queue:  # nothing on the screen shows the reason
            sentence = safe(f"{problem.message} {problem.remedy}", single_line=True).plain
            self.notify(sentence, severity="error", timeout=20, markup=False)
        self._next()

    def try_again(self) -> None:
        """Clear the failure, because the backend starts again, and ask again what was refused for it."""
        self._problem = None
        self.query_one(IndexStatus).notice("")
        self._welcome()
        refused, self._refused = [view for view in self._refused if view.turn in self._turns], []
        self.call_later(self._queue_again, refused)

    async def _queue_again(self, views: Sequence[AnswerView]) -> None:
        for view in views:
            await view.queue_again()
            self._queue.append(Job(view))
        self._next()

    async def on_status_came(self, message: m.StatusCame) -> None:
        self._status, self._status_known = message.status, True
        self.query_one(IndexStatus).show(message.status)
        if self._started is not None:
            self._notice()
        self._welcome()
        self._look_for_lacked_files()
        if self._queue:
            self._next()

    def on_index_event_came(self, message: m.IndexEventCame) -> None:
        event = message.event
        if isinstance(event, RootAbsent | DeletionsWaiting | Notice):
            is_over = isinstance(event, Notice) and event.is_over
            self.notify(said_of(event), severity="information" if is_over else "warning", timeout=12, markup=False)

    def _notice(self) -> None:
        self.query_one(IndexStatus).notice(notice(self._status))

    def _welcome(self) -> None:
        if not self._turns:
            self.query_one(Transcript).welcome(welcome(self._folders, self._status, self._problem, self._keymap))

    # Actions --------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        view = self._selected
        match action:
            case "stop":
                return self._answering is not None and self._withdrawable is None
            case "back":
                return self._answering is None and not isinstance(self.focused, QuestionInput)
            case "withdraw":
                return self._withdrawable is not None
            case "answer_now":
                return self._answering is not None and self._answering.waits_for_files
            case "compare":
                return view is not None and view.can_compare
            case "ask_again" | "delete":
                return view is not None and view.over
        return super().check_action(action, parameters)

    def action_stop(self) -> None:
        """Stop the answer; the text so far stays."""
        if self._answering is not None:
            # The model looks up between tokens only; a long prefill ends first.
            self._answering.waiting("stopping …")
            self._is_stopping = True
            self.refresh_bindings()
        self.post_message(m.StopWanted())

    async def action_withdraw(self) -> None:
        """Take a question out of the queue; its text goes back to the prompt."""
        if (view := self._withdrawable) is None:
            return
        if view is self._answering:
            self._withdrawn = view
            self.post_message(m.StopWanted())
        elif view.answer is not None:  # it waits to be compared
            self._queue.withdraw(view)
            view.end()
            return
        else:
            await self._drop(view)
        if not self._is_stopping:
            self._offer(view.question)
        else:  # several may be withdrawn one after the other; Up brings each of them back
            self.query_one(QuestionInput).offer(view.question)
        self.action_back()

    @property
    def _withdrawable(self) -> AnswerView | None:
        """The selected question if it has no part of an answer yet; while an answer stops, the last one that waits."""
        view = self._selected
        if view is not None and (view.queued or (view is self._answering and view.waits_for_files)):
            return view
        return self._queue[-1].view if self._is_stopping and self._queue else None

    async def action_delete(self) -> None:
        """Take the selected turn out of the transcript."""
        if (view := self._selected) and view.over:
            await self._forget(view)

    async def _forget(self, view: AnswerView) -> None:
        await self._drop(view)
        self._in_thread(partial(self._backend.keeper.delete_turn, view.turn))

    async def _drop(self, view: AnswerView) -> None:
        self._queue.withdraw(view)
        del self._turns[view.turn]
        await self.query_one(Transcript).drop(view)
        if not self._turns:
            self.remove_class("-with-sources")
        self._welcome()
        self.refresh_bindings()

    def action_answer_now(self) -> None:
        """Do not wait for files any longer."""
        if self.check_action("answer_now", ()):
            self.post_message(m.HasteWanted())

    async def action_ask_again(self) -> None:
        """Ask the selected question again, in its place."""
        if (view := self._selected) and view.over:
            await self._queue_again([view])

    def action_compare(self) -> None:
        """Answer the selected question from caches and with full prefill, and show both times and answers."""
        if (view := self._selected) and view.can_compare:
            self._enqueue(Job(view, comparing=True))

    def on_descendant_focus(self) -> None:
        self.refresh_bindings()
