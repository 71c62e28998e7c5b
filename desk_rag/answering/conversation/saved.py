"""Turn answers into saved turns and back, and say which saved sources have changed since."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from desk_rag.answering.conversation.scope import without_names
from desk_rag.answering.conversation.small_talk import kind_of
from desk_rag.answering.conversation.turns import Turn, unique, without_marks
from desk_rag.answering.events import Answer, Source
from desk_rag.answering.writing.remarks import kept_notices, searched_only
from desk_rag.store.chats.records import SavedSource, SavedTurn
from desk_rag.store.types import DocumentRow


class Change(Enum):
    """A change of a saved source's file since the answer."""

    NONE = ""
    CHANGED = "changed since"
    GONE = "gone"


def is_kept(answer: Answer) -> bool:
    """Return whether an answer belongs into a saved chat: searches, greetings and lines without a word do not."""
    return not answer.is_search and kind_of(answer.question) is None


def saved_turn(answer: Answer) -> SavedTurn:
    """Return what is saved of an answer: no passage texts, only what was quoted."""
    quotes: dict[int, list[SavedSource]] = {}
    by_number = {source.number: source for source in answer.sources}
    for citation in answer.citations:
        source = by_number[citation.source_number]
        saved = SavedSource(
            source.number, citation.path, source.title, citation.location, str(citation.location), citation.quote,
            source.digest,
        )  # fmt: skip
        quotes.setdefault(source.number, []).append(saved)
    sources = [saved for source in answer.sources for saved in quotes.get(source.number) or [_unquoted(source)]]
    return SavedTurn(
        question=answer.question,
        asked_as=answer.asked_as,
        answer=answer.marked_text,
        found=answer.found,
        stopped=answer.stopped,
        model=answer.model,
        mode=answer.mode.value,
        asked_at=time.time(),
        sources=tuple(sources),
        limited_to=answer.limited_to,
        notices=tuple(" ".join(notice.split()) for notice in (*_narrowed(answer), *kept_notices(answer))),
    )


def turn_from(saved: SavedTurn) -> Turn:
    """Return what a follow-up may lean on in a saved turn."""
    quoted = [source for source in saved.sources if source.quote]
    return Turn(
        question=saved.question,
        asked=saved.asked_as or without_names(saved.question),
        answer="" if saved.forgotten else without_marks(saved.answer),
        found=saved.found and not saved.forgotten,
        quotes=tuple(source.quote for source in quoted),
        paths=unique([source.path for source in quoted]),
        headings=unique([source.location.heading or source.title for source in quoted]),
        limited_to=saved.limited_to,
    )


def change_of(source: SavedSource, document: Callable[[Path], DocumentRow | None]) -> Change:
    """Compare a saved source with its file; `document` returns the row of the catalog for a path."""
    try:
        status = source.path.stat()
    except OSError:
        return Change.GONE
    row = document(source.path)
    if row is None or not source.digest:
        return Change.NONE if row is not None else Change.CHANGED
    same_file = (status.st_size, status.st_mtime_ns) == (row.stamp.size, row.stamp.mtime_ns)
    return Change.NONE if same_file and row.digest == source.digest else Change.CHANGED


def _narrowed(answer: Answer) -> tuple[str, ...]:
    """Return which files alone were searched because the question names them."""
    return (searched_only(answer, ()),) if answer.narrowed else ()


def _unquoted(source: Source) -> SavedSource:
    return SavedSource(
        source.number, source.path, source.title, source.location, str(source.location), "", source.digest
    )
