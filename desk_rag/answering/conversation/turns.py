"""A question of a conversation, before its answer and after, with what it or later questions may lean on.

Imports little: a process that only has a question answered by another one needs nothing else of this folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from desk_rag.answering.conversation.scope import mentions, without_names
from desk_rag.answering.events import DOUBT, Answer, AnswerMode

_T = TypeVar("_T")
_MARK = re.compile(r" ?\[(?:\d{1,3}|\?)\]")
"""Marks behind the sentences of an answer: [2], [?]."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that was answered or refused."""

    question: str
    """As the user wrote it."""
    asked: str
    """As it was searched: rewritten to stand alone, or the same."""
    answer: str
    found: bool
    quotes: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    """The quoted files, without repetition."""
    headings: tuple[str, ...] = ()
    """Title or heading of each quoted passage."""
    limited_to: tuple[Path, ...] = ()
    """Folders and files that the question was limited to by '@' names."""


@dataclass(frozen=True, slots=True)
class Request:
    """A question as the user wrote it, with what surrounds it."""

    question: str
    earlier: tuple[Turn, ...] = ()
    """Turns of the same conversation, oldest first."""
    under: tuple[Path, ...] = ()
    """Folders of the session, below which everything is searched; empty for the whole index."""
    limit: tuple[Path, ...] = ()
    """Folders and files to which the user limited this question; '@' names in it are looked for below them."""
    asked_as: str = ""
    """The user's own correction of the rewritten question; empty to have it rewritten."""
    mode: AnswerMode = AnswerMode.CACHED
    top_k: int | None = None

    @property
    def shown_from(self) -> tuple[Path, ...]:
        """The folders to which paths are shown relative: those of this question, or those that its chat began with."""
        whole = (turn.limited_to for turn in self.earlier if not mentions(turn.question))
        return self.limit or next(filter(None, whole), ())


def turn_of(answer: Answer) -> Turn:
    """Return what later questions may lean on in a finished answer."""
    cited = {citation.source_number for citation in answer.citations}
    sources = [source for source in answer.sources if source.number in cited]
    return Turn(
        question=answer.question,
        asked=answer.asked_as or without_names(answer.question),
        answer=without_marks(answer.text),
        found=answer.found,
        quotes=tuple(citation.quote for citation in answer.citations),
        paths=unique([source.path for source in sources]),
        headings=unique([source.location.heading or source.title for source in sources]),
        limited_to=answer.limited_to,
    )


def without_marks(text: str) -> str:
    """Return the words of an answer, without the numbers of its passages and without a word of doubt."""
    return _MARK.sub("", text.removesuffix(f"\n({DOUBT})"))


def unique(values: Sequence[_T]) -> tuple[_T, ...]:
    """Return the values in order, each once."""
    return tuple(dict.fromkeys(values))
