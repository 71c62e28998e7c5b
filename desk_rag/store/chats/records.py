"""Records of saved chats."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from desk_rag.documents.chunking import Location


@dataclass(frozen=True, slots=True)
class SavedSource:
    """A passage that an answer read, or one quote from it."""

    number: int
    path: Path
    title: str
    location: Location
    place: str
    """The place as it was shown: 'lines 3-9', 'p. 4'."""
    quote: str
    """Empty if the answer does not quote the passage."""
    digest: str
    """blake2b-256 of the file as it was indexed, hex; empty if unknown."""


@dataclass(frozen=True, slots=True)
class SavedTurn:
    """A question with its answer."""

    question: str
    asked_as: str
    """The rewritten question; empty if it stood alone."""
    answer: str
    found: bool
    stopped: bool
    model: str
    mode: str
    asked_at: float
    """Unix time."""
    sources: tuple[SavedSource, ...] = ()
    limited_to: tuple[Path, ...] = ()
    forgotten: bool = False
    """Its answer was removed by the `purge` of an older version, which kept the question."""
    notices: tuple[str, ...] = ()
    """Sentences below the answer: documents that say something else, what it may lack."""
    turn_id: int = field(default=0, compare=False)
    """Its row; 0 before it is saved."""


@dataclass(frozen=True, slots=True)
class SavedAs:
    """Place in which a turn was saved."""

    chat_id: int
    turn_id: int


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A chat with all its turns, oldest first."""

    chat_id: int
    title: str
    started_at: float
    changed_at: float
    turns: tuple[SavedTurn, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A chat in a list."""

    chat_id: int
    title: str
    changed_at: float
    num_turns: int
    excerpt: str = ""
    """Text in which the words of a search were found; empty otherwise."""
