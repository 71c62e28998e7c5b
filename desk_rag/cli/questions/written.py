"""Show what was compared with the passages in an answer that a model wrote in its own words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from desk_rag.answering.events import Answer, CheckedSentence, Citation, Grounding, Support
from desk_rag.sanitize import clean, shown_path

UNSUPPORTED = "[?]"
"""Stands behind a sentence that the passages do not support, or that could not be compared."""
_LONGEST_QUOTE = 240
_REASONS_SHOWN = 3


def mark(sentence: CheckedSentence) -> str:
    """What stands behind a sentence; nothing for a supported one, whose text names its passages."""
    return "" if sentence.support is Support.SUPPORTED else f" {UNSUPPORTED}"


def evidence_lines(answer: Answer, bases: Sequence[Path]) -> Iterator[str]:
    """The passages that an answer's sentences rest on, as lines below it."""
    shown: set[tuple[int, str]] = set()
    for citation in (each for sentence in answer.sentences for each in sentence.citations):
        if (citation.source_number, citation.quote) not in shown:
            shown.add((citation.source_number, citation.quote))
            yield _evidence_line(citation, bases)


def _evidence_line(citation: Citation, bases: Sequence[Path]) -> str:
    quote = clean(citation.quote, single_line=True)
    quote = quote if len(quote) <= _LONGEST_QUOTE else f"{quote[: _LONGEST_QUOTE - 1]}…"
    origin = f" ({citation.origin})" if citation.origin else ""
    return f"[{citation.source_number}] {shown_path(citation.path, bases)} {citation.location}".rstrip() + (
        f"{origin} “{quote}”"
    )


def remarks(answer: Answer) -> list[str]:
    """Sentences about an answer's support and its model's reasoning."""
    found = []
    doubted = [sentence for sentence in answer.sentences if sentence.support is Support.UNSUPPORTED]
    unchecked = [sentence for sentence in answer.sentences if sentence.support is Support.UNCHECKED]
    if answer.grounding is Grounding.NONE:
        found.append("Not from your documents: the passages that were read support no sentence of this answer")
    elif doubted:
        count, total = len(doubted), len(answer.sentences)
        verb = "is" if count == 1 else "are"
        found.append(f"{count} of {total} sentences {verb} not supported by the passages, marked {UNSUPPORTED}")
    reasons = dict.fromkeys(sentence.reason for sentence in doubted if sentence.reason)
    if reasons:
        found[-1] += ": " + "; ".join(list(reasons)[:_REASONS_SHOWN])
    if unchecked:
        reasons = dict.fromkeys(sentence.reason for sentence in unchecked if sentence.reason)
        verb = "was" if len(unchecked) == 1 else "were"
        found.append(f"{len(unchecked)} of {len(answer.sentences)} sentences {verb} not checked: {'; '.join(reasons)}")
    if answer.reasoning:
        found.append(f"The model reasoned for {len(answer.reasoning.split()):,} words first; --json shows them")
    return found


def support_json(answer: Answer) -> dict[str, object] | None:
    """The object `support` of `ask --json`; null for an answer without checked sentences."""
    if answer.grounding is None:
        return None
    return {
        "verdict": answer.grounding.value,
        "sentences": [
            {
                "start": sentence.start,
                "end": sentence.end,
                "text": answer.text[sentence.start : sentence.end],
                "support": sentence.support.value,
                "reason": sentence.reason,
                "score": None if sentence.score is None else round(sentence.score, 3),
                "sources": [citation.source_number for citation in sentence.citations],
                "quotes": [citation.quote for citation in sentence.citations],
            }
            for sentence in answer.sentences
        ],
    }
