"""Cut the passages of one answer into windows of a few sentences, and rank them for a claim by words and by meaning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from desk_rag.answering.events import Source
from desk_rag.answering.requirements.stems import coverage
from desk_rag.answering.writing import facts
from desk_rag.documents.sentences import sentences

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from desk_rag.retrieval.embedding import EmbedderLike

_CLAUSE_END = re.compile(r"[,;:]\s+|\s(?=(?:and|but|because|since|unless|und|aber|weil|denn)\s)")
_LONGEST_WINDOW = 3
"""Sentences of a window: what a model says in one sentence stands in at most about three."""
_COVERAGE_WEIGHT, _MISSING_WEIGHT = 0.5, 0.3
"""Weights in the ranking of windows, beside the cosine."""


@dataclass(frozen=True, slots=True)
class Window:
    """A few consecutive sentences of a source, compared with a claim."""

    source: Source
    begin: int
    end: int
    """Characters of the source's text."""
    similarity: float
    """Cosine of claim and window; 0 without the embedded embedder."""
    coverage: float
    """Share of the claim's content words in the window."""
    missing: int
    """Numbers and names of the claim that the window lacks."""
    sentences: tuple[tuple[int, int], ...] = ()
    """Characters of its sentences."""

    @property
    def text(self) -> str:
        return self.source.text[self.begin : self.end]

    @property
    def parts(self) -> list[str]:
        """Sentences of the window, and the clauses of each."""
        texts = [self.source.text[begin:end] for begin, end in self.sentences]
        return texts + [clause for text in texts for clause in _CLAUSE_END.split(text) if len(clause.split()) > 1]

    def core(self, claim: str) -> str:
        """The sentence or clause of the window that has most words in common with `claim`, and fewest others."""
        texts = self.parts
        return max(texts, key=lambda text: coverage(claim, text) * coverage(text, claim), default=self.text)

    @property
    def rank(self) -> float:
        return self.similarity + _COVERAGE_WEIGHT * self.coverage - _MISSING_WEIGHT * (self.missing > 0)


class SourceWindows:
    """The windows of one source; its sentences are embedded once, when first needed."""

    def __init__(self, source: Source, embedder: EmbedderLike | None) -> None:
        self.source, self._embedder = source, embedder

    def best(
        self, claim: str, vector: NDArray[np.float32] | None, claim_facts: Sequence[facts.Fact], known: str
    ) -> Window:
        """The window that is most likely to say what `claim` says; `known` as in `facts.missing`."""
        return max(self._windows(claim, vector, claim_facts, known), key=lambda window: window.rank)

    def _windows(
        self, claim: str, vector: NDArray[np.float32] | None, claim_facts: Sequence[facts.Fact], known: str
    ) -> list[Window]:
        windows = []
        for (first, last), window_vector in zip(self._ranges, self._vectors, strict=True):
            begin, end = self._sentences[first][0], self._sentences[last][1]
            text = self.source.text[begin:end]
            similarity = 0.0 if vector is None or window_vector is None else float(vector @ window_vector)
            missing = len(facts.missing(list(claim_facts), text, known))
            windows.append(
                Window(
                    self.source,
                    begin,
                    end,
                    similarity,
                    coverage(claim, text),
                    missing,
                    tuple(self._sentences[first : last + 1]),
                )
            )
        return windows

    @cached_property
    def _sentences(self) -> list[tuple[int, int]]:
        """Characters of each sentence, the title line left out if other text follows."""
        ranges, line_begin = [], 0
        for line in self.source.text.split("\n"):
            offset = 0
            for sentence in sentences(line.strip()):
                begin = line.index(sentence, offset)
                offset = begin + len(sentence)
                ranges.append((line_begin + begin, line_begin + offset))
            line_begin += len(line) + 1
        return ranges[1:] or ranges or [(0, len(self.source.text))]

    @cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        count = len(self._sentences)
        return [
            (first, first + length - 1)
            for first in range(count)
            for length in range(1, _LONGEST_WINDOW + 1)
            if first + length <= count
        ]

    @cached_property
    def _vectors(self) -> Sequence[NDArray[np.float32] | None]:
        """Per window the mean of its sentences' vectors, weighted by the root of their lengths."""
        if self._embedder is None:
            return [None] * len(self._ranges)
        import numpy as np

        vectors = self._embedder.embed_chunks([self.source.text[begin:end] for begin, end in self._sentences])
        weighted = vectors * np.sqrt([[end - begin] for begin, end in self._sentences]).astype(np.float32)
        sums = np.stack([weighted[first : last + 1].sum(0) for first, last in self._ranges])
        means: NDArray[np.float32] = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
        return list(means)
