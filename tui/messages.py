"""Textual messages around the two event streams. Workers post them; handlers on the main thread own all state.

Those that only say how far something has come define `can_replace`, so that a flood collapses into one redraw.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from textual.message import Message

from desk_rag.answering.conversation.turns import Turn
from desk_rag.answering.events import AnswerEvent, Source
from desk_rag.documents.chunking import Chunk, Location
from desk_rag.errors import told_to_user
from desk_rag.ingest.events import IndexEvent, StageProgress
from desk_rag.tui.backend import Started, Status, Wanted
from desk_rag.tui.turns.comparison import Comparison


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as the user sees it: what happened and what to do about it."""

    message: str
    remedy: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """Return message and remedy of `error`; an unexpected one points to the log instead of a traceback."""
        known = told_to_user(error) if isinstance(error, Exception) else None
        if known is not None:
            return cls(known.message, known.remedy)
        return cls(
            f"Something went wrong inside desk-rag ({type(error).__name__}: {error}).",
            "The details are in the log file named under F1. Asking again is safe.",
        )


# From the screen to the app ---------------------------------------------------------------------------------


@dataclass
class AnswerWanted(Message):
    """A question is next in line."""

    turn: int
    question: str
    earlier: tuple[Turn, ...] = ()
    """Turns above it, which it may lean on."""
    following: tuple[Wanted, ...] = ()
    """Questions that wait behind it, which may be asked together with it."""


class HasteWanted(Message):
    """The running answer should not wait for files any longer."""


@dataclass
class ComparisonWanted(Message):
    """An answered question should be asked both ways."""

    turn: int
    question: str


@dataclass
class QuestionExpected(Message):
    """Notice that this question waits for the one that is being answered."""

    question: str


@dataclass
class StopWanted(Message):
    """The running answer should end where it is."""


@dataclass
class DocumentWanted(Message):
    """The preview shows a chunk of this file and wants its neighbours."""

    path: Path


@dataclass
class PauseWanted(Message):
    """Request to pause background work for this many seconds; None ends the pause."""

    seconds: float | None


@dataclass
class OpenWanted(Message):
    """A source should be opened in the user's own program."""

    source: Source
    location: Location
    """Place of the quote, or else of the source."""
    quote: str


@dataclass
class TextWanted(Message):
    """The text of a source's document should be shown, at the quote."""

    source: Source
    quote: str


@dataclass
class StartWanted(Message):
    """The backend did not start, and should try again: another model was chosen, or there is room by now."""


@dataclass
class FolderWanted(Message):
    """Request to choose a folder, because there is none to answer from."""


@dataclass
class Undone(Message):
    """A change made in the library was taken back."""


# From workers to the screen ----------------------------------------------------------------------------------


@dataclass
class Loading(Message):
    """The backend is on its way up."""

    text: str

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Loading)


@dataclass
class BackendReady(Message):
    started: Started


@dataclass
class BackendFailed(Message):
    problem: Problem
    is_model: bool = False
    """Another model may help."""


@dataclass
class StatusCame(Message):
    status: Status

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, StatusCame)


@dataclass
class IndexEventCame(Message):
    event: IndexEvent

    def can_replace(self, message: Message) -> bool:
        return (
            isinstance(message, IndexEventCame)
            and isinstance(self.event, StageProgress)
            and isinstance(message.event, StageProgress)
            and self.event.stage is message.event.stage
        )


@dataclass
class AnswerEventCame(Message):
    """Any answer event but a piece of text."""

    turn: int
    event: AnswerEvent


@dataclass
class AnswerGrew(Message):
    """All of the answer's text so far. Whole rather than a piece, so that a newer one can replace it."""

    turn: int
    text: str

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, AnswerGrew) and message.turn == self.turn


@dataclass
class ComparisonStep(Message):
    """The step of the comparison that has begun."""

    turn: int
    text: str


@dataclass
class ComparisonCame(Message):
    turn: int
    comparison: Comparison


@dataclass
class ComparisonFailed(Message):
    turn: int
    problem: Problem


@dataclass
class AnswerFailed(Message):
    turn: int
    problem: Problem


@dataclass
class AnswerOver(Message):
    """The last message of every turn, however it ended."""

    turn: int
    then: int | None = None
    """The turn that was asked together with it and would be told next; its sender waits for `goes_on`."""
    goes_on: Future[bool] = field(default_factory=Future)
    """Whether that turn is still wanted."""


@dataclass
class BacklogCame(Message):
    """Files that are not read yet."""

    new: frozenset[Path]


@dataclass
class DocumentCame(Message):
    path: Path
    chunks: Sequence[Chunk]
