"""Questions that wait to be answered, in the order in which they were asked."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import NamedTuple

from desk_rag.tui.backend import Wanted
from desk_rag.tui.widgets.answer_view import AnswerView


class Job(NamedTuple):
    """A turn that is to be answered, or to be answered both ways."""

    view: AnswerView
    comparing: bool = False


class Queue(deque[Job]):
    """The turns that wait."""

    def withdraw(self, view: AnswerView) -> None:
        """Take a turn out."""
        kept = [job for job in self if job.view is not view]
        self.clear()
        self.extend(kept)

    def questions(self) -> tuple[Wanted, ...]:
        """Return the questions that can be asked together with the one that is asked now."""
        return tuple(Wanted(job.view.turn, job.view.question) for job in takewhile(lambda job: not job.comparing, self))

    def take(self, turn: int | None) -> Job | None:
        """Take out the first if it is this turn, to be answered; None if it is another, or was withdrawn."""
        return self.popleft() if self and self[0].view.turn == turn and not self[0].comparing else None
