"""Replace the text of a finished answer, such as 'I', by what a heading above its quote says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from desk_rag.answering.events import Answer, AnswerEvent, AnswerText, Evidence, Finished


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
