"""Questions that wait in a chat are asked together with the one before them, where that changes no word of an answer.

A question that leans on an earlier answer needs that answer first. Which do is known when those before it are answered,
so each is checked when it is its turn; those that need an earlier answer are asked anew, as if nothing had been tried.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from desk_rag.answering.conversation.plain_search import is_search
from desk_rag.answering.conversation.scope import without_names
from desk_rag.answering.conversation.turns import Request, Turn, turn_of
from desk_rag.answering.events import AnswerEvent, FilesWaiting, Finished
from desk_rag.errors import DeskRagError
from desk_rag.indexer.resident.client import ResidentEnded
from desk_rag.indexer.resident.protocol import NoResident
from desk_rag.tui.backend import Wanted

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_MOST = 8
"""Maximum number of questions that are asked together, as many as a GPU answers at once."""


class Answering(NamedTuple):
    """An answer that is to be read."""

    turn: int
    events: Iterator[AnswerEvent]


def asked_together(wanted: Sequence[Wanted], first: Request, store: Store) -> list[Request]:
    """Return the request of the first question, and of those right behind it that probably lean on none of them."""
    requests = [first]
    if is_search(first.question):
        return requests
    for before, following in pairwise(wanted[:_MOST]):
        request = replace(first, question=following.question)
        unanswered = Turn(before.question, without_names(before.question), answer="", found=False)
        if is_search(following.question) or not _stands_alone(request, (*first.earlier, unanswered), store):
            break
        requests.append(request)
    return requests


def answers(
    wanted: Iterable[Wanted],
    requests: Sequence[Request],
    several: Generator[Iterator[AnswerEvent], None, None],
    alone: Callable[[Wanted, Sequence[Turn]], Iterator[AnswerEvent]],
    store: Store,
) -> Generator[Answering, None, None]:
    """Yield the answers to `requests`, which `several` gives, as long as each has the words that it has alone.

    `alone` asks a question by itself, after some turns: one whose files are still being read, or that another process
    does not answer. It is then the last.
    """
    turns = list(requests[0].earlier)
    is_alone = False

    def read(one: Wanted, events: Iterator[AnswerEvent]) -> Iterator[AnswerEvent]:
        nonlocal is_alone
        for event in _unless_waiting(events):
            if event is None:
                is_alone = True
                yield from alone(one, turns)
                return
            if isinstance(event, Finished):
                turns.append(turn_of(event.answer))
            yield event

    with closing(several):
        for one, request in zip(wanted, requests, strict=False):
            if is_alone or not _stands_alone(request, turns, store) or (events := next(several, None)) is None:
                return
            yield Answering(one.turn, read(one, events))


def _unless_waiting(events: Iterator[AnswerEvent]) -> Iterator[AnswerEvent | None]:
    """Yield the events; None, as the last, if nothing of the answer is there and files or a process are lacking."""
    has_begun = False
    try:
        for event in events:
            if isinstance(event, FilesWaiting):
                yield None
                return
            has_begun = True
            yield event
    except (NoResident, ResidentEnded):
        if has_begun:
            raise
        yield None


def _stands_alone(request: Request, turns: Sequence[Turn], store: Store) -> bool:
    """Return whether a question is understood after these turns as it is in the request."""
    from desk_rag.answering.conversation.asking import understand

    try:
        after = replace(request, earlier=tuple(turns))
        return after == request or understand(after, store) == understand(request, store)
    except DeskRagError:
        return False  # asked by itself, it says why
