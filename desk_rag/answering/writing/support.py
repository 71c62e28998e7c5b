"""Compare what a model wrote in its own words with the passages it was given.

Three judges see each sentence: the embedder (does a passage mean something similar?), the words and facts (does it have
the same ones?) and the span scorer, which is asked each number and name of the sentence back: 'The fine is how many
crowns?'. A logistic regression joins them. None of them understands negation well, and a swapped relation between two
known things may pass (bench/LOG.md, "Support of written answers").
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from desk_rag.answering.events import Citation, Source, Support
from desk_rag.answering.evidence.quote_matching import DOUBLE_QUOTES, QuoteFinder
from desk_rag.answering.requirements.statements.languages import differ
from desk_rag.answering.requirements.stems import content_stems, coverage
from desk_rag.answering.writing import facts
from desk_rag.answering.writing.contrasts import contradicts, swapped
from desk_rag.answering.writing.passages import SourceWindows, Window

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike, SpanScores
    from desk_rag.retrieval.embedding import EmbedderLike

_MARKS = re.escape("".join(sorted(DOUBLE_QUOTES)))
_QUOTE = re.compile(f"[{_MARKS}]([^{_MARKS}\n]+)[{_MARKS}]")
_HALVES = re.compile(
    r",?\s(?:while|whereas|but|although|während|aber|wobei|tandis que|mais|mientras|pero|mentre|ma)\s"
    r"|;\s|,\sand\s"
)
_QUOTED_WORDS = 4
"""Words from which on a verbatim sentence, or a quote inside one, is looked up as such."""
_FRAGMENT_WORDS = 4
"""Sentences of at most this many words are read together with the question: '200 crowns'."""
_LEAST_COVERAGE = 0.5
"""Share of a fragment's own content words that its passage must have: the words of the question prove nothing."""
_MOST_FACTS = 3
"""Facts of a sentence that the span scorer is asked about."""
_CITED_BONUS = 0.08
"""Rank that a citation by the model adds to its passage."""
_LEAST_SPAN, _MOST_SPAN, _LEAST_MARGIN, _MOST_RIVAL = -8.0, 8.0, -12.0, 8.0


