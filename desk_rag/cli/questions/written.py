"""Show what was compared with the passages in an answer that a model wrote in its own words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from desk_rag.answering.events import Answer, Citation
from desk_rag.sanitize import clean, shown_path

_LONGEST_QUOTE = 240


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
