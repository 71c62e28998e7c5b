"""Put final documents before drafts, copies and superseded ones, and mark answers that rest on one of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer, AnswerEvent, Finished, Retrieved
from desk_rag.answering.questions.disagreement.look_alikes import are_alike
from desk_rag.answering.questions.disagreement.newest import Writing, asks_in_present, days_of, newest
from desk_rag.answering.questions.narrowing import indexed
from desk_rag.answering.questions.one_fact.rewriting import doubted, source_quoted
from desk_rag.answering.questions.second_look import finished
from desk_rag.answering.requirements.places import place_of_passage, place_of_source
from desk_rag.answering.requirements.statements.drafts import asks_of_draft, is_draft
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_MOST_FINALS = 20
"""Documents much like a draft that are read in its place; more are a collection."""


def finals_first(
    ask: Callable[[Sequence[Path]], Iterator[AnswerEvent]], store: Store, question: str, under: Sequence[Path]
) -> Iterator[AnswerEvent]:
    """Pass the answer of `ask` on; where it quotes a draft, that from documents much like it which are none.

    Events wait for the end only if a draft is among the passages that were read.
    """
    held, holds = list[AnswerEvent](), False
    for event in ask(under):
        holds = holds or (isinstance(event, Retrieved) and any(is_draft(place_of_source(one)) for one in event.sources))
        if not holds or asks_of_draft(question):
            yield event
        else:
            held.append(event)
    draft = _draft_quoted(finished(held)) if held else None
    finals = [] if draft is None else _finals(store, draft, question)
    from_finals = list(ask(finals)) if finals else []
    yield from from_finals if from_finals and finished(from_finals).found else held


def marked(events: Iterator[AnswerEvent], question: str) -> Iterator[AnswerEvent]:
    """Pass an answer on; one whose first quote is from a draft is doubtful, unless the question asks for the draft."""
    for event in events:
        path = _draft_quoted(event.answer) if isinstance(event, Finished) and not asks_of_draft(question) else None
        if isinstance(event, Finished) and path is not None:
            notice = f"By its name or title, {clean_name(path.name)} is a draft, a copy or superseded"
            event = Finished(doubted(event.answer, notice))
        yield event


def _draft_quoted(done: Answer) -> Path | None:
    """The draft that an answer quotes first; None if that is none."""
    source = source_quoted(done) if done.found else None
    return source.path if source is not None and is_draft(place_of_source(source)) else None


def _finals(store: Store, draft: Path, question: str) -> list[Path]:
    """The documents beside a draft, called much like it, that are none; the newest alone for what holds now."""
    own = store.document(draft)
    alike = [row for row in indexed(store, [draft.parent]) if own is not None and are_alike(own, row)]
    if len(alike) > _MOST_FINALS:
        return []
    first = {row.path: store.passages_of(row.path)[:1] for row in alike if row.path != draft}
    paths = [path for path, passages in first.items() if passages and not is_draft(place_of_passage(passages[0]))]
    latest = newest(days_of(store, map(Writing, paths))) if asks_in_present(question) and paths else None
    return paths if latest is None else [latest.path]
