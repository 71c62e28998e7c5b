"""One turn of the transcript: the question, quotes as evidence, the streamed answer, the timing line.

A turn is queued, waits for files, is answered and over; it can then be asked again in its place or be compared. Far
from what is in view it is folded: without widgets of its own, as high as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from time import perf_counter

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Collapsible, Static

from desk_rag.answering.conversation import scope
from desk_rag.answering.events import (
    Answer,
    AnswerDraft,
    AnswerEvent,
    AskedAs,
    CheckedSentence,
    Citation,
    Evidence,
    FilesWaiting,
    Finished,
    FirstToken,
    PassagesRead,
    ReasoningText,
    Retrieved,
    SentenceChecked,
    Source,
    marked,
)
from desk_rag.answering.writing import remarks
from desk_rag.ingest.freshness import Backlog
from desk_rag.tui.messages import Problem
from desk_rag.tui.turns.afterword import afterword
from desk_rag.tui.turns.comparison import Comparison
from desk_rag.tui.turns.search_hits import SearchHits
from desk_rag.tui.widgets.answer_text import AnswerText
from desk_rag.tui.widgets.comparison_view import ComparisonView
from desk_rag.tui.widgets.timing_line import Times, TimingLine
from desk_rag.tui.wording import count, safe, short_path

_MOST_QUESTION = 1_200
"""Characters shown of a question; a pasted one may be longer than the screen."""


class TurnState(Enum):
    """Progress of a turn."""

    QUEUED = "queued"
    """Waits for the model, for files, or for the answer above; nothing of it has been asked yet."""
    ANSWERING = "answering"
    OVER = "over"


class Quote(Static):
    """One verified quote with its chip and place; a click shows the source."""

    @dataclass
    class Clicked(Message):
        number: int

    def __init__(self, citation: Citation, folders: Sequence[Path]) -> None:
        parts = (short_path(citation.path, folders), str(citation.location), citation.origin)
        where = " · ".join(part for part in parts if part)
        content = Content.assemble(
            safe(citation.quote, "italic"),
            "\n",
            (f"[{citation.source_number}]", "bold $accent"),
            " ",
            safe(where, "$foreground 60%", single_line=True),
        )
        super().__init__(content, classes="quote", markup=False)
        self._number = citation.source_number

    def on_click(self) -> None:
        self.post_message(self.Clicked(self._number))


class AnswerView(Vertical):
    """A question and everything that came of it."""

    @dataclass
    class SourceClicked(Message):
        view: AnswerView
        number: int

    def __init__(self, turn: int, question: str, folders: Sequence[Path], *, markdown: bool = False) -> None:
        super().__init__(classes="turn")
        self.turn = turn
        self.question = question
        self.state = TurnState.QUEUED
        self.sources: tuple[Source, ...] = ()
        self.citations: list[Citation] = []
        self.asked_as = ""
        """The question completed from earlier turns, as it was searched; empty if it stood alone."""
        self.answer: Answer | None = None
        self.comparison: Comparison | None = None
        self.waits_for_files = False
        """The answer has begun, and is held up by files that are being read."""
        self.folded = False
        """No part of it is drawn, because it is far from what is in view."""
        self._folders = folders
        self._markdown = markdown
        self._asked_at, self._begun_at = perf_counter(), 0.0
        self._hint = ""
        self._word_drawn = False
        self._text, self._reasoning = "", ""
        self._sentences: list[CheckedSentence] = []
        self._said = Content("")
        self._times = Times()

    def compose(self) -> ComposeResult:
        if self.folded:
            return
        with Horizontal(classes="question-line"):
            yield Static(Content.styled("›", "$primary"), classes="sign", markup=False)
            yield Static(safe(self.question, most=_MOST_QUESTION), classes="question", markup=False)
        asked_as = Static(_asked_as(self.asked_as), classes="asked-as", markup=False)
        asked_as.display = bool(self.asked_as)
        yield asked_as
        with Vertical(classes="evidence"):
            for citation in () if self.answer is not None and self.answer.is_list else self.citations:
                yield Quote(citation, self._folders)
        if self.answer is not None and self.answer.reasoning:
            yield _folded_reasoning(self.answer)
        yield AnswerText(markdown=self._markdown)
        if self.answer is not None and self.answer.is_search:
            yield SearchHits(self.answer, self._folders)
        note = Static(self._said, classes="note", markup=False)
        note.display = bool(self._said)
        yield note
        if self.comparison is not None:
            yield ComparisonView(self.comparison)
        yield TimingLine(self._times)

    async def fold(self, folded: bool) -> None:
        """Give up the widgets of a turn that is over and keep its height, or draw it anew."""
        self.folded = folded
        if folded:
            self.styles.height = self.outer_size.height
        await self.recompose()
        self._clear_arrangement_cache()  # it would keep the removed widgets
        if not folded:
            self._draw_words()
            self.styles.height = None

    @property
    def over(self) -> bool:
        """True while nothing more is to come."""
        return self.state is TurnState.OVER

    @property
    def queued(self) -> bool:
        """True until the question is asked."""
        return self.state is TurnState.QUEUED

    @property
    def can_compare(self) -> bool:
        """True if there is an answer from documents, whose times can be compared."""
        return self.over and self.answer is not None and bool(self.answer.sources) and not self.answer.is_search

    @property
    def searched(self) -> str:
        """The question as it was searched, with the names that limited it; it can be asked by itself."""
        question = self.asked_as or self.question
        if self.answer is None or scope.mentions(question):
            return question
        names = [scope.token(path, is_folder=False, bases=self._folders) for path in self.answer.limited_to]
        return " ".join([*names, question])

    def waiting(self, text: str) -> None:
        """Say what this question waits for."""
        self._note(safe(text))

    async def queue_again(self) -> None:
        """Forget the answer, so that the question can be asked again in its place."""
        self.state, self.answer, self.comparison, self.sources = TurnState.QUEUED, None, None, ()
        self.citations, self._sentences, self._text, self._reasoning = [], [], "", ""
        self._hint, self._said, self.asked_as, self._times = "", Content(""), "", Times()
        self._asked_at = perf_counter()
        self.remove_class("-failed", "-stopped", "-not-found", "-unverified")
        await self.fold(False)

    @property
    def lacked(self) -> tuple[Path, ...]:
        """Files that were not read when this was answered, as long as nothing was offered."""
        backlog = self.answer.backlog if self.answer is not None and self.over and not self._hint else None
        return backlog.new if backlog is not None else ()

    def begin(self) -> None:
        """Show that the question is being asked."""
        self.state = TurnState.ANSWERING
        self._begun_at, self._word_drawn = perf_counter(), False
        self._times.waited = self._begun_at - self._asked_at
        self.waiting("looking through your documents …")

    def begin_comparison(self) -> None:
        """Show that the question is being asked both ways; the answer stays as it is."""
        self.state = TurnState.ANSWERING

    def take(self, event: AnswerEvent) -> None:
        """Show one event of the stream (text comes through `grow`); nothing can be added once the app quits."""
        if not self.is_attached:
            return
        match event:
            case AskedAs(question):
                self._show_asked(question)
            case Evidence(citation):
                self._cite(citation)
            case SentenceChecked(sentence):
                self._sentences.append(sentence)
                self._draw_words()
            case Finished(answer):
                self._finish(answer)
            case _:
                self._take_progress(event)

    def _take_progress(self, event: AnswerEvent) -> None:
        """Say what is being done."""
        match event:
            case FilesWaiting(backlog):
                self.waits_for_files = True
                self.waiting(_waits_for(backlog))
            case PassagesRead(passages, of_passages):
                self.waiting(f"reading the whole folder: {passages:,} of {count(of_passages, 'passage')} …")
            case Retrieved(sources):
                self.waits_for_files = False
                self.sources = sources
                warm = sum(bool(source.warm) for source in sources)
                self._note(Content(f"reading {count(len(sources), 'chunk')}, {warm} warm …"))
            case FirstToken():
                self._note(Content("writing the answer …"))
            case ReasoningText(text):
                self._reasoning += text
                self._note(Content(f"reasoning: {len(self._reasoning.split()):,} words so far …"))
            case AnswerDraft(text):
                self._note(safe(f"{text} …", "dim"))

    def grow(self, text: str) -> None:
        """Show all of the answer's text so far."""
        self._text = text
        self._draw_words()
        if text.strip():
            self._word_came()

    def _draw_words(self) -> None:
        """Draw the text so far, with the marks of sentences that the passages do not support."""
        text = marked(self._text, self._sentences)
        for words in self.query(AnswerText):
            words.show(text, {source.number for source in self.sources})

    @property
    def plain_text(self) -> str:
        """Question, answer and quotes, for searching."""
        words = self.answer.text if self.answer else ""
        return "\n".join([self.question, self.asked_as, words, *(citation.quote for citation in self.citations)])

    def replay(self, answer: Answer) -> None:
        """Show an answer of a saved chat."""
        self._word_drawn = True  # there is no time to tell
        self.state = TurnState.OVER
        self._finish(answer)

    def fail(self, problem: Problem) -> None:
        """Show an error in place of what is missing."""
        self.add_class("-failed")
        remedy = [Content("\n"), safe(problem.remedy, "$foreground")] if problem.remedy else []
        self._note(Content.assemble(safe(problem.message, "bold"), *remedy))

    def end(self) -> None:
        """End the turn. Without a finished answer, the user stopped it."""
        comparing = self.answer is not None
        self.state, self.waits_for_files = TurnState.OVER, False
        if comparing and not self.has_class("-failed"):
            self._draw_note()
        elif not self.has_class("-failed"):
            self.add_class("-stopped")
            self._note(Content("stopped"))

    def show_comparison(self, comparison: Comparison) -> None:
        """Add both times and answers below the answer, unless the app quits."""
        if not self.is_attached:
            return
        self.comparison = comparison
        self.query(ComparisonView).remove()
        if not self.folded:
            self.mount(ComparisonView(comparison), before=self._timing)

    def sources_changed(self, sources: tuple[Source, ...]) -> None:
        """Show the marks of sources whose files have changed since the answer."""
        self.sources = sources
        if self.answer is not None:
            self.answer = replace(self.answer, sources=sources)
            self._draw_note()

    def toggle_details(self) -> None:
        """Show or hide the stages of the time to first token."""
        self._timing.toggle_details()

    def offer(self, hint: str) -> None:
        """Say how to have an answer from the files that were missing."""
        self._hint = hint
        self._draw_note()

    def _draw_note(self) -> None:
        """Draw what is to be said of the finished answer."""
        if self.answer is not None:
            self._note(afterword(self.answer, self._folders, self._hint))

    def on_quote_clicked(self, message: Quote.Clicked) -> None:
        message.stop()
        self.post_message(self.SourceClicked(self, message.number))

    def on_answer_text_source_clicked(self, message: AnswerText.SourceClicked) -> None:
        message.stop()
        self.post_message(self.SourceClicked(self, message.number))

    def _cite(self, citation: Citation) -> None:
        self.citations.append(citation)
        self.query_one(".evidence", Vertical).mount(Quote(citation, self._folders))
        self._word_came()

    def _word_came(self) -> None:
        if not self._word_drawn:
            self._word_drawn = True
            self._note(Content(""))
            self.call_after_refresh(self._word_seen)

    def _word_seen(self) -> None:
        self._timing.first_word(perf_counter() - self._begun_at)

    def _finish(self, answer: Answer) -> None:
        self.answer = answer
        self.sources = answer.sources
        self._show_asked(answer.asked_as)
        if answer.is_list:
            self.citations = list(answer.citations)
        for citation in answer.citations[len(self.citations) :]:
            self._cite(citation)
        self._sentences = list(answer.sentences)
        self.grow(answer.text)
        if answer.reasoning:
            self.mount(_folded_reasoning(answer), before=self.query_one(AnswerText))
        if answer.is_search:
            self.query(SearchHits).remove()
            self.mount(SearchHits(answer, self._folders), after=self.query_one(AnswerText))
        self.set_class(not answer.found and not answer.stopped, "-not-found")
        self.set_class(bool(answer.dropped_quotes) and not answer.citations, "-unverified")
        self._draw_note()
        self._timing.finish(answer)

    def _show_asked(self, question: str) -> None:
        self.asked_as = question
        for line in self.query(".asked-as").results(Static):
            line.update(_asked_as(question))
            line.display = bool(question)

    @property
    def _timing(self) -> TimingLine:
        return self.query(TimingLine).first()  # `query_one` would keep it when the turn is folded

    def _note(self, content: Content) -> None:
        self._said = content
        for note in self.query(".note").results(Static):
            note.update(content)
            note.display = bool(content)


def _asked_as(question: str) -> Content:
    return Content.assemble("↳ asked as: ", safe(question, single_line=True))


def _folded_reasoning(answer: Answer) -> Collapsible:
    text = Static(safe(answer.reasoning, "$foreground 60%"), markup=False)
    return Collapsible(text, title=remarks.reasoned(answer), classes="reasoning")


def _waits_for(backlog: Backlog) -> str:
    if not backlog.new:
        return "waits: the folders are being looked through"
    said = f"waits for files: {backlog.share} read"
    return f"{said} · Enter answers from those" if backlog.read else said
