"""While one answer decodes, what the next question and the neighbouring chunks need is brought nearer.

Knows when: after the running answer's first token and never before, so that no answer waits for a guess. Knows neither
how chunks are found nor how they are brought; both are handed in. (Overlap of the next load with the present decode:
MatKV, "Trading Compute for Flash Storage in LLM Inference".)
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
"""Seconds without an answer beginning before a guess is carried out: who queues two questions tells of the second one
before the first one has begun."""

Guess = Callable[[], Sequence[KVKey]]
"""Names the KV of chunks that may be wanted, the likeliest first. May search, so it runs when no answer waits."""


class LookAhead:
    """One thread that carries out the latest guess when no answer is on its way to its first token."""

    def __init__(self, bring: Callable[[Sequence[KVKey]], None], call_off: Callable[[], None]) -> None:
        self._bring, self._call_off = bring, call_off
        self._changed = threading.Condition()
        self._pressing = 0
        """Answers that have no first token yet."""
        self._question: tuple[str, Guess] | None = None
        self._beside: Guess | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._idle = True
        self._era = 0
        """Counts what was forgotten, so that a guess begun before is known to be out of date."""

    def question(self, about: str, guess: Guess) -> None:
        """What the next question, `about`, needs; replaces what was guessed before."""
        with self._changed:
            beside = self._beside
        self._put((about, guess), beside)

    def beside(self, guess: Guess) -> None:
        """What lies beside the present sources; comes after what the next question needs."""
        with self._changed:
            question = self._question
        self._put(question, guess)

    def asked(self, about: str) -> None:
        """That question is asked now: there is nothing to be guessed about it any more."""
        with self._changed:
            if self._question is not None and self._question[0] == about:
                self._question = None
                self._changed.notify_all()

    def forget(self) -> None:
        """Nothing is expected any more; what is under way is called off."""
        with self._changed:
            self._question = self._beside = None
            self._era += 1
            self._changed.notify_all()
        self._call_off()

    @contextmanager
    def held_back(self) -> Iterator[Callable[[], None]]:
        """An answer begins: nothing starts until the function yielded here is called, or the block ends."""
        with self._changed:
            self._pressing += 1
            self._changed.notify_all()
        released = False

        def release() -> None:
            nonlocal released
            with self._changed:
                self._pressing -= int(not released)
                released = True
                self._changed.notify_all()

        try:
            yield release
        finally:
            release()

    def settle(self) -> None:
        """Return once every guess so far was carried out or given up, or an answer holds them back."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._pressing or (self._idle and not self._waiting()))

    def close(self) -> None:
        """End the thread; what is under way is called off."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._call_off()

    def _waiting(self) -> bool:
        return self._question is not None or self._beside is not None

    def _put(self, question: tuple[str, Guess] | None, beside: Guess | None) -> None:
        with self._changed:
            if self._closed:
                return
            self._question, self._beside = question, beside
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="look-ahead", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or (self._waiting() and not self._pressing))
                if self._changed.wait_for(lambda: self._closed or self._pressing, _QUIET):
                    if self._closed:
                        return
                    continue
                self._idle = False
                guesses = [self._question[1]] if self._question else []
                guesses += [self._beside] if self._beside else []
                self._question = self._beside = None
                era = self._era
            self._carry_out(guesses, era)

    def _carry_out(self, guesses: Sequence[Guess], era: int) -> None:
        try:
            keys = list(dict.fromkeys(key for guess in guesses for key in guess()))
            with self._changed:
                # Somebody asks meanwhile, or something else is expected: this guess is out of date.
                current = self._era == era and not (self._closed or self._pressing or self._waiting())
            if current and keys:
                self._bring(keys)
                with self._changed:
                    forgotten = self._era != era
                if forgotten:  # between the look and the bringing, when there was nothing yet to be called off
                    self._call_off()
        except DeskRagError as error:  # the store was closed, or the disk is gone: the answers will say so themselves
            _log.info("nothing was read ahead (%s)", error.message)
        except Exception:
            _log.exception("reading ahead failed")
