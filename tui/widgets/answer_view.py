"""One turn of the transcript: the question, quotes as evidence, the streamed answer, the timing line.

Text stays plain on purpose: nothing from a document or the model becomes a link, a heading or a style; only the numbers
of retrieved sources are marked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from desk_rag.answering.events import (
    Answer,
    AnswerEvent,
    AnswerMode,
    Citation,
    Evidence,
    Finished,
    FirstToken,
    Retrieved,
    Source,
)
from desk_rag.tui.messages import Problem
from desk_rag.tui.widgets.timing_line import TimingLine
from desk_rag.tui.wording import count, mark, place, safe, short_path

_CHIP = re.compile(r"\[(\d{1,2})\]")
_NEAREST_SHOWN = 3


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

    def __init__(
        self,
        turn: int,
        question: str,
        folders: Sequence[Path],
        mode: AnswerMode = AnswerMode.CACHED,
        other: Answer | None = None,
    ) -> None:
        super().__init__(classes="turn")
        self.turn = turn
        self.question = question
        self.mode = mode
        self.sources: tuple[Source, ...] = ()
        self.citations: list[Citation] = []
        self.answer: Answer | None = None
        self._folders = folders
        self._other = other
        self._over = False

    def compose(self) -> ComposeResult:
        again = Content.styled(" · full prefill", "$foreground 60% not bold")
        with Horizontal(classes="question-line"):
            yield Static(Content.styled("›", "$primary"), classes="sign", markup=False)
            question = safe(self.question)
            yield Static(
                question + again if self.mode is AnswerMode.FULL else question, classes="question", markup=False
            )
        yield Vertical(classes="evidence")
        for name in ("words", "note"):
            part = Static("", classes=name, markup=False)
            part.display = False
            yield part
        yield TimingLine()

    @property
    def over(self) -> bool:
        """True once nothing more will come."""
        return self._over

    def waiting(self, text: str) -> None:
        """Say what this question waits for."""
        self._note(Content(text))

    def take(self, event: AnswerEvent) -> None:
        """Show one event of the stream (text comes through `grow`)."""
        match event:
            case Retrieved(sources):
                self.sources = sources
                warm = sum(source.warm for source in sources)
                self._note(Content(f"reading {count(len(sources), 'chunk')}, {warm} warm …"))
            case FirstToken(timings):
                self._note(Content(""))
                self.query_one(TimingLine).first_token(timings)
            case Evidence(citation):
                self._cite(citation)
            case Finished(answer):
                self._finish(answer)

    def grow(self, text: str) -> None:
        """Show all of the answer's text so far."""
        words = self.query_one(".words", Static)
        words.update(self._with_chips(text))
        words.display = bool(text)

    def fail(self, problem: Problem) -> None:
        """Show an error in place of what is missing."""
        self.add_class("-failed")
        remedy = [Content("\n"), safe(problem.remedy, "$foreground")] if problem.remedy else []
        self._note(Content.assemble(safe(problem.message, "bold"), *remedy))

    def end(self) -> None:
        """Nothing more comes. Without a finished answer this means that the user stopped it."""
        self._over = True
        if self.answer is None and not self.has_class("-failed"):
            self.add_class("-stopped")
            self._note(Content("stopped"))

    def toggle_details(self) -> None:
        """Show or hide the stages of the time to first token."""
        self.query_one(TimingLine).toggle_details()

    def on_quote_clicked(self, message: Quote.Clicked) -> None:
        message.stop()
        self.post_message(self.SourceClicked(self, message.number))

    def _cite(self, citation: Citation) -> None:
        self.citations.append(citation)
        self.query_one(".evidence", Vertical).mount(Quote(citation, self._folders))

    def _finish(self, answer: Answer) -> None:
        self.answer = answer
        self.sources = answer.sources
        for citation in answer.citations[len(self.citations) :]:
            self._cite(citation)
        self.grow(answer.text)
        self.set_class(not answer.found and not answer.stopped, "-not-found")
        self.set_class(bool(answer.dropped_quotes) and not answer.citations, "-unverified")
        self._note(self._afterword(answer))
        self.query_one(TimingLine).finish(answer, self._other)

    def _afterword(self, answer: Answer) -> Content:
        lines = [Content("stopped")] if answer.stopped else []
        if not answer.found and not answer.stopped and answer.sources:
            lines.append(Content("The nearest passages:"))
            lines += [self._source_line(source) for source in answer.sources[:_NEAREST_SHOWN]]
        lines += [
            Content.assemble("! in no source, do not rely on it: ", safe(quote, "italic", single_line=True))
            for quote in answer.dropped_quotes
        ]
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

    def _with_chips(self, text: str) -> Content:
        content = safe(text)
        known = {str(source.number) for source in self.sources}
        for found in _CHIP.finditer(content.plain):
            if found.group(1) in known:
                content = content.stylize("bold $accent", found.start(), found.end())
        return content

    def _note(self, content: Content) -> None:
        note = self.query_one(".note", Static)
        note.update(content)
        note.display = bool(content)


def _stale_notice(source: Source) -> str:
    return source.absence.notice if source.absence else "has changed or gone since it was read"
