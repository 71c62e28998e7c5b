"""Ask the backend in a worker thread and post its events as messages; AnswerOver always comes last."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message

from desk_rag.answering.events import AnswerText
from desk_rag.errors import Cancelled, DeskRagError
from desk_rag.tui import messages as m
from desk_rag.tui.backend import Backend
from desk_rag.tui.turns.comparison import compare

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
        """Answer a question."""
        turn, text = wanted.turn, ""
        try:
            events = self.backend.ask(
                wanted.question, self.stop, wait=self.wait, turn=wanted.turn, earlier=wanted.earlier
            )
            for event in events:
                if isinstance(event, AnswerText):
                    text += event.text
                    self.tell(m.AnswerGrew(turn, text))
                else:
                    self.tell(m.AnswerEventCame(turn, event))
        except Cancelled:
            _LOG.info("an answer was stopped")
        except Exception as error:
            if isinstance(error, DeskRagError):  # its message may hold what was typed
                _LOG.warning("an answer failed: %s", type(error).__name__)
            else:
                _LOG.exception("an answer failed")
            self.tell(m.AnswerFailed(turn, m.Problem.of(error)))
        finally:
            self.tell(m.AnswerOver(turn))

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
