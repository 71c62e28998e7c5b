"""Verify that the quoted evidence answers the question; otherwise the answer is withheld.

A small reader quotes some sentence for many questions that the documents do not answer. A logistic regression over
three signals finds most of these: the span scorer's score of the evidence, the cosine of question and evidence, and the
share of the question's content words around the evidence. Without a span score, the reader's own probability of
refusing takes its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from desk_rag.answering.events import Citation, Source
from desk_rag.answering.evidence.siblings import Siblings
from desk_rag.answering.evidence.subjects import missing_subjects
from desk_rag.answering.requirements.answer_kinds import asks_whether
from desk_rag.answering.requirements.objections import Objections, says_all
from desk_rag.answering.requirements.places import Place, place_of_source
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.answering.requirements.rows import fields, look_up
from desk_rag.answering.requirements.statements.offices import names_holder
from desk_rag.answering.requirements.stems import content_stems, coverage, has_stem

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike
    from desk_rag.retrieval.embedding import EmbedderLike

_LEVELS = " › "
"""Separator of headings in a chunk's title line, as in `Location.heading`."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """Logistic regression.

    The log-odds that an answer is right are bias + sum of weight * signal.
    """

    bias: float
    similarity: float
    in_evidence: float
    in_chunk: float
    """Weights of `coverage` of the question by the evidence, and by the chunk around it."""
    refusal: float
    """Weight of the log-odds that the model refuses, from the probability of its first token."""
    threshold: float
    """Log-odds below which the answer is withheld."""
    min_refusal: float = 0.5
    """Smaller probabilities of refusing count as this, so that a confident model still needs evidence."""
    title: float = -2.5
    """Weight of evidence that is only a chunk's title: it resembles the question and answers nothing."""
    span_score: float = 0.0
    """Weight of the evidence's span score (`SpanScores.log_odds`), clamped to [_MIN_SPAN_SCORE, _MAX_SPAN_SCORE]."""


_MIN_SPAN_SCORE, _MAX_SPAN_SCORE = -8.0, 12.0
_WITH_SPAN_SCORE = _Weights(-3.94, 2.99, 0.0, 1.87, 0.0, -2.5, span_score=0.415)
"""For answers with one quote, selected with the span scorer. See "Evidence selection and verification" in
bench/LOG.md for how all weights and thresholds were fitted and what they withhold."""

_WEIGHTS = {
    # without a span score: (similarity known, refusal probability known)
    (True, True): _Weights(-7.44, 6.05, 0.0, 3.79, -0.77, -0.9, 1e-3),
    (False, True): _Weights(-5.64, 0.0, 2.63, 3.72, -0.78, -1.5, 1e-2),
    (True, False): _Weights(-5.79, 7.05, 1.59, 4.03, 0.0, -1.0),
    (False, False): _Weights(-4.12, 0.0, 4.89, 4.16, 0.0, -1.25),
}
"""For quotes that the reader selected by itself, and for answers with several quotes or unverified ones."""

_LOOKED_UP = 0.75
"""Least probability of an answer that is a cell of the row that the question names."""
_SAYS_ALL = 0.5
"""The same where the quote has all words of the question, and a value of the kind asked for."""
_NAMED_OTHERWISE = 0.45
"""Least probability of an answer that is shown although its quote lacks a name, date or number of the question; see
"Passages in other words" in bench/LOG.md."""
_CLOCK = re.compile(r"\d{1,2}[:.]\d{2}")
"""A time of day, which documents write in many ways."""
_UNMET = 0.3
"""Most probability of an answer whose quotes are not about what the question names, or objected to: it is doubtful."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement on the support of an answer by its evidence."""

    probability: float
    """Probability that the answer is right, calibrated for the embedded reader; 1 if there is no evidence to verify."""
    supported: bool
    """False: report that the documents do not contain the answer, and show the nearest chunks instead."""
    unmet: tuple[str, ...] = ()
    """Names, things, numbers and dates of the question that no quote is about; then the probability is low."""


