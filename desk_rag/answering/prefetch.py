"""Prefetch chunk KV for the next question and neighbouring chunks while an answer decodes.

Prefetching starts after the running answer's first token and never before, so that no answer waits for it. (Overlap of
the next load with the present decode: MatKV, "Trading Compute for Flash Storage in LLM Inference".)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from desk_rag.errors import DeskRagError
from desk_rag.kv.types import KVKey

_log = logging.getLogger(__name__)

_QUIET = 0.05
"""Seconds without a new answer before prefetching starts: a client that queues two questions announces the second one
before the first one has begun."""

PrefetchHint = Callable[[], Sequence[KVKey]]
"""Returns keys of chunk KV that may be needed, the likeliest first. May search the store, so it runs while no answer
is waiting."""


class Prefetcher:
    """Runs the latest hints on its own thread while no answer is waiting for its first token."""

    def __init__(self, prefetch: Callable[[Sequence[KVKey]], None], cancel: Callable[[], None]) -> None:
        self._prefetch, self._cancel = prefetch, cancel
        self._changed = threading.Condition()
        self._answers_waiting = 0
        """Number of answers that have no first token yet."""
        self._question: tuple[str, PrefetchHint] | None = None
        self._neighbours: PrefetchHint | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._idle = True
        self._generation = 0
        """Incremented by `clear`, so that hints started before it are known to be outdated."""

    def prefetch_question(self, question: str, hint: PrefetchHint) -> None:
        """Prefetch for `question`, which is expected next; replaces an earlier question."""
        with self._changed:
            neighbours = self._neighbours
        self._put((question, hint), neighbours)

    def prefetch_neighbours(self, hint: PrefetchHint) -> None:
        """Prefetch the neighbours of the present sources, after what an expected question needs."""
        with self._changed:
            question = self._question
        self._put(question, hint)

    def question_asked(self, question: str) -> None:
        """Drop the hint for `question`, which is being answered now."""
        with self._changed:
            if self._question is not None and self._question[0] == question:
                self._question = None
                self._changed.notify_all()

    def clear(self) -> None:
        """Drop all hints and cancel a running prefetch."""
        with self._changed:
            self._question = self._neighbours = None
            self._generation += 1
            self._changed.notify_all()
        self._cancel()

    @contextmanager
    def paused(self) -> Iterator[Callable[[], None]]:
        """Start nothing until the function yielded here is called, or the block ends."""
        with self._changed:
            self._answers_waiting += 1
            self._changed.notify_all()
        released = False

        def release() -> None:
            nonlocal released
            with self._changed:
                self._answers_waiting -= int(not released)
                released = True
                self._changed.notify_all()

        try:
            yield release
        finally:
            release()

    def settle(self) -> None:
        """Return once every hint so far was prefetched or dropped, or an answer pauses prefetching."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._answers_waiting or (self._idle and not self._has_hints())
            )

    def close(self) -> None:
        """End the thread and cancel a running prefetch."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._cancel()

    def _has_hints(self) -> bool:
        return self._question is not None or self._neighbours is not None

    def _put(self, question: tuple[str, PrefetchHint] | None, neighbours: PrefetchHint | None) -> None:
        with self._changed:
            if self._closed:
                return
            self._question, self._neighbours = question, neighbours
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or (self._has_hints() and not self._answers_waiting))
                if self._changed.wait_for(lambda: self._closed or self._answers_waiting, _QUIET):
                    if self._closed:
                        return
                    continue
                self._idle = False
                hints = [self._question[1]] if self._question else []
                hints += [self._neighbours] if self._neighbours else []
                self._question = self._neighbours = None
                generation = self._generation
            self._run(hints, generation)

    def _run(self, hints: Sequence[PrefetchHint], generation: int) -> None:
        try:
            keys = list(dict.fromkeys(key for hint in hints for key in hint()))
            with self._changed:
                # Outdated if a question was asked meanwhile or there are newer hints.
                current = self._generation == generation and not (
                    self._closed or self._answers_waiting or self._has_hints()
                )
            if current and keys:
                self._prefetch(keys)
                with self._changed:
                    outdated = self._generation != generation
                if outdated:  # cleared between the check and the prefetch, when there was nothing to cancel yet
                    self._cancel()
        except DeskRagError as error:  # the store was closed, or the drive is gone: answers report it themselves
            _log.info("nothing was prefetched: %s", error.message)
        except Exception:
            _log.exception("prefetching failed")
