"""Show a saved turn as if it had just been answered."""

from __future__ import annotations

from collections.abc import Callable

from desk_rag.answering.conversation.saved import Change
from desk_rag.answering.events import Absence, Answer, AnswerMode, Citation, Missing, Source, Timings
from desk_rag.documents.chunking import ChunkId
from desk_rag.store.chats.records import SavedSource, SavedTurn


def answer_of(turn: SavedTurn, change_of: Callable[[SavedSource], Change]) -> Answer:
    """Return a saved turn as an answer whose sources hold only what was quoted."""
    sources: dict[int, Source] = {}
    for saved in turn.sources:
        before = sources.get(saved.number)
        text = "\n".join(part for part in (before.text if before else "", saved.quote) if part)
        change = change_of(saved)
        absence = Absence(Missing.FILE_GONE, 0.0) if change is Change.GONE else None
        sources[saved.number] = Source(
            saved.number, ChunkId(""), saved.path, saved.title, saved.location, text, 0.0, warm=None,
            stale=change is not Change.NONE, digest=saved.digest, absence=absence,
        )  # fmt: skip
    citations = tuple(
        Citation(saved.number, saved.path, saved.location, saved.quote) for saved in turn.sources if saved.quote
    )
    return Answer(
        turn.question, turn.answer, turn.found, citations, (), tuple(sources.values()), Timings(()), 0, 0,
        AnswerMode(turn.mode), turn.model, turn.answer, turn.stopped, asked_as=turn.asked_as,
        limited_to=turn.limited_to, notices=turn.notices,
    )  # fmt: skip
