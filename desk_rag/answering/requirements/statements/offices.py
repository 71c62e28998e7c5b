"""Recognize a question for the holder of an office, and the sentences that name one.

'Who is the treasurer of the club?' is answered by 'Treasurer: Ana Lind' and by 'Ana Lind was elected treasurer'.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_ASKS_HOLDER = re.compile(
    r"^who(?:['’]s|\s+is)\s+(?:now\s+)?(?:the|our|my)\s+(?:(?:current|present|new)\s+)?(?P<office>[a-z]{4,})"
    r"(?:\s+(?:of|at|in)\s+(?P<body>.+?))?(?:\s+(?:now|today|currently|at\s+present))*$"
    r"|^who\s+(?:now\s+)?(?P<verb>chair|conduct|direct|manag|coach|edit)e?s\s+(?:the|our|my)\s+.+?"
    r"(?:\s+(?:now|today|currently|at\s+present|these\s+days))*$",
    re.I,
)
_ENDINGS = {"chair": "", "conduct": "or", "direct": "or", "edit": "or", "coach": ""}
_NAME = r"(?:(?:Mr|Mrs|Ms|Dr|Prof)\.?\s+)?[^\W\d_a-z][\w’'-]+(?:\s+(?:[^\W\d_a-z][\w’'-]+|[^\W\d_a-z]\b\.?)){0,3}"
_FIRST_OF_TWO = re.compile(rf"(?P<name>{_NAME})\s+and\s+$")
"""In front of Ben in 'Ana Lind and Ben Carr were elected chair and secretary', of which Ana is the chair."""
_BECAME = (
    r"(?:(?:was|is|were|has\s+been)\s+(?:re-?)?(?:elected|appointed|chosen|voted|made|confirmed)"
    r"|(?:is|becomes?|became|remains?|stays?)|takes?\s+over|took\s+over)"
)
_MOST_BETWEEN = 5
"""Words between 'was elected' and the office: 'was elected treasurer and stays secretary'."""


@dataclass(frozen=True, slots=True)
class Office:
    """An office whose present holder a question asks for."""

    name: str
    body: str
    """The club or firm that the question names; empty without one."""

    def holder_in(self, sentence: str) -> str | None:
        """The name of the holder if a sentence says who it is."""
        matches = (pattern.search(sentence) for pattern in _patterns(self.name))
        match = next(filter(None, matches), None)
        if match is None:
            return None
        is_first = re.search(rf"\b{re.escape(self.name)}\s+and\s", sentence[match.end("name") :], re.I)
        of_two = _FIRST_OF_TWO.search(sentence[: match.start("name")]) if is_first else None
        return (of_two or match)["name"].strip()


    def is_of_others(self, sentence: str) -> bool:
        """True if a sentence speaks of 'their secretary'."""
        return re.search(rf"\b(?:their|his|her|your)\s+(?:\w+\s+)?{re.escape(self.name)}\b", sentence, re.I) is not None


@lru_cache(maxsize=64)
def office_asked(question: str) -> Office | None:
    """The office whose holder a question asks for; None for other questions."""
    plain = " ".join(question.split()).rstrip("?!. ")
    match = _ASKS_HOLDER.match(plain)
    if match is None:
        return None
    verb = (match["verb"] or "").lower()
    return Office(verb + _ENDINGS.get(verb, "er") if verb else match["office"], match["body"] or "")


def names_holder(question: str, sentence: str) -> bool:
    """True if a sentence says in so many words who holds the office that is asked for."""
    office = office_asked(question)
    return office is not None and office.holder_in(sentence) is not None


@lru_cache(maxsize=64)
def _patterns(office: str) -> tuple[re.Pattern[str], ...]:
    """The forms in which a sentence names the holder: 'Chair: Ana', 'Ana was elected chair', 'Ana Lind, Chairwoman'."""
    other = r"(?<!\b(?i:deputy|former)\s)(?<!\b(?i:vice)[\s-])"
    plain = rf"{other}(?i:{re.escape(office.rstrip('.'))}(?:man|woman|person)?)\b"
    between = rf"(?:\s+(?!(?:and|but)\s+{_NAME}\s)[\w-]+){{0,{_MOST_BETWEEN}}}?"
    return (
        re.compile(rf"(?:^|\W){plain}(?:\s+of\s+[\w\s]{{2,30}})?\s*[:=]\s*(?P<name>{_NAME})"),
        re.compile(rf"(?P<name>{_NAME})\s+{_BECAME}{between}\s+{plain}(?!\s+(?:of\s+)?the\s+meeting)"),
        re.compile(rf"\b(?i:elected|appointed|chose)\s+(?P<name>{_NAME})\s+(?:as\s+|to\s+be\s+)?(?:the\s+|our\s+|its\s+)?(?:new\s+)?{plain}"),
        re.compile(rf"\b(?i:the|our)\s+(?:new\s+)?{plain}\s+is\s+(?:now\s+)?(?P<name>{_NAME})"),
        re.compile(rf"(?P<name>{_NAME})\s+(?:\({plain}\)|(?i:{re.escape(office)}s\s+(?:the|our|this)\b))"),
        re.compile(rf"(?P<name>{_NAME}),\s+(?i:(?:the\s+|our\s+|hon\.?\s+)?){plain}\W*$"),
    )  # fmt: skip
