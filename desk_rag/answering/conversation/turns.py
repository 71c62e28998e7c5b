"""One question of a conversation with what later questions may lean on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from desk_rag.answering.conversation.scope import without_names
from desk_rag.answering.events import DOUBT, Answer

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
