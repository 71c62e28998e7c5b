"""Retrieve chunks and prefer those that have the names, numbers and dates of the question.

Words and vectors rank the minutes of 2023 and those of 2024 alike. Comparing what the question names with a few more
chunks than are read takes about two milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.retrieval.search import RetrievedChunk, retrieve

if TYPE_CHECKING:
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store

DEPTH = 24
"""Chunks among which the right one nearly always is."""
_COMPARED = 16
"""Chunks whose texts are compared before the first token."""
_FACTORS = {Fit.STATED: 1.0, Fit.NEARBY: 1.0, Fit.MISSING: 0.5, Fit.OTHER: 0.35}
"""Share of its fused score that a chunk keeps for each requirement; see bench/LOG.md, "Requirements of a question"."""


def nearest(
    store: Store, embedder: EmbedderLike | None, question: str, limit: int, under: Sequence[Path] = ()
) -> list[RetrievedChunk]:
    """Return at most `limit` chunks, best first, see `retrieve`."""
    requirements = Requirements(question)
    if not requirements:
        return retrieve(store, embedder, question, limit, under)
    chunks = retrieve(store, embedder, question, max(_COMPARED, limit), under)
    return sorted(chunks, key=lambda chunk: -chunk.score * factor(requirements, chunk))[:limit]


def factor(requirements: Requirements, chunk: RetrievedChunk) -> float:
    """The share of its score that a chunk keeps."""
    share = 1.0
    for fit in requirements.chunk_fits(place_of_passage(chunk.passage)):
        share *= _FACTORS[fit]
    return share
