"""One answer's text, marked against its sample: what is right in it, what it quotes, whether it refuses.

Texts are parsed exactly as the product parses them; the product's judge of evidence has its say only where it is asked
for, since it would hide what a mode does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Source
from desk_rag.answering.evidence.citations import AnswerParser, ParsedAnswer
from desk_rag.answering.stream import AnswerStream
from desk_rag.bench.answer_quality import metrics
from desk_rag.bench.answer_quality.data.sample import Sample
from desk_rag.documents.chunking import ChunkId, Location
from desk_rag.model.prompt import NO_ANSWER

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike
    from desk_rag.retrieval.embedding import Embedder

_MOST_JOINED = 6
_REFUSALS = re.compile(
    r"insufficient information|not (?:mentioned|stated|specified|provided|given|contained|found) in the "
    r"|documents? (?:do|does) not (?:contain|provide|mention|say|specify|state|hold)"
    r"|(?:cannot|can't|can not) (?:answer|be determined)|no information (?:about|on|regarding|in)|could not find"
    r"|信息不足",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Marks:
    """Scores of one answer, each from 0 to 1; None if the question does not apply."""

    exact: float | None
    """The answer's own words, quotes apart, equal one of the wordings."""
    f1: float | None
    rouge_l: float | None
    contains: float | None
    """Every part of the answer stands somewhere in the output."""
    recall: float | None
    """Share of the parts that stand in the output (RULER's score)."""
    coverage: float | None
    """Average reference coverage: share of the evidence that the output quotes; of the answer's parts where no
    evidence is known."""
    right_quote: float | None
    """A quote of the output stands in a chunk that holds the answer."""
    false_refusal: float | None
    """1 if it says that there is no answer although there is one."""
    refused: float | None
    """1 if it says that there is no answer and there is none."""
    misled: float | None
    """1 if it holds the wrong answer that was planted."""


NAMES = tuple(Marks.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Judge:
    """The product's judge: it withholds an answer whose evidence does not speak of the question."""

    embedder: Embedder | None
    """None: it goes by words alone."""
    pointer: SpanScorerLike | None = None
    """The one that chose the quotes, if one did."""


def mark(sample: Sample, output: str, judge: Judge | None = None, refusal: float | None = None) -> Marks:
    """Mark the raw text of one answer; with a `judge`, mark what the user would see of it.

    `refusal` is the probability that the model gave to refusing, where it was taught to.
    """
    parsed, output = _parsed(sample, output, judge, refusal)
    # Models that were not taught the sentence refuse in words of their own; who quotes evidence does not refuse.
    refuses = float(not parsed.found or (not parsed.citations and _REFUSALS.search(parsed.text[:160]) is not None))
    if not sample.answerable:
        return Marks(None, None, None, None, None, None, None, None, refuses, None)
    wordings = _wordings(sample)
    parts_said = [any(metrics.contains(output, one) for one in part) for part in sample.answers]
    recall = sum(parts_said) / len(parts_said)
    quoted = {citation.source_number - 1 for citation in parsed.citations}
    return Marks(
        exact=max(metrics.exact(parsed.text, one) for one in wordings),
        f1=max(metrics.f1(parsed.text, one) for one in wordings),
        rouge_l=max(metrics.rouge_l(parsed.text, one) for one in wordings),
        contains=float(all(parts_said)),
        recall=recall,
        coverage=_coverage(sample, output) if sample.evidence else recall,
        right_quote=float(bool(quoted & set(sample.gold))) if sample.gold else None,
        false_refusal=refuses,
        refused=None,
        misled=float(any(metrics.contains(output, one) for one in sample.wrong)) if sample.wrong else None,
    )


def _parsed(sample: Sample, output: str, judge: Judge | None, refusal: float | None) -> tuple[ParsedAnswer, str]:
    """The answer in its parts, and its raw text: that of a refusal where the judge withholds it."""
    sources = _sources(sample.contexts)
    if judge is None:
        parser = AnswerParser(sources)
        parser.feed(output)
        return parser.finish(), output
    stream = AnswerStream(sample.question, sources, judge.embedder, refusal, judge.pointer)
    for _ in stream.feed(output):
        pass  # an event is not yet the last word
    parsed, _ = stream.finish()
    return parsed, NO_ANSWER if stream.refused else output


def _wordings(sample: Sample) -> list[str]:
    """Accepted wordings: those of the one part, or the parts one after the other."""
    if len(sample.answers) == 1:
        return list(sample.answers[0])
    most = max(len(part) for part in sample.answers)
    return [", ".join(part[min(i, len(part) - 1)] for part in sample.answers) for i in range(min(most, _MOST_JOINED))]


def _coverage(sample: Sample, output: str) -> float:
    return sum(metrics.recall_l(output, proof) for proof in sample.evidence) / len(sample.evidence)


def _sources(contexts: Sequence[str]) -> list[Source]:
    return [
        Source(
            number=number, chunk_id=ChunkId(""), path=Path(f"chunk-{number}"), title="", location=Location(),
            text=text, score=1.0, warm=True, stale=False,
        )
        for number, text in enumerate(contexts, start=1)
    ]  # fmt: skip
