"""One turn of the transcript: the question, quotes as evidence, the streamed answer, the timing line.

A turn is queued, waits for files, is answered and over; it can then be asked again in its place or be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from desk_rag.tui.turns.comparison import Comparison
from desk_rag.tui.widgets.answer_text import AnswerText
from desk_rag.tui.widgets.comparison_view import ComparisonView
from desk_rag.tui.widgets.timing_line import TimingLine
from desk_rag.tui.wording import count, mark, place, safe, short_path

_NEAREST_SHOWN = 3


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
        self._folders = folders
        self._markdown = markdown
        self._begun_at = 0.0
        self._hint = ""
        self._word_drawn = False
        self._text, self._reasoning = "", ""
        self._sentences: list[CheckedSentence] = []

    def compose(self) -> ComposeResult:
        with Horizontal(classes="question-line"):
            yield Static(Content.styled("›", "$primary"), classes="sign", markup=False)
            yield Static(safe(self.question), classes="question", markup=False)
        asked_as = Static("", classes="asked-as", markup=False)
        asked_as.display = False
        yield asked_as
        yield Vertical(classes="evidence")
        yield AnswerText(markdown=self._markdown)
        note = Static("", classes="note", markup=False)
        note.display = False
        yield note
        yield TimingLine()

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
        self._hint = ""
        self._show_asked("")
        await self.query(Collapsible).remove()
        self.remove_class("-failed", "-stopped", "-not-found", "-unverified")
        await self.query_one(".evidence", Vertical).remove_children()
        await self.query(ComparisonView).remove()
        self.query_one(AnswerText).show("", ())
        self.query_one(TimingLine).reset()

    @property
    def lacked(self) -> tuple[Path, ...]:
        """Files that were not read when this was answered, as long as nothing was offered."""
        backlog = self.answer.backlog if self.answer is not None and self.over and not self._hint else None
        return backlog.new if backlog is not None else ()

    def begin(self) -> None:
        """Show that the question is being asked."""
        self.state = TurnState.ANSWERING
        self._begun_at, self._word_drawn = perf_counter(), False

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
        self.query_one(AnswerText).show(text, {source.number for source in self.sources})

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
        self.mount(ComparisonView(comparison), before=self.query_one(TimingLine))

    def toggle_details(self) -> None:
        """Show or hide the stages of the time to first token."""
        self.query_one(TimingLine).toggle_details()

    def offer(self, hint: str) -> None:
        """Say how to have an answer from the files that were missing."""
        self._hint = hint
        self._draw_note()

    def _draw_note(self) -> None:
        """Draw what is to be said of the finished answer."""
        if self.answer is not None:
            self._note(self._afterword(self.answer))

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
        self.query_one(TimingLine).first_word(perf_counter() - self._begun_at)

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
            self._fold_reasoning(answer)
        self.set_class(not answer.found and not answer.stopped, "-not-found")
        self.set_class(bool(answer.dropped_quotes) and not answer.citations, "-unverified")
        self._draw_note()
        self.query_one(TimingLine).finish(answer)

    def _fold_reasoning(self, answer: Answer) -> None:
        text = Static(safe(answer.reasoning, "$foreground 60%"), markup=False)
        folded = Collapsible(text, title=remarks.reasoned(answer), classes="reasoning")
        self.mount(folded, before=self.query_one(AnswerText))

    def _show_asked(self, question: str) -> None:
        self.asked_as = question
        line = self.query_one(".asked-as", Static)
        line.update(Content.assemble("↳ asked as: ", safe(question, single_line=True)))
        line.display = bool(question)

    def _afterword(self, answer: Answer) -> Content:
        lines = [Content("stopped")] if answer.stopped else []
        lines += [Content.assemble("! ", safe(remark, single_line=True)) for remark in remarks.remarks(answer)]
        if not answer.found and not answer.stopped and answer.sources:
            lines.append(Content("The nearest passages:"))
            lines += [self._source_line(source) for source in answer.sources[:_NEAREST_SHOWN]]
        if answer.is_search:
            lines += [self._source_line(source) for source in answer.sources]
        if answer.limited_to:
            names = ", ".join(short_path(path, self._folders) or path.name for path in answer.limited_to)
            lines.append(Content.assemble("searched only ", safe(names, single_line=True)))
        if self._hint:
            lines.append(Content(f"! {self._hint}"))
        if answer.doubt:
            lines.append(Content(f"! {answer.doubt}"))
        lines += [
            Content.assemble("! in no source, do not rely on it: ", safe(quote, "italic", single_line=True))
            for quote in answer.dropped_quotes
        ]
        if answer.basis is not None:
            lines.append(Content.styled(f"made from {answer.basis.summary}", "$foreground 60%"))
        if answer.cut_notice:
            lines.append(Content(f"! {answer.cut_notice}"))
        cited = {citation.source_number for citation in answer.citations}
        lines += [
            Content(f"! [{source.number}] {_stale_notice(source)}")
            for source in answer.sources
            if source.stale and source.number in cited
        ]
        if answer.not_read is not None:
            lines.append(Content(f"! {answer.not_read.summary} ({answer.not_read.hint})"))
        lines += [Content.assemble("! ", safe(notice, single_line=True)) for notice in answer.notices]
        return Content("\n").join(lines)

    def _source_line(self, source: Source) -> Content:
        where = "  ".join(part for part in (short_path(source.path, self._folders), place(source)) if part)
        return Content.assemble((f"[{source.number}] ", "bold"), f"{mark(source)[0]} ", safe(where))

    def _note(self, content: Content) -> None:
        note = self.query_one(".note", Static)
        note.update(content)
        note.display = bool(content)


def _waits_for(backlog: Backlog) -> str:
    if not backlog.new:
        return "waits: the folders are being looked through"
    said = f"waits for files: {backlog.share} read"
    return f"{said} · Enter answers from those" if backlog.read else said


def _stale_notice(source: Source) -> str:
    return source.absence.notice if source.absence else "has changed or gone since it was read"
