"""Join the answers to the parts of a question into one answer with one list of sources."""

from __future__ import annotations

from collections.abc import Iterator
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

    @property
    def stopped(self) -> bool:
        """Whether the user ended the last answer."""
        return bool(self._answers) and self._answers[-1][1].stopped

    def add(self, events: Iterator[AnswerEvent], part: str, *, silent: bool = False) -> Iterator[AnswerEvent]:
        """Pass on the events of the answer to `part`; with `silent`, without its words."""
        offset = len(self._sources)
        for event in events:
            match event:
                case Retrieved(sources):
                    self._sources[offset:] = [replace(one, number=one.number + offset) for one in sources]
                    yield Retrieved(tuple(self._sources))
                case FirstToken():
                    if not offset:
                        yield event
                case Evidence(citation):
                    yield replace(event, citation=_shifted(citation, offset))
                case AnswerText():
                    pass  # as a whole, below
                case Finished(answer):
                    self._answers.append((part, answer))
                    if not silent:
                        text = _said(part, answer)
                        yield AnswerText(f"\n{text}" if self._texts else text)
                        self._texts.append(text)

    def finished(self, *, needs_last: bool = False) -> Finished:
        """The answer to the whole question; with `needs_last` it is found only if the last part is."""
        answers = [answer for _, answer in self._answers]
        last = answers[-1]
        citations: list[Citation] = []
        offset = 0
        for answer in answers:
            citations += [_shifted(citation, offset) for citation in answer.citations]
            offset += len(answer.sources)
        supports = [answer.support for answer in answers if answer.found and answer.support is not None]
        found = last.found if needs_last else any(answer.found for answer in answers)
        return Finished(
            replace(
                last,
                question=self._question,
                text="\n".join(self._texts) if found else NO_ANSWER,
                found=found,
                citations=tuple(citations) if found else (),
                dropped_quotes=tuple(quote for answer in answers for quote in answer.dropped_quotes),
                sources=tuple(self._sources),
                timings=_sum([answer.timings for answer in answers]),
                warm_chunks=sum(answer.warm_chunks for answer in answers),
                cold_chunks=sum(answer.cold_chunks for answer in answers),
                raw="\n".join(answer.raw for answer in answers),
                notices=tuple(dict.fromkeys(notice for answer in answers for notice in answer.notices)),
                support=min(supports, default=None),
            )
        )


def _said(part: str, answer: Answer) -> str:
    return answer.text if answer.found else f"{part} {NO_ANSWER}"


def _shifted(citation: Citation, offset: int) -> Citation:
    return replace(citation, source_number=citation.source_number + offset)


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
