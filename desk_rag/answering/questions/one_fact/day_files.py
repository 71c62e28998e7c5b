"""Answer when something was done from a diary with a file for each day, whose text does not say the day again.

The span scorer reads each entry with the date of its file in front: '10 November 2023: Library annex. Completed.'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer, AnswerEvent, AnswerText, Evidence, Finished, Retrieved
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.one_fact.rewriting import DOUBTED, numbered_after
from desk_rag.answering.questions.whole_folder import show
from desk_rag.answering.requirements.dates import dates, in_words
from desk_rag.answering.requirements.places import Place, place_of_passage
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.answering.requirements.statements.dated_lines import day_in_name
from desk_rag.answering.requirements.statements.standing import asks_when_done, only_planned
from desk_rag.documents.sentences import quotable
from desk_rag.retrieval.search import retrieve
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store

_DEPTH = 24
_LONGEST_LINE = 240
"""Characters of a line that is quoted whole; of a longer one, each sentence is looked at by itself."""
_LEAST_LOG_ODDS, _CONVINCING = 0.0, 2.0
"""Span score from which an entry answers, and from which it does so without a doubt; see bench/LOG.md."""


@dataclass(frozen=True, slots=True)
class _Entry:
    row: Row
    day: str
    log_odds: float


def by_day_files(
    events: Iterator[AnswerEvent],
    store: Store,
    question: str,
    under: Sequence[Path],
    *,
    embedder: EmbedderLike,
    span_scorer: SpanScorerLike,
) -> Iterator[AnswerEvent]:
    """Pass an answer on; one that is missing, doubtful or of a plan gives way to an entry of a diary that answers."""
    if not asks_when_done(question):
        yield from events
        return
    held_back: list[AnswerEvent] = []
    for event in events:
        if not isinstance(event, Finished):
            held_back.append(event)
            continue
        done = event.answer
        is_plan = done.found and bool(done.citations) and only_planned(done.citations[0].quote)
        is_sure = done.found and not done.doubtful and not is_plan
        entry = None if is_sure or done.stopped else _entry(store, question, under, embedder, span_scorer)
        if entry is None:
            yield from (*held_back, event)
        else:
            yield from _answered(store, done, entry, planned=is_plan)


def _answered(store: Store, done: Answer, entry: _Entry, *, planned: bool) -> Iterator[AnswerEvent]:
    """The day of an entry, with its quote; the quote of a plan stays beside it."""
    shown = show(store, [entry.row])
    sources, citations = numbered_after(done, shown.sources, shown.citations)
    notices = [f"The day is in the name of {clean_name(entry.row.passage.path.name)}"]
    if planned:
        citations = (*citations, done.citations[0])
        plan = done.citations[0]
        notices.append(f"{clean_name(plan.path.name)} says what was planned, see [{plan.source_number}]")
    support = 1 / (1 + math.exp(-entry.log_odds))
    support = support if entry.log_odds >= _CONVINCING else min(support, DOUBTED)
    yield Retrieved(sources)
    for citation in citations:
        yield Evidence(citation, support)
    yield AnswerText(entry.day)
    yield Finished(
        replace(
            done, found=True, text=entry.day, sources=sources, citations=citations, support=support,
            unmet=(), notices=tuple(notices),
        )
    )  # fmt: skip


def _entry(
    store: Store, question: str, under: Sequence[Path], embedder: EmbedderLike, span_scorer: SpanScorerLike
) -> _Entry | None:
    """The line of a day's file that answers best; None if none answers."""
    requirements = Requirements(question)
    rows: list[tuple[Row, str]] = []
    for chunk in retrieve(store, embedder, question, _DEPTH, under):
        place = place_of_passage(chunk.passage)
        days = dates(day_in_name(place))
        if not days or requirements.unmet(place, place.body, len(place.text)):
            continue
        rows += [(Row(chunk.passage, line), in_words(days[0])) for line in _lines(place.text[place.body :])]
    scores = span_scorer.read(question, [Place(f"{day}: {row.text}", "", 0) for row, day in rows]) if rows else []
    entries = [
        _Entry(row, day, of_row.log_odds(0, len(f"{day}: {row.text}")))
        for (row, day), of_row in zip(rows, scores, strict=True)
    ]
    best = max(entries, key=lambda entry: entry.log_odds, default=None)
    return best if best is not None and best.log_odds >= _LEAST_LOG_ODDS else None


def _lines(text: str) -> Iterator[str]:
    for line in filter(str.strip, text.split("\n")):
        yield from [line] if len(line) <= _LONGEST_LINE else quotable(line)
