"""Join the answers to the parts of a question into one answer with one list of sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from desk_rag.answering.events import (
    Answer,
    AnswerEvent,
    AnswerText,
    Citation,
    Evidence,
    Finished,
    FirstToken,
    Retrieved,
    Source,
    Timings,
)
from desk_rag.model.prompt import NO_ANSWER


class Joined:
    """Passes the events of several answers on, with sources numbered through, and ends them with one `Finished`."""

    def __init__(self, question: str) -> None:
        self._question = question
        self._sources: list[Source] = []
        self._answers: list[tuple[str, Answer]] = []
        self._texts: list[str] = []
        self._citations: list[Citation] = []
        self._line_ended = True

    @property
    def stopped(self) -> bool:
        """True if the user ended the last answer."""
        return bool(self._answers) and self._answers[-1][1].stopped

    def add(self, events: Iterator[AnswerEvent], part: str, *, silent: bool = False) -> Iterator[AnswerEvent]:
        """Pass on the events of the answer to `part`; with `silent`, without its words."""
        numbers: dict[int, int] = {}
        first = not self._sources
        for event in events:
            match event:
                case Retrieved(sources):
                    numbers = self._numbered(sources)
                    yield Retrieved(tuple(self._sources))
                case FirstToken() if first:
                    yield event
                case Evidence(citation):
                    numbered = replace(citation, source_number=numbers[citation.source_number])
                    yield from self._shown(event, numbered)
                case Finished(answer):
                    self._answers.append((part, answer))
                    if not silent:
                        yield from self._said(part, answer)

    def say(self, text: str) -> Iterator[AnswerText]:
        """Words about the answers that were added, in place of theirs."""
        yield from self._new_line()
        yield AnswerText(text)
        self._texts.append(text)

    def _shown(self, event: Evidence, citation: Citation) -> Iterator[AnswerEvent]:
        """A quote that was not shown yet, at the beginning of a line."""
        if citation not in self._citations:
            self._citations.append(citation)
            yield from self._new_line()
            yield replace(event, citation=citation)

    def _said(self, part: str, answer: Answer) -> Iterator[AnswerText]:
        """The words of one answer, on a line of their own."""
        text = answer.text if answer.found else f"{part} {NO_ANSWER}"
        yield from self._new_line()
        yield AnswerText(text)
        self._texts.append(text)
        self._line_ended = False

    def _new_line(self) -> Iterator[AnswerText]:
        """End the line of the part before, ahead of the quotes of the next."""
        if not self._line_ended:
            self._line_ended = True
            yield AnswerText("\n")

    def _numbered(self, sources: Sequence[Source]) -> dict[int, int]:
        """Add the sources that are new; return the number of each by its number in its own answer."""
        numbers: dict[int, int] = {}
        by_place = {(source.chunk_id, source.path): source.number for source in self._sources}
        for source in sources:
            number = by_place.setdefault((source.chunk_id, source.path), len(self._sources) + 1)
            if number > len(self._sources):
                self._sources.append(replace(source, number=number))
            numbers[source.number] = number
        return numbers

    def finished(self, *, needs_last: bool = False) -> Finished:
        """The answer to the whole question; with `needs_last` it is found only if the last part is."""
        answers = [answer for _, answer in self._answers]
        last = answers[-1]
        supports = [answer.support for answer in answers if answer.found and answer.support is not None]
        found = last.found if needs_last else any(answer.found for answer in answers)
        return Finished(
            replace(
                last,
                question=self._question,
                text="\n".join(self._texts) if found else NO_ANSWER,
                found=found,
                citations=tuple(self._citations) if found else (),
                dropped_quotes=tuple(quote for answer in answers for quote in answer.dropped_quotes),
                sources=tuple(self._sources),
                timings=_sum([answer.timings for answer in answers]),
                warm_chunks=sum(answer.warm_chunks for answer in answers),
                cold_chunks=sum(answer.cold_chunks for answer in answers),
                read_anew_chunks=sum(answer.read_anew_chunks for answer in answers),
                left_out_passages=sum(answer.left_out_passages for answer in answers),
                raw="\n".join(answer.raw for answer in answers),
                notices=tuple(dict.fromkeys(notice for answer in answers for notice in answer.notices)),
                support=min(supports, default=None),
                unmet=tuple(dict.fromkeys(asked for answer in answers if answer.found for asked in answer.unmet)),
                unanswered=tuple(part for part, answer in self._answers if not answer.found) if found else (),
            )
        )


def _sum(timings: list[Timings]) -> Timings:
    """The first part's way to the first token, and the sums of the rest."""
    first, *others = timings
    later = sum(other.ttft + other.decode_seconds for other in others)
    return replace(
        first,
        context_tokens=max(each.context_tokens for each in timings),
        loaded_bytes=sum(each.loaded_bytes for each in timings),
        decode_seconds=first.decode_seconds + later,
        decoded_tokens=sum(each.decoded_tokens for each in timings),
    )
