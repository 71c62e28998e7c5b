"""Whether the quoted evidence speaks of what was asked: the second half of 'that is not in your documents'.

Knows the question, the quotes and the chunks they stand in; knows no model and no form of answers.

A small reader model finds a sentence for many questions that its text does not answer; it says on its own that there is
none in 38 to 64 of 100 such cases. Three signals find most of the others: what the pointer thinks of the evidence, how
near that is to the question in meaning, and how many of the question's content words stand around it. Where no pointer
reads along, how near the model itself was to refusing stands in for the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from desk_rag.answering.events import Citation, Source
from desk_rag.store.catalog.words import STOP_WORDS

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import Reads
    from desk_rag.retrieval.embedding import Vectors

_WORD = re.compile(r"[^\W_]+")
_ENDINGS = ("ing", "edly", "ed", "ies", "es", "ly", "s", "e", "y")
_STEM = 5
"""Longer words that agree in this many first letters count as one: 'postponed', 'postponement'."""
_LEVELS = " › "
"""Between the names of a chunk's title line, as in `Location.heading`."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """A logistic regression: the log odds that an answer is right are bias + sum of weight * signal."""

    bias: float
    similarity: float
    in_evidence: float
    in_chunk: float
    refusal: float
    """Of the log odds that the model gave to a refusal, from the probability of its first token."""
    threshold: float
    """Log odds below which the answer is withheld."""
    surest: float = 0.5
    """A smaller probability of refusing is taken for this one, lest a model that is sure of itself need no evidence."""
    title: float = -2.5
    """Of evidence that is nothing but a chunk's title: it is near to what the chunk is about and says nothing of it."""
    worth: float = 0.0
    """Of what the pointer thinks of the evidence (`pointer.Field.worth`), between `_LEAST` and `_MOST`."""


_LEAST, _MOST = -8.0, 12.0
_POINTED = _Weights(-3.94, 2.99, 0.0, 1.87, 0.0, -2.5, worth=0.415)
"""With the pointer, which chooses the quotes. Fitted on the embedded reader's answers to 2,040 questions about held-out
passages, each asked over the three of 400 passages that are nearest by embedding, best last: 1,200 whose passage is
among them or was, 100 whose subject is there and whose answer is not ("related"), 740 whose passage was taken away
("absent"); by passage in five parts, judged by weights of the other four. Per cent withheld, by the model or by this:

    threshold       right (desk, books)   related   absent   wrong   in output
      model alone    0.0 ( 0.0, 0.0)        63        38       0       61.7
      -2.5           1.5 ( 3.0, 0.2)        84        71      40       60.8
      -2.0           1.8 ( 3.6, 0.2)        90        78      50       60.6
      -1.75          3.0 ( 6.0, 0.5)        90        81      56       59.8
      -1.5           3.8 ( 7.8, 0.5)        93        84      61       59.3
      -1.25          4.9 ( 9.6, 1.0)        95        88      65       58.7
    580 of them
      model alone    0.0 ( 0.0, 0.0)        63        41       0       66.8
      -2.5           0.0 ( 0.0, 0.0)        84        78      35       66.8
      -1.5           0.9 ( 2.6, 0.0)        93        86      56       66.2

-2.5 withholds 4.8 % of all questions whose passage is among the three, wrong answers counted; -2.0 5.5, -1.5 8.1.

"The model alone" is the reader with the pointer's objection (`evidence.selection.Rule`). Of 410 questions about code,
settings, tables, contact data and forms, for which nothing was fitted, 57 of 100 unanswerable ones are refused (by the
model alone 45) for 5.4 % of right answers. Without the pointer, at 3 % of right answers, 80 and 72 are refused."""


_WEIGHTS = {
    # without a pointer: with similarity, with the model's own doubt
    (True, True): _Weights(-7.44, 6.05, 0.0, 3.79, -0.77, -0.9, 1e-3),
    (False, True): _Weights(-5.64, 0.0, 2.63, 3.72, -0.78, -1.5, 1e-2),
    (True, False): _Weights(-5.79, 7.05, 1.59, 4.03, 0.0, -1.0),
    (False, False): _Weights(-4.12, 0.0, 4.89, 4.16, 0.0, -1.25),
}
"""Fitted on answers of the embedded reader to 580 questions about held-out passages, each asked over the three of 400
passages that are nearest by embedding, best last: 256 with their passage (93 of them about desk documents), 100 whose
subject is there and whose answer is not ("related"), 140 whose passage was taken away ("absent"), 84 whose passage was
not among the three. The first two are fitted on answers that the reader quoted by itself, 172 right ones among them.

They serve answers whose quotes the reader found by itself, and beside the pointer those that quote twice or whose
quotes stand nowhere: for these they were not fitted, and such answers are few. Per cent withheld, by the model or by
this, and of the questions with an answer those that have it in what is shown:

    threshold       right (desk, books)   related   absent   wrong   in output
    (True, True), quotes by the reader alone: 175 right answers, 81 wrong
      model alone    0.0 ( 0.0, 0.0)        64        41       5       51.5
      -1.25          2.3 ( 8.3, 0.0)        88        84      28       50.3
      -0.9           2.9 (10.4, 0.0)        89        86      28       50.0
      -0.4           4.6 (14.6, 0.8)        92        91      35       49.1
    (False, True), by the reader alone, as without the embedded embedder no quote is chosen
      -2.0           1.1 ( 4.2, 0.0)        83        74      19       50.9
      -1.5           2.3 ( 6.2, 0.8)        86        81      19       50.3
      -1.0           5.1 (12.5, 2.4)        91        85      30       48.8

The title's weight is set by hand: of 36 answers of this kind (2,040 questions and 1,090 about passages that the reader
was trained on) none was right.

The last two are for models whose doubt is not known; they are of an earlier reader, for which they withhold no more
than 3 % of right answers, and of this one's answers at their thresholds 2.9 and 4.7 %, with 82 and 83 of related, 87
and 83 of absent. With the cosine known, the share of the evidence's own words said nothing more. Terse notes are the
weak side: most right answers withheld are about desk documents."""


