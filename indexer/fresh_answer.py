"""Answer a question from files as they are now: look for changes, read small ones, wait for a first index.

Where the index lacks files all the same, the answer says so, and a refusal names the share of files it speaks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.conversation import asking
from desk_rag.answering.conversation.turns import Request
from desk_rag.answering.events import (
    Answer,
    AnswerEvent,
    AnswerMode,
    AnswerText,
    FilesWaiting,
    Finished,
    FirstToken,
    Stage,
)
from desk_rag.errors import DeskRagError
from desk_rag.ingest import contents, deletions, freshness
from desk_rag.ingest.freshness import Backlog
from desk_rag.ingest.pipeline import embed_pending
from desk_rag.model.prompt import NO_ANSWER

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.config import IndexSettings

_EVERY = 0.3
"""Seconds between two looks while an answer waits for files."""
_STILL_SECONDS = 90.0
"""Time without a file read after which an answer waits no longer; reading the slowest file may take 60 s."""
_EMBED_SECONDS = 0.5
"""Time for the vectors of files that were read for this answer; the rest of them are found by words."""


def ask(
    engine: AnswerEngine,
    request: Request,
    stop: Callable[[], bool],
    *,
    wait: Callable[[], bool] = lambda: True,
    is_reading: Callable[[], bool] | None = None,
    hints: Iterable[Path] = (),
    index: IndexSettings | None = None,
) -> Iterator[AnswerEvent]:
    """Yield FilesWaiting while files are being read, then the events of `asking.ask`.

    Raises `scope.UnknownName`, or DeskRagError if nothing could be read, before its first event other than
    FilesWaiting.

    Args:
        stop: ends the waiting, and the answer between two tokens.
        wait: asked while files are being read; False answers from what has been read so far.
        is_reading: whether another thread or process is reading new files; by default the writer's activity tells.
        hints: paths that are known to have changed.
        index: settings by which files are read; by default those that the engine was opened with.
    """
    began, under, index = time.perf_counter(), request.limit or request.under, index or engine.settings.index
    backlog = _read_small(engine, freshness.look(engine.store, under, index, hints=hints), index, stop)
    if backlog.excluded:
        deletions.wait_until_taken_out(engine.store, backlog.excluded, stop)
    looked = time.perf_counter() - began
    is_reading = is_reading or (lambda: freshness.is_reading(engine.store))
    moved_at, unread = time.monotonic(), len(backlog.new)
    while (
        _lacks_files(backlog)
        and wait()
        and is_reading()
        and not stop()
        and time.monotonic() < moved_at + _STILL_SECONDS
    ):
        yield FilesWaiting(backlog)
        time.sleep(_EVERY)
        backlog = freshness.look(engine.store, under, index)
        if len(backlog.new) != unread:
            moved_at, unread = time.monotonic(), len(backlog.new)
    if not backlog.files and backlog.complete:
        contents.check_not_empty(engine.store, under, contents.ask_remedy(engine.settings))
    events = asking.ask(engine, request, stop)
    yield from _amended(events, backlog, Stage("look", looked))


def ask_all(
    engine: AnswerEngine,
    requests: Sequence[Request],
    stop: Callable[[], bool],
    ask_one: Callable[[AnswerEngine, Request], Iterator[AnswerEvent]],
) -> Generator[Iterator[AnswerEvent], None, None]:
    """Yield the events of each answer, in the order of the requests; read those of one before going on to the next.

    `ask_one` asks one of them. On a GPU up to eight are answered at once (`answering.together`); elsewhere one after
    the other, and what a question needs is loaded while the one before it is being answered. Ends early once `stop`
    holds. An answer's error is raised where its events are read, and ends no other.
    """
    from desk_rag.answering.together.asking import Together

    are_cached = all(request.mode is AnswerMode.CACHED for request in requests)
    together = Together.of(engine, len(requests)) if are_cached else None
    if together is None:
        yield from _in_turn(engine, requests, stop, ask_one)
        return

    def asking_of(request: Request) -> Callable[[AnswerEngine], Iterator[AnswerEvent]]:
        return lambda engine: ask_one(engine, request)

    for start in range(0, len(requests), together.most):
        with together.answering([asking_of(each) for each in requests[start : start + together.most]]) as answers:
            for events in answers:
                if stop():
                    return
                yield events


def _in_turn(
    engine: AnswerEngine,
    requests: Sequence[Request],
    stop: Callable[[], bool],
    ask_one: Callable[[AnswerEngine, Request], Iterator[AnswerEvent]],
) -> Generator[Iterator[AnswerEvent], None, None]:
    for request, following in zip(requests, [*requests[1:], None], strict=True):
        if stop():
            return
        if following is not None and following.mode is AnswerMode.CACHED:
            try:
                next_one = asking.understand(following, engine.store)
                engine.prefetch(next_one.asked, top_k=following.top_k, under=next_one.under)
            except DeskRagError:
                pass  # said when it is its turn
        yield ask_one(engine, request)


def _lacks_files(backlog: Backlog) -> bool:
    """Return whether files were never read, or none was and the look has not come to any."""
    return bool(backlog.new) or not (backlog.read or backlog.complete)


def _read_small(
    engine: AnswerEngine, backlog: Backlog, index: IndexSettings, stop: Callable[[], bool]
) -> Backlog:
    """Read a few small files and make their vectors, and forget those that are gone; only the writer can."""
    store, prompt = engine.store, engine.model.prompt
    if not (backlog.waiting or backlog.is_due) or not store.writer:
        return backlog
    left = freshness.read_small(store, backlog, prompt, prompt.chunk_size, index, stop)
    end = time.monotonic() + _EMBED_SECONDS
    if left.waiting < backlog.waiting:
        for _ in embed_pending(store, engine.embedder, lambda: stop() or time.monotonic() > end):
            pass
    return left


def _amended(events: Iterable[AnswerEvent], backlog: Backlog, look: Stage) -> Iterator[AnswerEvent]:
    """Add the time of the look and what the index lacked to the events of an answer."""
    refusal = NO_ANSWER if not backlog.share else f"{NO_ANSWER.removesuffix('.')} read so far ({backlog.share})."
    refusal_begin, any_text = "", False  # the beginning of what may become a refusal is not passed on yet
    for event in events:
        match event:
            case AnswerText(text=text) if refusal != NO_ANSWER and NO_ANSWER.startswith(refusal_begin + text):
                refusal_begin += text
                continue
            case AnswerText():
                any_text = True
            case FirstToken(timings=timings):
                event = FirstToken(replace(timings, stages=(look, *timings.stages)))
            case Finished(answer=answer):
                event = Finished(_with_backlog(answer, backlog, look, refusal))
                if not (refusal_begin or any_text or answer.citations or answer.stopped):
                    yield AnswerText(event.answer.text)  # nothing was retrieved, so that no model was run
        if refusal_begin:
            yield AnswerText(refusal if refusal_begin == NO_ANSWER else refusal_begin)
            refusal_begin, any_text = "", True
        yield event


def _with_backlog(answer: Answer, backlog: Backlog, look: Stage, refusal: str) -> Answer:
    timings = answer.timings
    first_text = None if timings.first_text is None else look.seconds + timings.first_text
    return replace(
        answer,
        text=refusal if answer.text == NO_ANSWER else answer.text,
        timings=replace(timings, stages=(look, *timings.stages), first_text=first_text),
        notices=(*backlog.notices, *answer.notices),
        backlog=backlog if backlog.waiting else None,
    )
