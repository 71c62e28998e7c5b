"""Whether the quoted evidence speaks of what was asked: the second half of 'that is not in your documents'.

Knows the question, the quotes and the chunks they stand in; knows no model and no form of answers.

A small reader model finds a sentence for every question; it says on its own that there is none in 2 to 11 of 100 cases
where there is none. Three signals, none of them the model's, tell better: how near the evidence is to the question in
meaning, and how many of the question's content words stand in the evidence and in its chunk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from desk_rag.answer_events import Citation, Source
from desk_rag.store.words import STOP_WORDS

if TYPE_CHECKING:
    from desk_rag.embedding import Embedder

_WORD = re.compile(r"[^\W_]+")
_ENDINGS = ("ing", "edly", "ed", "ies", "es", "ly", "s", "e", "y")
_STEM = 5
"""Longer words that agree in this many first letters count as one: 'postponed', 'postponement'."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """A logistic regression: the log odds that an answer is right are bias + sum of weight * signal."""

    bias: float
    similarity: float
    in_evidence: float
    in_chunk: float
    threshold: float
    """Log odds below which the answer is withheld."""


WITH_SIMILARITY = _Weights(-5.79, 7.05, 1.59, 4.03, -0.5)
"""Logistic regression on outputs of the embedded reader, 1 to 8 retrieved chunks of 400, duplicates removed: 133 right
answers (29 of them about desk documents, which weigh as much as the other 104), 128 answers to questions that their
document does not answer ("related"), 208 to questions whose document was taken away ("absent"). Refused in per cent,
by the model alone or by this:

    threshold   right answers (desk, books)   related   absent   wrong answers to answerable questions
      -2.0        0.8  ( 3.4, 0.0)               46       73        51
      -1.5        1.5  ( 6.9, 0.0)               51       81        60
      -1.0        2.3  (10.3, 0.0)               62       86        68
      -0.5        3.0  (13.8, 0.0)               76       90        73
       0.0        5.3  (24.1, 0.0)               82       94        78

Weights and table come from the same rows; with cross-validation by question "related" and "absent" fall by 0 to 4.
With the best chunk last, as answers are made, -0.5 refused 0 of 93 right answers, 63 % related, 87 % absent and 51 %
of the wrong ones. Terse notes are the weak side: of true evidence lines of desk documents, chosen by hand-written
answers and not by the reader, 42 in 100 fall below -0.5 (books: 3). A reader that gets those right needs a new
calibration."""
WITHOUT_SIMILARITY = _Weights(-4.12, 0.0, 4.89, 4.16, -1.25)
"""The same without cosines: refuses 3.0 of right answers (desk 6.9), 53 related, 75 absent, 53 wrong."""


@dataclass(frozen=True, slots=True)
class Support:
    """What the evidence is worth."""

    probability: float
    """That the answer is right, as calibrated for the embedded reader; 1 where there is no evidence to judge."""
    supported: bool
    """False: tell the user that the documents do not hold the answer, and show the nearest chunks instead."""


def evidence_supports(question: str, evidence: str, chunk: str, *, similarity: float | None) -> Support:
    """Judge one piece of evidence.

    `chunk` is the text the evidence stands in; `similarity` the cosine of question and evidence under the embedded
    embedder, None under any other (cosines of different embedders are not alike, the words then decide alone).
    """
    weights = WITHOUT_SIMILARITY if similarity is None else WITH_SIMILARITY
    odds = (
        weights.bias
        + weights.similarity * (similarity or 0.0)
        + weights.in_evidence * coverage(question, evidence)
        + weights.in_chunk * coverage(question, chunk)
    )
    return Support(1 / (1 + math.exp(-odds)), odds >= weights.threshold)


def judge(
    question: str,
    citations: Sequence[Citation],
    dropped_quotes: Sequence[str],
    sources: Sequence[Source],
    embedder: Embedder | None,
) -> Support:
    """Judge an answer by its quotes; where all were dropped, by those, against the best source.

    Embeds question and evidence, about 25 ms on one core. An answer without any quote is let through: it comes from
    a model that does not keep to the form, and larger models say by themselves when they find nothing.
    """
    cited = {citation.source_number for citation in citations}
    quotes = [citation.quote for citation in citations] or list(dropped_quotes)
    if not quotes or not sources:
        return Support(1.0, True)
    evidence = " ".join(quotes)
    chunks = [source.text for source in sources if source.number in cited] or [sources[0].text]
    similarity = None
    if embedder is not None and embedder.is_embedded:
        (vector,) = embedder.embed_chunks([evidence])
        similarity = float(embedder.embed_question(question) @ vector)
    return evidence_supports(question, evidence, "\n".join(chunks), similarity=similarity)


def coverage(question: str, text: str) -> float:
    """Share in [0, 1] of the question's content words that stand in `text` in some form; 1 if it has none."""
    wanted = _content_stems(question)
    present = _content_stems(text)
    heads = {stem[:_STEM] for stem in present if len(stem) >= _STEM}
    found = sum(stem in present or (len(stem) >= _STEM and stem[:_STEM] in heads) for stem in wanted)
    return found / len(wanted) if wanted else 1.0


def _content_stems(text: str) -> set[str]:
    return {_stem(word) for word in _WORD.findall(text.lower()) if word not in STOP_WORDS}


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