@dataclass(frozen=True, slots=True)
class Support:
    """What the evidence is worth."""

    probability: float
    """That the answer is right, as calibrated for the embedded reader; 1 where there is no evidence to judge."""
    supported: bool
    """False: tell the user that the documents do not hold the answer, and show the nearest chunks instead."""


def evidence_supports(
    question: str,
    evidence: str,
    chunk: str,
    *,
    similarity: float | None,
    refusal: float | None = None,
    title_only: bool = False,
    worth: float | None = None,
) -> Support:
    """Judge one piece of evidence.

    `chunk` is the text the evidence stands in; `similarity` the cosine of question and evidence under the embedded
    embedder, None under any other (cosines of different embedders are not alike, the words then decide alone);
    `refusal` the probability that the model gave to refusing, None where a model was not taught to; `title_only` says
    that the evidence is nothing but the title of its chunk; `worth` what the pointer thinks of it, which only counts
    beside a similarity.
    """
    pointed = similarity is not None and worth is not None
    weights = _POINTED if pointed else _WEIGHTS[similarity is not None, refusal is not None]
    odds = (
        weights.bias
        + weights.similarity * (similarity or 0.0)
        + weights.in_evidence * coverage(question, evidence)
        + weights.in_chunk * coverage(question, chunk)
        + weights.refusal * _log_odds(weights.surest if refusal is None else max(refusal, weights.surest))
        + weights.title * title_only
        + weights.worth * min(max(worth or 0.0, _LEAST), _MOST)
    )
    return Support(1 / (1 + math.exp(-odds)), odds >= weights.threshold)


def judge(
    question: str,
    citations: Sequence[Citation],
    dropped_quotes: Sequence[str],
    sources: Sequence[Source],
    embedder: Vectors | None,
    refusal: float | None = None,
    pointer: Reads | None = None,
) -> Support:
    """Judge an answer by its quotes; where all were dropped, by those, against the best source.

    Embeds evidence and, unless `embedder` is a `OneQuestion` that has done so, the question, about 25 ms on one core
    together; a `pointer` that chose the quotes remembers what it thinks of them. An answer without any quote
    is let through: it comes from a model that does not keep to the form, and larger models say by themselves when they
    find nothing. `refusal` is as in `evidence_supports`.
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
    # Words that stand nowhere say nothing for a model that is sure of them.
    doubt = refusal if citations else None
    by_number = {source.number: source for source in sources}
    title_only = bool(citations) and all(_is_title(each.quote, by_number[each.source_number]) for each in citations)
    # The pointer was taught questions that one sentence answers: of several quotes none holds the answer alone.
    alone = citations[0] if len(citations) == 1 else None
    worth = _worth(question, alone.quote, sources, pointer) if pointer is not None and alone is not None else None
    return evidence_supports(
        question, evidence, "\n".join(chunks),
        similarity=similarity, refusal=doubt, title_only=title_only, worth=worth,
    )  # fmt: skip


def _worth(question: str, quote: str, sources: Sequence[Source], pointer: Reads) -> float | None:
    """Where it stands, in all sources and places, at its best, as it was chosen; None where it does not word for word.

    The same line stands under several headings, and 'hours = 6' within 'most_hours = 60'.
    """
    found = [(source.text, match.span()) for source in sources for match in re.finditer(re.escape(quote), source.text)]
    texts = list(dict.fromkeys(text for text, _ in found))
    fields = dict(zip(texts, pointer.read(question, texts), strict=True))
    return max((fields[text].worth(*span) for text, span in found), default=None)


def _is_title(quote: str, source: Source) -> bool:
    """Whether `quote` is from the title line that the chunk begins with, and no sentence.

    A title that the text says again, as code does with its docstring, is text; so is a chunk of one line.
    """
    line, _, body = source.text.partition("\n")
    names = {source.title, *source.location.heading.split(_LEVELS)}
    titled = quote in line and names.issuperset(line.split(_LEVELS))
    return titled and bool(body) and quote not in body and not quote.endswith(".")


def _log_odds(probability: float) -> float:
    kept = min(probability, 1 - 1e-3)
    return math.log(kept / (1 - kept))


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
