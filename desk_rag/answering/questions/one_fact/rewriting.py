"""Change a finished answer: a doubt is added, or its text, such as 'I', gives way to what a heading above it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from desk_rag.answering.events import Answer, AnswerEvent, AnswerText, Citation, Evidence, Finished, Source

DOUBTED = 0.3
"""Most support of an answer that something speaks against: it is doubtful."""


def doubted(done: Answer, *reasons: str) -> Answer:
    """The answer with a doubt, and with the sentences that say why."""
    support = DOUBTED if done.support is None else min(done.support, DOUBTED)
    return replace(done, support=support, notices=(*done.notices, *reasons))


def source_quoted(done: Answer) -> Source | None:
    """The passage of the first quote; None without quotes."""
    number = done.citations[0].source_number if done.citations else None
    return next((source for source in done.sources if source.number == number), None)


def numbered_after(
    done: Answer, sources: Sequence[Source], citations: Sequence[Citation]
) -> tuple[tuple[Source, ...], tuple[Citation, ...]]:
    """Return the sources of an answer with those that are added, and the added citations with their numbers there.

    A passage that the answer has already keeps its number.
    """
    by_passage, numbers = {(source.chunk_id, source.path): source for source in done.sources}, dict[int, int]()
    following = max((source.number for source in done.sources), default=0) + 1
    for source in sources:
        known = by_passage.setdefault((source.chunk_id, source.path), replace(source, number=following))
        following, numbers[source.number] = max(following, known.number + 1), known.number
    numbered = (replace(one, source_number=numbers[one.source_number]) for one in citations)
    return tuple(by_passage.values()), tuple(numbered)


def rewritten(events: Iterator[AnswerEvent], rewrite: Callable[[Answer], Answer | None]) -> Iterator[AnswerEvent]:
    """Pass on an answer, its text only once it is finished.

    Where `rewrite` returns another answer, the quotes that it adds and its text are passed on instead of the text.
    """
    text: list[AnswerText] = []
    for event in events:
        if isinstance(event, AnswerText):
            text.append(event)
            continue
        if not isinstance(event, Finished):
            yield event
            continue
        answer = rewrite(event.answer)
        if answer is None:
            yield from text
            yield event
            continue
        for citation in answer.citations:
            if citation not in event.answer.citations:
                yield Evidence(citation, answer.support)
        yield AnswerText(answer.text)
        yield Finished(answer)
