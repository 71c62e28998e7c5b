"""For every written question the passages most like it that do not hold its answer.

They are the distractors that retrieval would bring.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from desk_rag.training.reader.data.written import Passage

_BATCH = 512
_LOOKED_AT = 30


def nearest(passages: Sequence[Passage], keep: int = 12) -> list[list[list[int]]]:
    """Per passage, per pair: indices of up to `keep` passages, most alike first (TF-IDF, cosine)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, max_df=0.3, token_pattern=r"(?u)\b\w+\b", stop_words="english")
    matrix = vectorizer.fit_transform([passage.text for passage in passages]).T.tocsr()
    lowered = [" ".join(passage.text.lower().split()) for passage in passages]
    queries = [
        (index, pair.question + " " + passage.title, " ".join(pair.answer.lower().split()))
        for index, passage in enumerate(passages)
        for pair in passage.pairs
    ]
    neighbours: list[list[list[int]]] = [[] for _ in passages]
    for start in range(0, len(queries), _BATCH):
        batch = queries[start : start + _BATCH]
        scores = (vectorizer.transform([query for _, query, _ in batch]) @ matrix).toarray()
        for (own, _, answer), row in zip(batch, scores, strict=True):
            best = np.argpartition(-row, min(_LOOKED_AT, len(row) - 1))[:_LOOKED_AT]
            best = best[np.argsort(-row[best])]
            near = [int(j) for j in best if j != own and row[j] > 0 and answer not in lowered[j]]
            neighbours[own].append(near[:keep])
    return neighbours
