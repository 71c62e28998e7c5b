"""Tell two values of one sentence apart by the words that each stands next to in it.

'The charge goes up from 14 to 16 crowns' and 'bought in 2016 and overhauled in 2023' hold two answers each. The models
prefer one of them whatever is asked, so a preference by clause and by old and new value is added to their scores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from desk_rag.answering.requirements.stems import content_stems

_CLAUSE_END = re.compile(
    r"[,;:()]\s+(?!who|which|whose)|\s+\(|\s[-–—]+\s|\s+(?:and|but|or|while|whereas)\s+", re.IGNORECASE
)
_VALUE = r"(?:\S+\s+){0,3}?\S*\d\S*"
_CHANGES = (
    # old value, new value
    re.compile(rf"\bfrom\s+(?P<old>{_VALUE})\s+to\s+(?P<new>{_VALUE}\b[^,.;]*)", re.IGNORECASE),
    re.compile(
        rf"(?P<new>\S*\d\S*(?:\s+\w+){{0,4}}?)\s+(?:instead of|rather than|against)\s+(?P<old>{_VALUE}\b[^,.;]*)",
        re.IGNORECASE,
    ),
)
_DENIED = re.compile(r",?\s(?:and\s)?not\s+(?:the\s+)?(?P<denied>[\w-]+(?:\s\w+)?)", re.IGNORECASE)
_ASKS_OLD = re.compile(
    r"\b(?:before|previous(?:ly)?|original(?:ly)?|former(?:ly)?|old|earlier|initial(?:ly)?|used to|at first|until"
    r"|normal(?:ly)?|so far|estimate[ds]?|first)\b",
    re.IGNORECASE,
)
_ASKS_NEW = re.compile(
    r"\b(?:now|new|current(?:ly)?|after|next|will|today|nowadays|since|from|is|are|does|do|finally|actual(?:ly)?)\b",
    re.IGNORECASE,
)
_NATS = 8.0
"""Bonus of a clause with all the question's words over one with none; see bench/LOG.md."""


@dataclass(frozen=True, slots=True)
class _Part:
    begin: int
    end: int

    def share(self, begin: int, end: int) -> float:
        """Share of characters [begin, end) that lies inside."""
        return max(0, min(end, self.end) - max(begin, self.begin)) / max(1, end - begin)


class ValuePreference:
    """Preference among the spans of one sentence for one question."""

    def __init__(self, question: str, sentence: str) -> None:
        self._wanted, self._unwanted = _changed_values(question, sentence)
        self._clauses = [] if self._wanted else _clauses(question, sentence)

    @property
    def value(self) -> tuple[int, int] | None:
        """The characters of the sentence that the short answer must come from; None if any may be."""
        return (self._wanted.begin, self._wanted.end) if self._wanted else None

    def nats(self, begin: int, end: int) -> float:
        """Return the bonus of characters [begin, end) of the sentence."""
        clause = sum(weight * part.share(begin, end) for part, weight in self._clauses)
        return _NATS * (clause - sum(part.share(begin, end) for part in self._unwanted))


def _changed_values(question: str, sentence: str) -> tuple[_Part | None, list[_Part]]:
    """The value that is asked for where one replaces another, and those that are not."""
    denied = [_Part(*match.span("denied")) for match in _DENIED.finditer(sentence)]
    for pattern in _CHANGES:
        match = pattern.search(sentence)
        if match is not None:
            old, new = _Part(*match.span("old")), _Part(*match.span("new"))
            if _ASKS_OLD.search(question):
                return old, [new, *denied]
            if _ASKS_NEW.search(question):
                return new, [old, *denied]
    return None, denied


def _clauses(question: str, sentence: str) -> list[tuple[_Part, float]]:
    """The clauses of a sentence, each with the share of the question's words that it holds."""
    wanted = content_stems(question)
    bounds, start = [], 0
    for match in _CLAUSE_END.finditer(sentence):
        bounds.append(_Part(start, match.start()))
        start = match.end()
    bounds.append(_Part(start, len(sentence)))
    shared = [len(wanted & content_stems(sentence[part.begin : part.end])) for part in bounds]
    most = max(shared)
    if most == 0 or len(bounds) == 1:
        return []
    return [(part, count / most) for part, count in zip(bounds, shared, strict=True)]
