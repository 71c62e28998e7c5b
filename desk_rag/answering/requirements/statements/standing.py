"""Tell whether a sentence says that something is over or was only planned, and whether a question asks otherwise.

'I no longer take the tablets (ramipril 5 mg)' does not answer 'What do I take?', nor 'Ana was chair until 2023' who the
chair is, nor 'The annex was to be finished on 29 September' when it was. A question for yes or no is answered by such
sentences as well as by others.
"""

from __future__ import annotations

import re
from datetime import date

from desk_rag.answering.requirements.dates import MONTHS, dates

_ASKS_WHAT_HOLDS = re.compile(
    r"^(?:(?:at|by|in|on|from|to|for|with|of)\s+)?(?:who|whom|whose|what|which|where|how\s+(?:much|many|high|large|often|long))\b"
    r"(?=.*(?:\b(?:am|is|are|do|does|has|have|can|may|must|now|currently|today|nowadays)\b|['’]s\b))",
    re.I,
)
_ASKS_OF_PAST = re.compile(
    r"\b(?:was|were|did|had|been|before|until|till|former(?:ly)?|previous(?:ly)?|earlier|used\s+to|ago|last|not|n['’]t|never|longer"
    r"|any\s?more|stop(?:s|ped)?|ended?|replaced?|retired?|resign(?:ed)?|(?:19|20)\d\d)\b|n['’]t\b",
    re.I,
)
_OVER = re.compile(
    r"\b(?:no|not\s+any)\s+longer\b|(?:\bnot\b|n['’]t\b)[^.;:]*\bany\s?more\b|(?<!\bis\s)(?<!\bare\s)(?<!\bbe\s)(?<!\bwas\s)\bused\s+to\b"
    r"|\b(?:gave|given)\s+up\b|\b(?:stepped|stood)\s+down\b|\bresigned\b|\bretired\b(?!\s+\w+s?\b(?=\s+(?:lives?|is)\b))"
    r"|\b(?:has|have|was|were)\s+(?:been\s+)?(?:abolished|discontinued|superseded|withdrawn)\b|\bformerly\b",
    re.I,
)
_GOES_ON = re.compile(
    r"\b(?:but|instead|now|since\s+then|from\s+now\s+on|(?:re-?)?elected|succeeded|replaced\s+by)\b", re.I
)
"""After what is over: the sentence says too what holds in its place."""
_UNTIL = re.compile(
    rf"\b(?:until|till|up\s+to|ended\s+(?:in|on))\s+(?:the\s+end\s+of\s+)?(?:\d{{1,2}}\s+)?(?:(?P<month>{'|'.join(MONTHS)})\s+)?"
    r"(?P<year>(?:19|20)\d\d)\b",
    re.I,
)
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


def asks_what_holds(question: str) -> bool:
    """True if a question asks for what holds now, and not for yes or no."""
    plain = question.strip()
    return _ASKS_WHAT_HOLDS.search(plain) is not None and _ASKS_OF_PAST.search(plain) is None


def is_over(sentence: str, today: date) -> bool:
    """True if a sentence says only that something is over, or that it was so until a time that is past."""
    over = _OVER.search(sentence)
    if over is not None:
        return _GOES_ON.search(sentence, over.end()) is None
    until = _UNTIL.search(sentence)
    if until is None or _GOES_ON.search(sentence, until.end()):
        return False
    month = MONTHS.index(until["month"].lower()) + 1 if until["month"] else 12
    return (int(until["year"]), month) < (today.year, today.month)


def asks_when_done(question: str) -> bool:
    """True if a question asks when something was done or whether it has been, and not when it was planned to be."""
    plain = question.strip()
    return _ASKS_WHEN_DONE.match(plain) is not None and _ASKS_OF_PLAN.search(plain) is None


def only_planned(sentence: str) -> bool:
    """True if a sentence speaks of a plan, and has no time outside the clause that does."""
    if _PLAN.search(sentence) is None:
        return False
    return not any(dates(clause) for clause in _CLAUSE.split(sentence) if _PLAN.search(clause) is None)