@dataclass(frozen=True, slots=True)
class Signals:
    """Scores of a sentence against a passage."""

    similarity: float
    coverage: float
    missing: bool
    """The passage's sentences lack a number or a name that stands elsewhere in the chunk."""
    contrast: bool
    """The sentence reads like the opposite of the passage."""
    swapped: bool
    """The passage has another fact in the place of one of the sentence's."""
    span_score: float | None = None
    """Log-odds of the span scorer that the passage answers the sentence, taken as a question."""
    fact_margin: float = 0.0
    """Lowest log-probability that the span scorer gives a fact of the sentence when it is asked for it."""
    rival: float = 0.0
    """Log-odds by which it most prefers another fact of the same kind; 0 if it prefers none, or if one sentence of the
    passage has all words and facts of this one."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """Logistic regression: log-odds that a sentence is supported."""

    bias: float
    similarity: float
    coverage: float
    missing: float
    contrast: float
    span_score: float = 0.0
    fact_margin: float = 0.0
    rival: float = 0.0
    swapped: float = -4.0
    threshold: float = 0.0

    def log_odds(self, signals: Signals) -> float:
        span = min(max(signals.span_score or 0.0, _LEAST_SPAN), _MOST_SPAN)
        return (
            self.bias
            + self.similarity * signals.similarity
            + self.coverage * signals.coverage
            + self.missing * signals.missing
            + self.contrast * signals.contrast
            + self.swapped * signals.swapped
            + self.span_score * span
            + self.fact_margin * max(signals.fact_margin, _LEAST_MARGIN)
            + self.rival * min(signals.rival, _MOST_RIVAL)
        )


_WITH_SPAN_SCORER = _Weights(-2.81, 4.0, 0.58, -2.25, -2.02, 0.12, 0.11, -0.25)
_WORDS_ALONE = _Weights(-1.98, 0.0, 2.9, -2.16, -1.38)
"""Without the embedded embedder, whose cosines and span scorer the other weights were fitted on."""


@dataclass(frozen=True, slots=True)
class SupportVerdict:
    """Result of checking one sentence."""

    support: Support
    reason: str = ""
    score: float | None = None
    citations: tuple[Citation, ...] = ()


class SupportChecker:
    """Compares the sentences of one answer with its sources."""

    def __init__(
        self,
        question: str,
        sources: Sequence[Source],
        embedder: EmbedderLike | None,
        span_scorer: SpanScorerLike | None,
    ) -> None:
        self._question = question
        self._embedder = embedder if embedder is not None and embedder.is_embedded else None
        self._span_scorer = span_scorer if self._embedder is not None else None
        self._windows = [SourceWindows(source, self._embedder) for source in sources]
        self._finder = QuoteFinder(sources)
        self._known = " ".join([question, *(f"{source.title} {source.path.stem}" for source in sources)])
        self._unfound: list[str] = []
        self.last_signals: Signals | None = None
        """Signals of the last sentence that was scored, for measurements."""

    @property
    def unfound_quotes(self) -> tuple[str, ...]:
        """Quotes inside the sentences so far that stand in no source."""
        return tuple(dict.fromkeys(self._unfound))

    def check(self, claim: str, cited: Sequence[int] = (), context: str = "") -> SupportVerdict:
        """Compare one sentence, without Markdown, with the sources; those in `cited` first.

        `context` is what it continues, such as the header of a table; a fragment continues the question. A sentence
        that is not supported as a whole may be so in its two halves: 'A has ten beds, while B has twenty'.
        """
        verdict = self._check(claim, cited, context)
        halves = _HALVES.split(claim, maxsplit=1)
        long_enough = min(len(half.split()) for half in halves) > _FRAGMENT_WORDS
        if verdict.support is not Support.UNSUPPORTED or len(halves) == 1 or not long_enough:
            return verdict
        signals = self.last_signals
        parts = [self._check(half, cited, "") for half in halves]
        self.last_signals = signals
        if any(part.support is not Support.SUPPORTED for part in parts):
            return verdict
        citations = tuple(dict.fromkeys(each for part in parts for each in part.citations))
        return SupportVerdict(Support.SUPPORTED, "", min(part.score or 0.0 for part in parts), citations)

    def _check(self, claim: str, cited: Sequence[int], context: str) -> SupportVerdict:
        self.last_signals = None
        if not context and len(claim.split()) <= _FRAGMENT_WORDS:
            context = self._question
        if not self._windows:
            return SupportVerdict(Support.UNSUPPORTED, "no passage was found for the question")
        quotes = [quote.strip() for quote in _QUOTE.findall(claim) if len(quote.split()) >= _QUOTED_WORDS]
        lost = [quote for quote in quotes if self._finder.find(quote) is None]
        if lost:
            self._unfound += lost
            return SupportVerdict(Support.UNSUPPORTED, "its quote stands in no passage", 0.0)
        verbatim = self._finder.find(claim) if len(claim.split()) >= _QUOTED_WORDS else None
        if verbatim is not None:
            return SupportVerdict(Support.SUPPORTED, score=1.0, citations=(verbatim,))
        claimed = facts.facts(claim)
        if not claimed and not content_stems(claim):
            return SupportVerdict(Support.UNCHECKED, "it has no words of its own to compare")
        windows = self._ranked(f"{context} {claim}".strip(), claimed, cited)
        best = windows[0]
        also = self._also_needed(windows, claimed, cited)
        texts = "\n".join(window.source.text for window in (best, *also))
        if absent := facts.missing(claimed, texts, self._known):
            return SupportVerdict(Support.UNSUPPORTED, _missing_reason(absent), 0.0)
        if context and coverage(claim, best.source.text) < _LEAST_COVERAGE:
            return SupportVerdict(Support.UNSUPPORTED, "no passage says this", 0.0)
        weights = _WORDS_ALONE if self._embedder is None else _WITH_SPAN_SCORER
        self.last_signals = self.signals(claim, claimed, best, context)
        log_odds = weights.log_odds(self.last_signals)
        score = 1 / (1 + math.exp(-log_odds))
        if log_odds < weights.threshold:
            foreign = [window for window in windows if differ(claim, window.source.text)]
            meant = [window for window in foreign if window.source.number in cited]
            if meant or (claimed and any(not facts.missing(claimed, window.text) for window in foreign)):
                citations = tuple(_citation(window) for window in meant)
                return SupportVerdict(Support.UNCHECKED, "it is in another language than the passages", None, citations)
            reason = "its passage says this of something else" if self.last_signals.swapped else "no passage says this"
            return SupportVerdict(Support.UNSUPPORTED, reason, score)
        return SupportVerdict(Support.SUPPORTED, "", score, tuple(_citation(window) for window in (best, *also)))

    def signals(self, claim: str, claimed: Sequence[facts.Fact], window: Window, context: str = "") -> Signals:
        """Score a claim against its best window; `context` is as in `check`."""
        contrast = contradicts(claim, window.core(claim), window.text, window.parts)
        turned = swapped(claim, window.text)
        if self._span_scorer is None:
            return Signals(window.similarity, window.coverage, window.missing > 0, contrast, turned)
        text = window.source.text
        (scores,) = self._span_scorer.read(f"{context} {claim}".strip(), [text])
        present = [fact for fact in facts.whole_dates(claim, claimed) if facts.occurrences(fact, text)]
        asked = [self._asked_back(claim, fact, text, context) for fact in present[:_MOST_FACTS]]
        rival = max((rival for _, rival in asked), default=0.0)
        if any(coverage(claim, part) == 1.0 and not facts.missing(list(claimed), part) for part in window.parts):
            rival = 0.0  # one sentence has it all
        return Signals(
            window.similarity, window.coverage, window.missing > 0, contrast, turned,
            scores.log_odds(window.begin, window.end), min((margin for margin, _ in asked), default=0.0), rival,
        )  # fmt: skip

    def _asked_back(self, claim: str, fact: facts.Fact, text: str, context: str) -> tuple[float, float]:
        """Turn the claim into a question for one of its facts, and see what the span scorer answers.

        Returns the log-probability of the fact's places among all spans, and by how much it prefers a rival of the
        fact, 0 if it does not.
        """
        assert self._span_scorer is not None
        asking = "when" if facts.is_date(fact) else "how many" if fact.is_number else "what"
        gap = f"{claim[: fact.begin]}{asking}{claim[fact.end :]}"
        if context:
            gap = context if context == self._question else f"{context} {gap}"
        (scores,) = self._span_scorer.read(gap, [text])
        places = facts.occurrences(fact, text)
        at_fact = max((_log_odds(scores, begin, end) for begin, end in places), default=-math.inf)
        margin = max(at_fact - scores.log_odds(0, len(text)), _LEAST_MARGIN)
        at_rival = max((_log_odds(scores, *place) for place in facts.rivals(fact, claim, text)), default=-math.inf)
        return margin, max(at_rival - at_fact, 0.0) if places else 0.0

    def _ranked(self, claim: str, claimed: Sequence[facts.Fact], cited: Sequence[int]) -> list[Window]:
        """The best window of each source, best first."""
        vector = None if self._embedder is None else self._embedder.embed_chunks([claim])[0]
        windows = [source.best(claim, vector, claimed, self._known) for source in self._windows]
        return sorted(
            windows, key=lambda window: window.rank + _CITED_BONUS * (window.source.number in cited), reverse=True
        )

    def _also_needed(
        self, windows: Sequence[Window], claimed: Sequence[facts.Fact], cited: Sequence[int]
    ) -> tuple[Window, ...]:
        """The best other window, those that were cited first, that holds facts which the best one's source lacks."""
        lacking = facts.missing(list(claimed), windows[0].source.text, self._known)
        others = sorted(windows[1:], key=lambda window: window.source.number not in cited)
        holding = [window for window in others if len(facts.missing(lacking, window.source.text)) < len(lacking)]
        return tuple(holding[:1]) if lacking else ()


def _log_odds(scores: SpanScores, begin: int, end: int) -> float:
    return scores.log_odds(begin, end)


def _citation(window: Window) -> Citation:
    source = window.source
    location = source.location.within(source.text, window.begin, window.end)
    return Citation(source.number, source.path, location, window.text)


def _missing_reason(absent: Sequence[facts.Fact]) -> str:
    names = list(dict.fromkeys(fact.text for fact in absent))[:3]
    kind = "number" if absent[0].is_number else "name"
    if len(names) > 1:
        return f"{', '.join(names)} do not stand in its passages"
    return f"the {kind} {names[0]} stands in none of its passages"
