"""A question becomes the chunks most likely to answer it, best first.

Knows how the two searches of the store are fused; knows no files, no language model and no context budget.

Words (BM25 over the question's content words) find names, numbers and error codes; vectors find what is said
in other words. Their ranks are fused by reciprocal rank (Cormack, Clarke, Buettcher: "Reciprocal Rank Fusion
outperforms Condorcet and individual rank learning methods", SIGIR 2009), which needs no common scale of the
two scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.chunking import ChunkId
from desk_rag.store.types import Hit, Passage

if TYPE_CHECKING:
    from desk_rag.retrieval.embedding import Vectors
    from desk_rag.store.store import Store

DEPTH = 100
"""Ranks of each search that take part. Fusion needs about 30; the rest only supplies similarities."""
_COMPARED = 16
"""Nearest vectors whose texts are looked for in the word index, too: it cannot say what it has lost."""
RANK_CONSTANT = 10
WORDS_WEIGHT = 0.55
"""Chosen by the share of 1,803 questions whose chunk is among the first five of 400 (in brackets of 7,962, with
Porter stemming), all-MiniLM-L6-v2. Words alone 85.9 (73.7), vectors alone 82.6 (64.4), the customary constant 60 with
equal weights 89.4 (74.3), constant 10 with 0.55 for words 89.9 (76.9). It is a wide optimum: constants 5 to 20 and
weights 0.5 to 0.6 lie within 0.7 (1.5)."""


@dataclass(frozen=True, slots=True)
class RetrievedChunk:
    """A chunk that may answer the question, and why it was found."""

    passage: Passage
    score: float
    """Fused, in (0, 1]; 1 means first by words and by vectors. Comparable within one question only."""
    words_rank: int | None
    """1-based rank in the word search; None if not among the first DEPTH."""
    vector_rank: int | None
    similarity: float
    """Cosine of question and chunk; 0 where the chunk has no vector yet or is not among the nearest DEPTH."""


@dataclass(slots=True)
class _Candidate:
    score: float = 0.0
    words_rank: int | None = None
    vector_rank: int | None = None
    similarity: float = 0.0


def retrieve(
    store: Store, embedder: Vectors | None, question: str, limit: int, under: Sequence[Path] = ()
) -> list[RetrievedChunk]:
    """Find at most `limit` chunks for `question`, best first, each text once, only from documents under
    `under`.

    Without an embedder, and for chunks that have no vector yet, words alone decide. The order is the same on
    every call: equal scores are ordered by words, then by vectors, then by chunk id. Raises StoreError as the
    store does.
    """
    if limit < 1 or not question.strip():
        return []
    depth = max(DEPTH, 4 * limit)
    words = store.search_words(question, depth, under)
    vectors: list[Hit] = []
    if embedder is not None:
        vectors = store.search_vectors(embedder.fingerprint, embedder.embed_question(question), depth, under)
        store.check_words(question, [hit.chunk_id for hit in vectors[:_COMPARED]])
    fused = _fuse(words, vectors)
    found: list[RetrievedChunk] = []
    for passage, candidate in _distinct(store, fused, under):
        found.append(
            RetrievedChunk(passage, candidate.score, candidate.words_rank, candidate.vector_rank, candidate.similarity)
        )
        if len(found) == limit:
            break
    return found


def _fuse(words: Sequence[Hit], vectors: Sequence[Hit]) -> list[tuple[ChunkId, _Candidate]]:
    """Candidates best first, scores scaled so that first place in every list that was searched is 1."""
    candidates: dict[ChunkId, _Candidate] = {}
    for rank, hit in enumerate(words, start=1):
        candidate = candidates.setdefault(hit.chunk_id, _Candidate())
        candidate.words_rank = rank
        candidate.score += WORDS_WEIGHT * (RANK_CONSTANT + 1) / (RANK_CONSTANT + rank)
    for rank, hit in enumerate(vectors, start=1):
        candidate = candidates.setdefault(hit.chunk_id, _Candidate())
        candidate.vector_rank = rank
        candidate.similarity = hit.score
        candidate.score += (1 - WORDS_WEIGHT) * (RANK_CONSTANT + 1) / (RANK_CONSTANT + rank)

    def order(item: tuple[ChunkId, _Candidate]) -> tuple[float, float, float, str]:
        chunk_id, candidate = item
        last = float("inf")
        return (-candidate.score, candidate.words_rank or last, candidate.vector_rank or last, chunk_id)

    return sorted(candidates.items(), key=order)


def _distinct(
    store: Store, fused: Sequence[tuple[ChunkId, _Candidate]], under: Sequence[Path]
) -> Iterator[tuple[Passage, _Candidate]]:
    """Passages in order, the second of two that differ only in title line, white space, case or punctuation
    left out.

    Two versions that differ in one figure both stay: the difference may be what the question is about.
    """
    seen: set[str] = set()
    for chunk_id, candidate in fused:
        passage = store.passage(chunk_id, under)
        if passage is None:  # removed since the search
            continue
        body = _body(passage)
        if body in seen:
            continue
        seen.add(body)
        yield passage, candidate


def _body(passage: Passage) -> str:
    text = passage.chunk.text
    first, newline, rest = text.partition("\n")
    if newline and passage.title and first.startswith(passage.title):
        text = rest
    # The point and its kin stay because 3.10 is not 310; a body of nothing but dashes stands for itself.
    plain = "".join(character for character in text.casefold() if character.isalnum() or character in ".,:/")
    return plain or text