def verify_evidence(
    question: str,
    evidence: str,
    chunk: str,
    *,
    similarity: float | None,
    refusal: float | None = None,
    title_only: bool = False,
    span_score: float | None = None,
) -> Verdict:
    """Verify one piece of evidence.

    Args:
        chunk: the text that contains the evidence.
        similarity: cosine of question and evidence under the embedded embedder; None under any other, whose cosines
            are not comparable.
        refusal: the model's probability of refusing; None if it was not trained to refuse.
        title_only: the evidence is only the title of its chunk.
        span_score: `SpanScores.log_odds` of the evidence; ignored without a similarity.
    """
    has_span_score = similarity is not None and span_score is not None
    weights = _WITH_SPAN_SCORE if has_span_score else _WEIGHTS[similarity is not None, refusal is not None]
    log_odds = (
        weights.bias
        + weights.similarity * (similarity or 0.0)
        + weights.in_evidence * coverage(question, evidence)
        + weights.in_chunk * coverage(question, chunk)
        + weights.refusal * _log_odds(weights.min_refusal if refusal is None else max(refusal, weights.min_refusal))
        + weights.title * title_only
        + weights.span_score * min(max(span_score or 0.0, _MIN_SPAN_SCORE), _MAX_SPAN_SCORE)
    )
    return Verdict(1 / (1 + math.exp(-log_odds)), log_odds >= weights.threshold)


def verify_answer(
    question: str,
    citations: Sequence[Citation],
    dropped_quotes: Sequence[str],
    sources: Sequence[Source],
    embedder: EmbedderLike | None,
    refusal: float | None = None,
    span_scorer: SpanScorerLike | None = None,
) -> Verdict:
    """Verify an answer by its quotes; if all were dropped, by those, against the best source.

    An answer without quotes passes: it comes from a model that does not follow the answer format, and larger models
    refuse by themselves. `refusal` is as in `verify_evidence`.
    """
    cited = {citation.source_number for citation in citations}
    quotes = [citation.quote for citation in citations] or list(dropped_quotes)
    if not quotes or not sources:
        return Verdict(1.0, True)
    evidence = " ".join(quotes)
    read = [source for source in sources if source.number in cited] or [sources[0]]
    chunks = [f"{source.text}\n{place_of_source(source).labels}" for source in read]
    similarity = None
    if embedder is not None and embedder.is_embedded:
        (vector,) = embedder.embed_chunks([evidence])
        similarity = float(embedder.embed_question(question) @ vector)
    # A confident model is no argument for a quote that is in no source.
    refusal = refusal if citations else None
    by_number = {source.number: source for source in sources}
    title_only = bool(citations) and all(_is_title(each.quote, by_number[each.source_number]) for each in citations)
    # The span scorer was trained on questions that one sentence answers; several quotes hold the answer together.
    single = citations[0] if len(citations) == 1 else None
    span_score = None
    if span_scorer is not None and single is not None:
        span_score = _span_score(question, single.quote, sources, span_scorer)
    verdict = verify_evidence(
        question, evidence, "\n".join(chunks),
        similarity=similarity, refusal=refusal, title_only=title_only, span_score=span_score,
    )  # fmt: skip
    if single is not None and _is_looked_up(question, single, sources):
        return Verdict(max(verdict.probability, _LOOKED_UP), supported=True)
    unmet = unmet_by(question, citations, by_number)
    is_row = single is not None and len(fields(single.quote)) > 1
    least = 1.0 if is_row else _NAMED_OTHERWISE  # a row of a table says by itself what it is about
    if verdict.probability < least and not all(_CLOCK.fullmatch(each) for each in unmet):
        return replace(verdict, supported=False, unmet=unmet)
    if single is not None:
        verdict = replace(verdict, supported=verdict.supported or names_holder(question, single.quote))
        place = place_of_source(by_number[single.source_number])
        unmet = (*unmet, *missing_subjects(question, single.quote, place))
    objected = single is not None and (
        _is_objected(question, single.quote, place_of_source(by_number[single.source_number]))
        or _asks_of_others(question, single, sources)
        or (is_row and _has_fuller_row(question, single, sources))
    )
    if unmet or objected:
        return replace(verdict, probability=min(verdict.probability, _UNMET), unmet=unmet)
    if single is None:
        return verdict
    labels = place_of_source(by_number[single.source_number]).labels
    if verdict.supported and says_all(question, single.quote, labels):
        return replace(verdict, probability=max(verdict.probability, _SAYS_ALL))
    return verdict


