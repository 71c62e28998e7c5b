"""Retrieve the chunks most likely to answer a question, best first.

Word search (BM25 over the question's content words) finds names, numbers and error codes; vector search finds what is
said in other words. Their ranks are combined by reciprocal rank fusion (Cormack, Clarke, Buettcher: "Reciprocal Rank
Fusion outperforms Condorcet and individual rank learning methods", SIGIR 2009), which needs no common scale of the two
scores.

The best candidates are then compared with the question word by word, by token vectors (late interaction), and the ranks
of this comparison are fused with those of the searches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.chunking import ChunkId
from desk_rag.retrieval.token_vectors import similarities
from desk_rag.store.types import Hit, Passage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store

DEPTH = 100
"""Results taken from each search. Fusion needs about 30; the rest only supply similarities."""
_COMPARED = 16
"""Nearest vectors whose texts are looked up in the word index as well: it cannot tell what it has lost."""
RANK_CONSTANT = 10
WORDS_WEIGHT = 0.55
"""Weight of word ranks against vector ranks. See "Answering and retrieval: constants" in bench/LOG.md for this weight
and RANK_CONSTANT."""
COMPARED_BY_TOKENS = 96
"""Best candidates whose token vectors are compared with the question's."""
_MOST_WORD_PIECES = 64
"""Word pieces of a question that are compared, so that a long one takes no longer than some 20 ms."""
_NEITHER_WORD_NOR_POINT = re.compile(r"[^\w.,:/]|_")
TOKENS_WEIGHT = 0.75
"""Weight of the ranks of that comparison against the fused score; see "Late interaction" in bench/LOG.md."""


@dataclass(frozen=True, slots=True)
class RetrievedChunk:
    """A chunk that may answer the question, with its ranks in both searches."""

    passage: Passage
    score: float
    """Fused score in (0, 1]; 1 means first everywhere. Comparable within one question only."""
    words_rank: int | None
    """1-based rank in the word search; None if not among its results."""
    vector_rank: int | None
    similarity: float
    """Cosine of question and chunk; 0 if the chunk has no vector yet or is not among the vector search's results."""
    closely: bool = False
    """True if a second look chose it."""


@dataclass(slots=True)
class _Candidate:
    score: float = 0.0
    words_rank: int | None = None
    vector_rank: int | None = None
    similarity: float = 0.0


def retrieve(
    store: Store, embedder: EmbedderLike | None, question: str, limit: int, under: Sequence[Path] = ()
) -> list[RetrievedChunk]:
    """Return at most `limit` chunks for `question`, best first, without duplicate texts.

    `under` limits the search to documents in these folders, or to these files. Without an embedder, and for chunks
    without a vector, words alone decide. The order is deterministic: equal scores are ordered by word rank, then vector
    rank, then chunk id. Raises StoreError.
    """
    return list(islice(ranked(store, embedder, question, limit, under), max(0, limit)))


def ranked(
    store: Store, embedder: EmbedderLike | None, question: str, most: int, under: Sequence[Path] = ()
) -> Iterator[RetrievedChunk]:
    """Yield the chunks of `retrieve`, read one by one, for a caller that takes at most `most`."""
    if most < 1 or not question.strip():
        return
    depth = max(DEPTH, 4 * most)
    word_hits = store.search_words(question, depth, under)
    vector_hits: list[Hit] = []
    tokens = None
    if embedder is not None:
        encoding = embedder.encode_question(question)
        tokens = encoding.tokens
        vector_hits = store.search_vectors(embedder.fingerprint, encoding.vector, depth, under)
        store.check_words(question, [hit.chunk_id for hit in vector_hits[:_COMPARED]])
    fused = _fuse(word_hits, vector_hits)
    if embedder is not None and tokens is not None:
        fused = _compare_tokens(store, embedder.fingerprint, tokens, fused)
    for passage, candidate in _distinct(store, fused, under):
        yield RetrievedChunk(
            passage, candidate.score, candidate.words_rank, candidate.vector_rank, candidate.similarity
        )


def _fuse(word_hits: Sequence[Hit], vector_hits: Sequence[Hit]) -> list[tuple[ChunkId, _Candidate]]:
    """Candidates, best first; scores are scaled so that first place in both searches is 1."""
    candidates: dict[ChunkId, _Candidate] = {}
    for rank, hit in _ranked(word_hits):
        candidate = candidates.setdefault(hit.chunk_id, _Candidate())
        candidate.words_rank = rank
        candidate.score += WORDS_WEIGHT * (RANK_CONSTANT + 1) / (RANK_CONSTANT + rank)
    for rank, hit in _ranked(vector_hits):
        candidate = candidates.setdefault(hit.chunk_id, _Candidate())
        candidate.vector_rank = rank
        candidate.similarity = hit.score
        candidate.score += (1 - WORDS_WEIGHT) * (RANK_CONSTANT + 1) / (RANK_CONSTANT + rank)

    return sorted(candidates.items(), key=_order)


def _ranked(hits: Sequence[Hit]) -> Iterator[tuple[int, Hit]]:
    """Yield hits with 1-based ranks; equal scores share one, since their order is that in which files were read."""
    rank, score = 0, float("nan")
    for place, hit in enumerate(hits, start=1):
        if hit.score != score:
            rank, score = place, hit.score
        yield rank, hit


def _order(item: tuple[ChunkId, _Candidate]) -> tuple[float, float, float, str]:
    chunk_id, candidate = item
    last = float("inf")
    return (-candidate.score, candidate.words_rank or last, candidate.vector_rank or last, chunk_id)


def _compare_tokens(
    store: Store, embedder: str, question: NDArray[np.float32], fused: list[tuple[ChunkId, _Candidate]]
) -> list[tuple[ChunkId, _Candidate]]:
    """Fuse the ranks of the best candidates' token vectors with their scores; return all candidates, best first.

    Candidates without token vectors keep the rank that they have, and the others are ordered around them.
    """
    best = [chunk_id for chunk_id, _ in fused[:COMPARED_BY_TOKENS]]
    signs = store.token_vectors(embedder, best)
    if not signs:
        return fused
    compared = [chunk_id for chunk_id in best if chunk_id in signs]
    cosines = dict(
        zip(compared, similarities(question[:_MOST_WORD_PIECES], [signs[one] for one in compared]), strict=True)
    )
    ordered = iter(sorted(compared, key=lambda chunk_id: -cosines[chunk_id]))  # stable: equals keep their order
    ranks: dict[ChunkId, int] = {}
    for rank, (chunk_id, _) in enumerate(fused, start=1):
        ranks[next(ordered) if chunk_id in cosines else chunk_id] = rank
    for chunk_id, candidate in fused:
        share = (RANK_CONSTANT + 1) / (RANK_CONSTANT + ranks[chunk_id])
        candidate.score = (1 - TOKENS_WEIGHT) * candidate.score + TOKENS_WEIGHT * share
    return sorted(fused, key=_order)


def _distinct(
    store: Store, fused: Sequence[tuple[ChunkId, _Candidate]], under: Sequence[Path]
) -> Iterator[tuple[Passage, _Candidate]]:
    """Yield passages in order, without those that repeat an earlier text.

    Differences in title line, white space, case and punctuation do not count. Versions that differ in a figure are both
    kept, because the difference may be what the question is about.
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
    # '.' and the like stay because 3.10 is not 310; a body without letters and digits is compared as it is.
    plain = _NEITHER_WORD_NOR_POINT.sub("", text.casefold())
    return plain or text
