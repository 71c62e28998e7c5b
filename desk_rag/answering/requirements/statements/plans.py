"""Tell whether a sentence only says what was planned or has to be done, where a question asks when it was done.

'The annex was to be finished on 29 September' does not answer 'When was the annex finished?'.
"""

from __future__ import annotations

import re

from desk_rag.answering.requirements.dates import dates

_ASKS_WHEN_DONE = re.compile(
    r"^(?:when|(?:on|in|since|by)?\s*(?:what|which)\s+(?:day|date|month|year))\s+(?:was|were|did|has|have|had)\b"
    r"|^(?:has|have)\b.*\bbeen\b",
    re.I,
)
_ASKS_OF_PLAN = re.compile(
    r"\b(?:to\s+(?:be|have|begin|start|open|finish|end|close)|due|should|ought|supposed|expected|planned|scheduled|meant|intended)\b",
    re.I,
)
_PLAN = re.compile(
    r"\b(?:(?:is|are|was|were)\s+(?:(?:still|now|originally|first)\s+)?(?:to\s+(?:be|have|begin|start|open|finish|end|close)"
    r"|due\s+to|meant\s+to|supposed\s+to|expected\s+to|planned\s+(?:to|for)|scheduled\s+(?:to|for)|intended\s+to|going\s+to)"
    r"|(?:has|have|had)\s+to\s+be|must\s+be|should\s+(?:be|have)|ought\s+to)\b",
    re.I,
)
_CLAUSE = re.compile(r"[;:]\s|[,.]\s+(?:but|and|yet)\s|\s(?:but|although)\s", re.I)


def asks_when_done(question: str) -> bool:
    """True if a question asks when something was done or whether it has been, and not when it was planned to be."""
    plain = question.strip()
    return _ASKS_WHEN_DONE.match(plain) is not None and _ASKS_OF_PLAN.search(plain) is None


def only_planned(sentence: str) -> bool:
    """True if a sentence speaks of a plan, and has no time outside the clause that does."""
    if _PLAN.search(sentence) is None:
        return False
    return not any(dates(clause) for clause in _CLAUSE.split(sentence) if _PLAN.search(clause) is None)
