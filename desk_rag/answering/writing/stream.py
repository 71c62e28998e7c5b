"""Stream an answer that a model writes in its own words: compare every sentence with the passages first.

Nothing is withheld. A sentence that the passages support carries the numbers of those that do; one that they do not
support is reported as such, and so is an answer without any support. Events already emitted are never revoked, except
the draft of the unfinished sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from desk_rag.answering.events import (
    AnswerDraft,
    AnswerText,
    CheckedSentence,
    Citation,
    Grounding,
    ReasoningText,
    SentenceChecked,
    Source,
    StreamEvent,
    Support,
    grounding,
)
from desk_rag.answering.evidence.citations import ParsedAnswer
from desk_rag.answering.evidence.quote_matching import same_words
from desk_rag.answering.writing import claims
from desk_rag.answering.writing.length import AnswerLength
from desk_rag.answering.writing.reasoning_filter import ReasoningFilter
from desk_rag.answering.writing.refusals import is_refusal
from desk_rag.answering.writing.repetition import RepetitionGuard, begins_next_turn, tail_loops
from desk_rag.answering.writing.support import SupportChecker
from desk_rag.answering.writing.units import Unit, UnitKind, UnitSplitter
from desk_rag.model.reasoning import Reasoning
from desk_rag.sanitize import without_terminal_codes

_LABEL = re.compile(
    r"^(?:\*\*)?(?:answer|antwort|réponse|respuesta|risposta|antwoord|resposta|svar|odpowiedź)\s*:(?:\*\*)?\s*", re.I
)
_END_OF_TURN = re.compile(
    r"<\|(?:im_end|im_start|endoftext|end_of_text|eot_id|eom_id|end|eos)\|>|<(?:start|end)_of_turn>|<eos>|(?<!<s>)</s>"
)
"""Tokens with which families end a turn, as text: files that name another last token let them through."""
_PARTIAL_MARKER = re.compile(r"[ \t]*(?:\[[^\]\n]{0,24}|【[^】\n]{0,40})?$")
_NUMBERS_SHOWN = 3
"""Citations behind one sentence at most."""
_EMPTY = "The model wrote no answer."
_UNFINISHED = "There is no answer: the model did not finish reasoning."
_REPEATED = "The model began to repeat itself, so the answer was ended there"
_UNMARKED = "Part of this text is the model's reasoning; it did not mark where that began"


@dataclass(frozen=True, slots=True)
class _Limits:
    """Reasons for which an answer ended early."""

    repeated: bool = False
    next_turn: bool = False
    full: bool = False


class WrittenStream:
    """Turns the text of a model that writes into events."""

    def __init__(
        self,
        question: str,
        sources: Sequence[Source],
        checker: SupportChecker,
        reasoning: Reasoning,
        length: AnswerLength,
    ) -> None:
        self.support: float | None = None
        """Always None: each sentence has a support of its own."""
        self.unmet: tuple[str, ...] = ()
        """Always empty: each sentence is compared by itself."""
        self._question = question
        self._numbers = frozenset(source.number for source in sources)
        self._checker, self._length = checker, length
        self._filter, self._splitter, self._guard = ReasoningFilter(reasoning), UnitSplitter(), RepetitionGuard()
        self._text = ""
        self._draft = ""
        self._reasoning_emitted = 0
        self._tokens = self._answer_tokens = 0
        self._sentences: list[CheckedSentence] = []
        self._refusals = 0
        self._header = ""
        """Cells of the first row of the table that is being written."""
        self._limits = _Limits()

    @property
    def ended(self) -> bool:
        """True once nothing that the model could still write would be shown."""
        return self._limits != _Limits()

    def feed(self, piece: str, count: int = 1, *, ends_quotes: bool = False) -> Iterator[StreamEvent]:
        """Take the next piece of text, of `count` tokens; yield what became certain, and the draft of the rest."""
        if self.ended:
            return
        self._tokens += count
        answer = self._filter.feed(piece)
        yield from self._reasoning_events()
        if not self._filter.is_open:
            self._answer_tokens += count
        yield from self._take(self._splitter.feed(answer))
        if self._limits != _Limits():
            return
        if tail_loops(self._filter.reasoning if self._filter.is_open else self._splitter.pending):
            self._limits = _Limits(repeated=True)
        elif self._answer_tokens >= self._length.answer or self._tokens >= self._length.all:
            self._limits = _Limits(full=True)
        draft = _PARTIAL_MARKER.sub("", claims.without_markers(self._splitter.pending)[0]).strip()
        if draft and draft != self._draft:
            yield AnswerDraft(draft)
        self._draft = draft

    def finish(self, *, stopped: bool = False) -> tuple[ParsedAnswer, tuple[StreamEvent, ...]]:
        """Close the text; return the result and the remaining events.

        With `stopped` the user ended the answer: its unfinished sentence is kept, and missing text is no refusal.
        """
        events: list[StreamEvent] = []
        if self._limits.repeated or self._limits.next_turn:
            rest: list[Unit] = []
        else:
            rest = self._splitter.feed(self._filter.finish()) + self._splitter.finish()
            events += self._reasoning_events()
        events += self._take(rest, finished=not (stopped or self._limits.full))
        states = grounding(tuple(self._sentences))
        supported = any(sentence.support is Support.SUPPORTED for sentence in self._sentences)
        refused = self._refusals > 0 and not supported
        asks_back = states is None and self._text.rstrip().endswith("?")
        if self._text and states is None and not refused:
            reason = "nothing in it could be compared with the passages"
            if asks_back:
                reason = "it asks something instead of answering"
            events.append(self._check_done(CheckedSentence(0, len(self._text), Support.UNCHECKED, reason)))
        has_words = any(character.isalnum() for character in self._text)
        found = has_words and not (refused or asks_back) and states is not Grounding.NONE
        if not self._text and not stopped:
            self._text = _UNFINISHED if self._filter.reasoning else _EMPTY
            events.append(AnswerText(self._text))
        citations = tuple(dict.fromkeys(each for sentence in self._sentences for each in sentence.citations))
        parsed = ParsedAnswer(
            self._text, found, citations, self._checker.unfound_quotes, (),
            sentences=tuple(self._sentences), reasoning=self._filter.reasoning.strip(),
            notices=self._notices(stopped=stopped),
        )  # fmt: skip
        return parsed, tuple(events)

    def _take(self, units: Sequence[Unit], *, finished: bool = True) -> Iterator[StreamEvent]:
        """Show units; without `finished` the last one is cut off."""
        for unit in units:
            if self._limits.repeated or self._limits.next_turn:
                return
            yield from self._show(unit, finished=finished or unit is not units[-1])

    def _show(self, unit: Unit, *, finished: bool = True) -> Iterator[StreamEvent]:
        text, kind = self._until_end_of_turn(without_terminal_codes(unit.text, bare=False)), unit.kind
        finished = finished or self._limits.next_turn
        if begins_next_turn(text):
            self._limits = _Limits(next_turn=True)
            return
        if not self._text:
            text = _LABEL.sub("", text)
            if not text or self._echoes_prompt(text):
                return
        if self._guard.loops(text):
            self._limits = _Limits(repeated=True)
            return
        plain, cited = claims.without_markers(text)
        plain = plain.rstrip()
        words = claims.plain_words(plain)
        only_cites = not plain.strip()  # a citation on a line of its own
        if only_cites or (kind is UnitKind.SENTENCE and self._guard.has_said(words)):
            return
        start = len(self._text) + len(unit.before if self._text else "")
        before = unit.before if self._text else ""
        says_nothing = kind in (UnitKind.OTHER, UnitKind.HEADER) or not claims.is_claim(plain)
        if says_nothing and not (plain.startswith("**") and is_refusal(words)):
            if kind is UnitKind.HEADER:
                self._header = words
            yield self._append(before + (text if kind is UnitKind.OTHER else plain))
            return
        if is_refusal(words):
            self._refusals += 1
            yield self._append(before + plain)
            return
        if not finished:
            yield self._append(before + plain)
            reason = "it is unfinished"
            yield self._check_done(CheckedSentence(start, start + len(plain), Support.UNCHECKED, reason))
            return
        known = [number for number in cited if number in self._numbers]
        context = self._header if kind is UnitKind.ROW else ""
        verdict = self._checker.check(claims.without_references(words), known, context)
        shown = _with_numbers(plain, verdict.citations, is_row=kind is UnitKind.ROW)
        yield self._append(before + shown)
        yield self._check_done(
            CheckedSentence(
                start, start + len(shown), verdict.support, verdict.reason, verdict.score, tuple(verdict.citations)
            )
        )

    def _until_end_of_turn(self, text: str) -> str:
        end = _END_OF_TURN.search(text)
        if end is None:
            return text
        self._limits = _Limits(next_turn=True)
        return text[: end.start()].rstrip()

    def _append(self, text: str) -> AnswerText:
        self._text += text
        self._draft = ""
        return AnswerText(text)

    def _check_done(self, sentence: CheckedSentence) -> SentenceChecked:
        self._sentences.append(sentence)
        return SentenceChecked(sentence)

    def _reasoning_events(self) -> Iterator[ReasoningText]:
        new = self._filter.reasoning[self._reasoning_emitted :]
        self._reasoning_emitted += len(new)
        if new:
            yield ReasoningText(new)

    def _echoes_prompt(self, text: str) -> bool:
        """True for a first unit that repeats the question."""
        words = claims.plain_words(text)
        return same_words(self._question, words) and len(words) < len(self._question) + 24

    def _notices(self, *, stopped: bool) -> tuple[str, ...]:
        notices = []
        if self._limits.repeated:
            notices.append(_REPEATED)
        if self._filter.unmarked:
            notices.append(_UNMARKED)
        if self._filter.is_open and not stopped and not self._limits.repeated:
            notices.append(
                f"The model was still reasoning after {self._tokens:,} tokens and was ended there; "
                "a shorter question, or a model that answers without reasoning, may help"
            )
        elif self._limits.full:
            notices.append(
                f"The answer is cut off at its limit of {self._answer_tokens:,} tokens "
                "(`max_new_tokens` under [answer] changes it)"
            )
        return tuple(notices)


def _with_numbers(text: str, citations: Sequence[Citation], *, is_row: bool) -> str:
    """The text with the numbers of the passages that support it, in a table row inside its last cell."""
    numbers = list(dict.fromkeys(citation.source_number for citation in citations))[:_NUMBERS_SHOWN]
    marks = "".join(f"[{number}]" for number in numbers)
    if not marks:
        return text
    if is_row and text.rstrip().endswith("|"):
        return f"{text.rstrip()[:-1].rstrip()} {marks} |"
    return f"{text} {marks}"