def _is_looked_up(question: str, citation: Citation, sources: Sequence[Source]) -> bool:
    """True if the quote is the row of a table that the question names."""
    lookup = look_up(question, [place_of_source(source) for source in sources])
    return lookup is not None and lookup.place.text[lookup.begin : lookup.end] == citation.quote


def _is_objected(question: str, quote: str, place: Place) -> bool:
    """True if something speaks against the quote, as one of its passage."""
    objections = Objections(question)
    return objections.penalty(quote) + objections.of_passage(place, quote) > 0


def _has_fuller_row(question: str, citation: Citation, sources: Sequence[Source]) -> bool:
    """True if another row that was read of the same document has more of the question's words than the quoted one."""
    places = tuple(place_of_source(source) for source in sources if source.path == citation.path)
    return Siblings(question, places).penalty(citation.quote) > 0


def _asks_of_others(question: str, citation: Citation, sources: Sequence[Source]) -> bool:
    """True if a question for yes or no has a word that other passages have, and the quoted one has not.

    'Does the ferry sail on Sundays?' is not answered by a passage that speaks of no Sunday.
    """
    if not asks_whether(question):
        return False
    own, others = set[str](), set[str]()
    for source in sources:
        stems = content_stems(f"{source.path.stem} {source.text}")
        if source.number == citation.source_number:
            own |= stems
        else:
            others |= stems
    return any(has_stem(stem, others) and not has_stem(stem, own) for stem in content_stems(question))


def unmet_by(question: str, citations: Sequence[Citation], sources: Mapping[int, Source]) -> tuple[str, ...]:
    """The names, numbers and dates of a question that none of the quotes is about; sources are by number."""
    requirements = Requirements(question)
    if not requirements or not citations:
        return ()
    by_quote = []
    for citation in citations:
        place = place_of_source(sources[citation.source_number])
        spans = [match.span() for match in re.finditer(re.escape(citation.quote), place.text)]
        by_quote.append(min((requirements.unmet(place, *span) for span in spans), key=len, default=()))
    return tuple(unmet_text for unmet_text in by_quote[0] if all(unmet_text in unmet for unmet in by_quote))


def _span_score(question: str, quote: str, sources: Sequence[Source], span_scorer: SpanScorerLike) -> float | None:
    """The quote's best score over all its occurrences; None if no source contains it verbatim.

    A line may stand under several headings, and 'hours = 6' within 'most_hours = 60'.
    """
    occurrences = [
        (place_of_source(source), match.span())
        for source in sources
        for match in re.finditer(re.escape(quote), source.text)
    ]
    places = list(dict.fromkeys(place for place, _ in occurrences))
    scores_by_place = dict(zip(places, span_scorer.read(question, places), strict=True))
    return max((scores_by_place[place].log_odds(*span) for place, span in occurrences), default=None)


def _is_title(quote: str, source: Source) -> bool:
    """True if `quote` is part of the title line that the chunk begins with, and not a sentence.

    A title that the text repeats, as code does in a docstring, is text; so is a chunk of a single line.
    """
    line, _, body = source.text.partition("\n")
    names = {source.title, *source.location.heading.split(_LEVELS)}
    titled = quote in line and names.issuperset(line.split(_LEVELS))
    return titled and bool(body) and quote not in body and not quote.endswith(".")


def _log_odds(probability: float) -> float:
    capped = min(probability, 1 - 1e-3)
    return math.log(capped / (1 - capped))
