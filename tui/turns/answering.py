"""Ask the backend in a worker thread and post its events as messages; AnswerOver always comes last."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from desk_rag.answering.events import AnswerText
from desk_rag.errors import Cancelled, DeskRagError
from desk_rag.tui import messages as m
from desk_rag.tui.backend import Backend, Wanted
from desk_rag.tui.turns.comparison import compare

if TYPE_CHECKING:
    from desk_rag.tui.turns.together import Answering

_LOOK_SECONDS = 0.05
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asking:
    """The backend and how to talk with whoever asked."""

    backend: Backend
    tell: Callable[[Message], None]
    stop: Callable[[], bool]
    wait: Callable[[], bool]
    """False once the user does not want to wait for files."""

    def answer(self, wanted: m.AnswerWanted) -> None:
        """Answer a question, and those behind it that are answered together with it, as long as they are wanted."""
        turn, following = wanted.turn, (Wanted(wanted.turn, wanted.question), *wanted.following)
        answers = self.backend.ask_all(following, self.stop, wait=self.wait, earlier=wanted.earlier)
        with closing(answers):
            then = self._told(turn, answers, answers)
            while then is not None:
                then = self._told(then.turn, (then,), answers)

    def _told(
        self, turn: int, told: Iterable[Answering], answers: Generator[Answering, None, None]
    ) -> Answering | None:
        """Tell the first of `told` and how it ended; return the next answer that is wanted, None if there is none."""
        then: Answering | None = None
        try:
            for answering in told:  # none if it was stopped before it began
                self._tell_events(answering)
                break
            if not self.stop():
                then = next(answers, None)
        except Cancelled:
            _LOG.info("an answer was stopped")
        except Exception as error:
            if isinstance(error, DeskRagError):  # its message may hold what was typed
                _LOG.warning("an answer failed: %s", type(error).__name__)
            else:
                _LOG.exception("an answer failed")
            self.tell(m.AnswerFailed(turn, m.Problem.of(error)))
        over = m.AnswerOver(turn, None if then is None else then.turn)
        self.tell(over)
        return then if then is not None and self._goes_on(over.goes_on) else None

    def _tell_events(self, answering: Answering) -> None:
        turn, text = answering.turn, ""
        for event in answering.events:
            if isinstance(event, AnswerText):
                text += event.text
                self.tell(m.AnswerGrew(turn, text))
            else:
                self.tell(m.AnswerEventCame(turn, event))

    def _goes_on(self, reply: Future[bool]) -> bool:
        while not self.stop():
            with suppress(TimeoutError):
                return reply.result(_LOOK_SECONDS)
        return False

    def compare(self, wanted: m.ComparisonWanted) -> None:
        """Answer a question both ways; if that fails, the answer that is there stays."""
        turn = wanted.turn
        try:
            done = compare(
                self.backend, wanted.question, self.stop, lambda text: self.tell(m.ComparisonStep(turn, text))
            )
            self.tell(m.ComparisonCame(turn, done))
        except Cancelled:
            _LOG.info("a comparison was stopped")
        except Exception as error:
            _LOG.exception("a comparison failed")
            self.tell(m.ComparisonFailed(turn, m.Problem.of(error)))
        finally:
            self.tell(m.AnswerOver(turn))
