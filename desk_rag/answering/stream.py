"""One answer's text as it streams: parsed, its evidence judged before the answer's own words are told.

Knows the answer form and the judge; knows no model and no cache. Evidence comes first in the answer form, so the
judgement costs one embedding between the quote and the answer, and nobody reads words that are taken back later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerText, Evidence, Source
from desk_rag.answering.evidence.citations import AnswerParser, ParsedAnswer
from desk_rag.answering.evidence.verification import judge
from desk_rag.model.prompt import NO_ANSWER

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import Reads
    from desk_rag.retrieval.embedding import Vectors


class AnswerStream:
    """Feed it the model's text; it yields Evidence and AnswerText that will not be revoked."""

    def __init__(
        self,
        question: str,
        sources: Sequence[Source],
        embedder: Vectors | None,
        refusal: float | None = None,
        pointer: Reads | None = None,
    ) -> None:
        """`refusal` and `pointer` are as in `grounding.judge`."""
        self._question, self._sources = question, sources
        self._judge = partial(judge, embedder=embedder, refusal=refusal, pointer=pointer)
        self._parser = AnswerParser(sources)
        self._held: list[Evidence] = []
        self._judged = False
        self.refused = False
        """True once the evidence was found not to speak of the question; more text would be ignored."""

    def feed(self, piece: str) -> Iterator[Evidence | AnswerText]:
        """Take the next piece of text; yield what became certain."""
        yield from self._pass(self._parser.feed(piece))

    def finish(self, *, stopped: bool = False) -> tuple[ParsedAnswer, tuple[Evidence | AnswerText, ...]]:
        """Close the text; the outcome, and the events that were left. `stopped` is as in `AnswerParser.finish`."""
        refused_before = self.refused
        parsed = self._parser.finish(stopped=stopped)
        events = list(self._pass(parsed.events))
        if self._held and not self._judged:  # stopped before any of the answer's own words
            self.refused = not self._supported()
        if not self.refused:
            return parsed, (*events, *self._held)
        # Evidence that does not hold says that there is no answer only where the model had come to its end.
        text = "" if stopped and not refused_before else NO_ANSWER
        if text:
            events.append(AnswerText(text))
        return ParsedAnswer(text, False, (), parsed.dropped_quotes, ()), tuple(events)

    def _pass(self, events: Iterable[Evidence | AnswerText]) -> Iterator[Evidence | AnswerText]:
        for event in events:
            if self.refused:
                return
            if isinstance(event, Evidence) and not self._judged:
                self._held.append(event)
                continue
            if not self._judged:
                self.refused = not self._supported()
                yield from () if self.refused else self._held
                self._held = []
            if not self.refused:
                yield event

    def _supported(self) -> bool:
        """Asked at the first of the answer's own words, when all evidence that comes before them is known."""
        self._judged = True
        citations = [event.citation for event in self._held]
        dropped = self._parser.dropped_quotes
        return self._judge(self._question, citations, dropped, self._sources).supported
