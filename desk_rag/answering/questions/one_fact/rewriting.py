"""Change a finished answer: a doubt is added, or its text, such as 'I', gives way to what a heading above it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from desk_rag.answering.events import Answer, AnswerEvent, AnswerText, Evidence, Finished, Source

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
