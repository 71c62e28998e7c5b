"""Choose chunks among more than are read at first, by the span scorer's own judgement of each.

Ranks of words and vectors put the right chunk among the first 24 nearly always, among the first 5 less often. Scoring a
chunk takes some 20 ms on a CPU, and twice that by the deeper pointer, which reads the best of them too; so this is for
questions whose first reading did not convince.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer, AnswerEvent, Evidence, Finished, FirstToken, Retrieved
from desk_rag.answering.questions.nearest import DEPTH, factor, nearest, of_form
from desk_rag.answering.requirements.objections import definition_asked
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.retrieval.search import RetrievedChunk, retrieve

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike, SpanScores
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store

_CONVINCING = 0.5
"""Support from which an answer needs no second look; see "A second look" in bench/LOG.md."""
_RANK_WEIGHT = 2.0
"""Weight of the log of the fused score against the log-odds of an answer; see "A second look" in bench/LOG.md."""
_FAVOUR = 6.0
"""Log-odds that a chunk gains if the question names its file."""

_UNMET_WEIGHT = 5.0
"""Weight of the log of the share that `nearest.factor` leaves a chunk."""
_CLOSELY = 8
"""Chunks that both pointers read; see "A deeper pointer in the second look" in bench/LOG.md."""


@dataclass(frozen=True, slots=True)
class SecondLook:
    """Chooses the chunks that most likely answer a question, of the nearest ones."""

    store: Store
    span_scorer: SpanScorerLike
    limit: int
    under: Sequence[Path] = ()
    context: str = ""
    """Further words to find chunks by."""
    favoured: Sequence[Path] = ()
    """Files that the question names: their chunks are looked at too, and preferred."""

    def __call__(self, embedder: EmbedderLike, question: str) -> list[RetrievedChunk]:
        """The `limit` best chunks, best first."""
        sought = f"{question} {self.context}".strip()
        chunks = retrieve(self.store, embedder, sought, max(DEPTH, self.limit), self.under)
        if self.favoured:
            chunks += retrieve(self.store, embedder, sought, DEPTH // 2, self.favoured)
        if definition_asked(question):  # it may stand among more chunks than can be scored
            chunks += nearest(self.store, embedder, sought, self.limit, self.under)
        by_id = {chunk.passage.chunk.chunk_id: chunk for chunk in chunks}  # a favoured chunk replaces its double
        requirements = Requirements(question)
        best = self._ranked(question, list(by_id.values()), requirements, closely=False)[: max(_CLOSELY, self.limit)]
        chosen = self._ranked(question, best, requirements, closely=True)[: self.limit]
        return [replace(chunk, closely=True) for chunk in chosen]

    def _ranked(
        self, question: str, chunks: Sequence[RetrievedChunk], requirements: Requirements, *, closely: bool
    ) -> list[RetrievedChunk]:
        """The chunks, best first."""
        places = [place_of_passage(chunk.passage, closely=closely) for chunk in chunks]
        odds = [
            self._odds(chunk, scores, requirements) + _UNMET_WEIGHT * math.log(of_form(question, chunk))
            for chunk, scores in zip(chunks, self.span_scorer.read(question, places), strict=True)
        ]
        return [chunk for _, chunk in sorted(zip(odds, chunks, strict=True), key=lambda each: -each[0])]

    def _odds(self, chunk: RetrievedChunk, scores: SpanScores, requirements: Requirements) -> float:
        favour = _FAVOUR if chunk.passage.path in self.favoured else 0.0
        unmet = -_UNMET_WEIGHT * math.log(factor(requirements, chunk))
        return scores.log_odds(0, len(chunk.passage.chunk.text)) + _RANK_WEIGHT * math.log(chunk.score) + favour - unmet


@dataclass(frozen=True, slots=True)
class Unconvincing:
    """A reading that found nothing, or something doubtful, with the events that were held back."""

    found: bool
    support: float | None
    events: tuple[AnswerEvent, ...]


def convincing(events: Iterator[AnswerEvent]) -> Generator[AnswerEvent, None, Unconvincing | None]:
    """Pass on the events of a convincing answer; hold those of another back and return it."""
    held_back: list[AnswerEvent] = []
    passing = False
    for event in events:
        if isinstance(event, Retrieved | FirstToken):
            yield event
            continue
        if isinstance(event, Evidence) and (event.support is None or event.support >= _CONVINCING):
            passing = True
            yield from held_back
            held_back = []
        if isinstance(event, Finished) and (event.answer.stopped or not event.answer.sources):
            passing = True
            yield from held_back
        if passing:
            yield event
        else:
            held_back.append(event)
    if passing:
        return None
    done = finished(held_back)
    return Unconvincing(done.found, done.support, tuple(held_back))


def finished(events: Sequence[AnswerEvent]) -> Answer:
    """The answer that the last of its events holds."""
    last = events[-1]
    assert isinstance(last, Finished)
    return last.answer
