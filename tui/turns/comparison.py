"""Ask the same question from caches and with full prefill, so that both times are of like runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from desk_rag.answering.events import Answer, AnswerMode, AnswerText, Evidence, Finished
from desk_rag.errors import Cancelled
from desk_rag.tui.backend import Backend

_MOST_TRIES = 3
"""An answer makes its chunks warm, but while the index grows the next one may rest on others."""


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """An answer and when its first words came."""

    answer: Answer
    first_word: float
    """Seconds from the question to the first quote or words."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One question answered both ways, right after each other."""

    cached: TimedAnswer
    full: TimedAnswer

    @property
    def same_words(self) -> bool:
        """True if answer and quotes agree but for white space."""
        return _words(self.cached.answer) == _words(self.full.answer)


def compare(backend: Backend, question: str, stop: Callable[[], bool], report: Callable[[str], None]) -> Comparison:
    """Answer from caches, again if that made cold chunks warm, then with full prefill. Raises Cancelled on `stop`."""
    report("comparing: answering from caches …")
    for _ in range(_MOST_TRIES):
        cached = timed_answer(backend, question, stop, AnswerMode.CACHED)
        if not cached.answer.cold_chunks:
            break
        report("comparing: answering from caches, now that they are warm …")
    report("comparing: reading everything again, for full prefill …")
    return Comparison(cached, timed_answer(backend, question, stop, AnswerMode.FULL))


def timed_answer(backend: Backend, question: str, stop: Callable[[], bool], mode: AnswerMode) -> TimedAnswer:
    """Return the whole answer in one mode. Raises Cancelled if it was stopped."""
    begun, first_word = perf_counter(), None
    for event in backend.ask(question, stop, mode, wait=lambda: False):
        if first_word is None and isinstance(event, Evidence | AnswerText):
            first_word = perf_counter() - begun
        if isinstance(event, Finished) and not event.answer.stopped:
            return TimedAnswer(event.answer, perf_counter() - begun if first_word is None else first_word)
    raise Cancelled("The comparison was stopped.")


def _words(answer: Answer) -> tuple[str, ...]:
    return tuple(" ".join(text.split()) for text in (answer.text, *(one.quote for one in answer.citations)))
