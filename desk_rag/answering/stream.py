"""Stream one answer: evidence is verified before text of the answer is emitted.

Evidence comes first in the answer form, so verification costs one embedding between quote and answer, and users never
read words that are taken back later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerText, Evidence, Source
from desk_rag.answering.evidence.citations import AnswerParser, ParsedAnswer
from desk_rag.answering.evidence.quote_matching import same_words
from desk_rag.answering.evidence.short_answers import is_unasked_code
from desk_rag.answering.evidence.verification import verify_answer
from desk_rag.model.prompt import NO_ANSWER

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike
    from desk_rag.retrieval.embedding import EmbedderLike


_DOUBT = "The quoted text may not answer the question: read it before you rely on the answer"


class AnswerStream:
    """Turns the model's text into Evidence and AnswerText events that will not be revoked."""

    def __init__(
        self,
        question: str,
        sources: Sequence[Source],
        embedder: EmbedderLike | None,
        refusal: float | None = None,
        span_scorer: SpanScorerLike | None = None,
        *,
        withholds: bool = True,
        extractive: bool = False,
    ) -> None:
        """`refusal` and `span_scorer` are as in `verify_answer`.

        Without `withholds` an answer whose evidence fails verification is shown with a notice instead. With
        `extractive`, words of the answer that no quote contains are never shown.
        """
        self._withholds, self._doubted = withholds, False
        self._question, self._sources = question, sources
        self._embedder, self._refusal, self._span_scorer = embedder, refusal, span_scorer
        self._parser = AnswerParser(sources)
        self._extractive, self._words = extractive, ""
        self._unverified: list[Evidence] = []
        self._verified = False
        self.support: float | None = None
        """Probability that the answer is right; None before verification, or if there was none."""
        self.unmet: tuple[str, ...] = ()
        """Names, numbers and dates of the question that no quote is about."""
        self.refused = False
        """True once the evidence failed verification; further text is ignored."""

    @property
    def ended(self) -> bool:
        """True once further text would be ignored."""
        return self.refused

    def feed(self, piece: str, _count: int = 1, *, ends_quotes: bool = False) -> Iterator[Evidence | AnswerText]:
        """Take the next piece of text; yield the events that became certain.

        With `ends_quotes` it completes the last quote, which is verified without waiting for the answer's own words.
        """
        yield from self._pass(self._parser.feed(piece))
        if ends_quotes and self._unverified:
            yield from self._verified_evidence()

    def finish(self, *, stopped: bool = False) -> tuple[ParsedAnswer, tuple[Evidence | AnswerText, ...]]:
        """Close the text.

        Return the result and the remaining events. `stopped` is as in `AnswerParser.finish`.
        """
        refused_before = self.refused
        parsed = self._parser.finish(stopped=stopped)
        events = list(self._pass(parsed.events))
        if self._unverified and not self._verified:  # stopped before the answer's own words
            self.refused = not self._supported()
        if not self.refused and self._extractive and not stopped:
            return self._quoted_words(parsed, [*events, *self._unverified])
        if not self.refused:
            words = [AnswerText(self._words)] if self._words else []
            notices = (_DOUBT,) if self._doubted else ()
            return replace(parsed, notices=notices), (*events, *self._unverified, *words)
        # Refuse on behalf of the model only if it had finished; a stopped answer just loses its evidence.
        text = "" if stopped and not refused_before else NO_ANSWER
        if text:
            events.append(AnswerText(text))
        return ParsedAnswer(text, False, (), parsed.dropped_quotes, ()), tuple(events)

    def _quoted_words(
        self, parsed: ParsedAnswer, events: list[Evidence | AnswerText]
    ) -> tuple[ParsedAnswer, tuple[Evidence | AnswerText, ...]]:
        """Show the words if a quote has them and they are no unasked code, else the quotes; without a quote, refuse."""
        text = parsed.text
        if parsed.found and not parsed.citations:
            parsed = replace(parsed, text=NO_ANSWER, found=False)
        elif parsed.found and (
            not any(same_words(text, citation.quote) for citation in parsed.citations)
            or any(is_unasked_code(self._question, text, citation.quote) for citation in parsed.citations)
        ):
            quotes = "\n".join(" ".join(citation.quote.split()) for citation in parsed.citations)
            parsed = replace(parsed, text=quotes)
        return parsed, (*events, AnswerText(parsed.text))

    def _pass(self, events: Iterable[Evidence | AnswerText]) -> Iterator[Evidence | AnswerText]:
        for event in events:
            if self.refused:
                return
            if isinstance(event, Evidence) and not self._verified:
                self._unverified.append(event)
                continue
            if not self._verified:
                yield from self._verified_evidence()
            if self.ended:
                continue
            if self._extractive and isinstance(event, AnswerText):
                self._words += event.text
            elif isinstance(event, Evidence):
                yield replace(event, support=self.support)
            else:
                yield event

    def _verified_evidence(self) -> Iterator[Evidence]:
        """Verify the evidence so far, and yield it unless that fails."""
        self.refused = not self._supported()
        yield from () if self.refused else (replace(each, support=self.support) for each in self._unverified)
        self._unverified = []

    def _supported(self) -> bool:
        """Verify the evidence.

        Called at the answer's first own words, when all evidence before them is known.
        """
        self._verified = True
        citations = [event.citation for event in self._unverified]
        verdict = verify_answer(
            self._question, citations, self._parser.dropped_quotes, self._sources,
            embedder=self._embedder, refusal=self._refusal, span_scorer=self._span_scorer,
        )  # fmt: skip
        self.support = verdict.probability if citations or self._parser.dropped_quotes else None
        self.unmet = verdict.unmet
        self._doubted = self._doubted or not (verdict.supported or self._withholds)
        return verdict.supported or not self._withholds
