"""Recognise questions about the whole folder: which files, list all, how many, the total, a summary."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from desk_rag.answering.requirements.titles import without_titles


def first_match(patterns: Iterable[re.Pattern[str]], question: str) -> re.Match[str] | None:
    """The match of the first pattern that fits a question, its last mark and double blanks apart; None if none does."""
    plain = " ".join(question.split()).rstrip("?!. ")
    return next(filter(None, (pattern.match(plain) for pattern in patterns)), None)


class Form(Enum):
    """A form of question about the whole folder."""

    FILES = "which files"
    LIST = "list all"
    COUNT = "how many"
    TOTAL = "what total"
    SUMMARY = "summary"
    ABOUT = "what is said about"


@dataclass(frozen=True, slots=True)
class WholeFolderQuestion:
    """A question about the whole folder."""

    form: Form
    subject: str
    """The topic: the question without the words that give it its form."""
    needs_condition: bool = False
    """True if it is one only where a condition such as 'not paid' can be decided row by row."""
    author: str = ""
    """Who or what is to say something about it, as in 'What does the lease say about dogs?'"""


_DOCUMENTS = r"(?:files?|documents?|texts?|notes|letters|e?-?mails?|messages|minutes|contracts|reports|pages|sources)"
_NAMES = (
    r"(?:mentions?|contains?|names?|speaks? (?:of|about)|talks? about|deals? with|refers? to|says?|includes?"
    r"|(?:is|are) about)"
)
_SAY = r"(?:say|tell|write|written|said|state|know)"
_ALL = r"(?:all|every|each)(?:\s+of)?(?:\s+(?:the|my|our))?"
_PATTERNS: tuple[tuple[Form, re.Pattern[str]], ...] = (
    (Form.FILES, re.compile(rf"^(?:in\s+)?(?:which|what)\s+(?:of\s+(?:the|my|our)\s+)?{_DOCUMENTS}\s+(?:do\s+)?"
                            rf"{_NAMES}\s+(?P<subject>.+)", re.I)),
    (Form.FILES, re.compile(r"^where\s+(?:is|are)\s+(?P<subject>.+?)\s+mentioned", re.I)),
    (Form.FILES, re.compile(rf"^(?:list|show|find)\s+(?:me\s+)?{_ALL}\s+{_DOCUMENTS}\s+(?:that\s+|which\s+)?{_NAMES}"
                            r"\s+(?P<subject>.+)", re.I)),
    (Form.FILES, re.compile(rf"^how\s+many\s+(?:files?|documents?)\s+{_NAMES}\s+(?P<subject>.+)", re.I)),
    (Form.SUMMARY, re.compile(r"^(?:please\s+)?(?:summari[sz]e|(?:give\s+(?:me\s+)?)?(?:an?\s+|the\s+)?"
                              r"(?:short\s+|brief\s+)?(?:summary|overview)\s+of|sum\s+up|what(?:\s+is|['’]s)\s+in(?=\s+the\s+(?:folder|file)\b))\s+"
                              r"(?P<subject>.+)", re.I)),
    (Form.SUMMARY, re.compile(r"^(?:please\s+)?(?:summari[sz]e|(?:give\s+(?:me\s+)?)?(?:a\s+)?summary)(?P<subject>)$",
                              re.I)),
    (Form.ABOUT, re.compile(rf"^what\s+(?:do|does|did|has|have)\s+(?P<author>.+?)\s+{_SAY}\s+"
                            r"(?:(?:me|us|to\s+\S+|(?-i:[A-Z])\w+)\s+)?about\s+(?P<subject>.+)", re.I)),
    (Form.ABOUT, re.compile(r"^tell\s+me\s+(?:\w+\s+)?about\s+(?P<subject>.+)", re.I)),
    (Form.ABOUT, re.compile(r"^what\s+(?:is|was|has\s+been)\s+(?:there|written|said|known)\s+about\s+(?P<subject>.+)",
                            re.I)),
    (Form.LIST, re.compile(rf"^(?:please\s+)?(?:list|show|give|find|name)\s+(?:me\s+)?{_ALL}\s+(?P<subject>.+)", re.I)),
    (Form.LIST, re.compile(rf"^(?:what|which)\s+are\s+{_ALL}\s+(?P<subject>.+)", re.I)),
    (Form.TOTAL, re.compile(r"^(?:how\s+(?:much|many)|what)\s+(?P<subject>.+?),?\s+(?:in\s+total|altogether)\b", re.I)),
    (Form.TOTAL, re.compile(r"^(?:what\s+(?:is|was|are|were)\s+)?the\s+(?:total|sum)(?:\s+(?:amount|sum|value))?\s+"
                            r"(?:of\s+)?(?P<subject>.+)", re.I)),
    (Form.TOTAL, re.compile(r"^(?:add|sum)\s+up\s+(?P<subject>.+)", re.I)),
    (Form.COUNT, re.compile(r"^how\s+many\s+(?P<subject>.+)", re.I)),
    (Form.COUNT, re.compile(r"^(?:count|what\s+is\s+the\s+number\s+of)\s+(?P<subject>.+)", re.I)),
)  # fmt: skip
_POLITE = re.compile(
    r"^(?:please,?\s+|(?:can|could|would|will)\s+you\s+(?:please\s+)?|i(?:\s+would|['’]d)\s+like\s+(?:you\s+)?to\s+)",
    re.I,
)
_WHICH_NOT = re.compile(
    r"^(?:which|what|who)\s+(?P<subject>.*?\b(?:(?:not|n['’]t|never)\s+(?:yet\s+)?(?:been\s+)?[a-z]{3,}|un(?:paid|settled|sold|read))\b.*)",
    re.I,
)
"""'Which plots have not paid?', which a column of a table may answer."""
_LIMIT = re.compile(
    r"\b(?:at\s+(?:most|least)|(?:per|a|each|every)\s+(?:day|week|month|year|hour|minute|second|time))\b", re.I
)
"""Words of a question for a limit or a rate, which a text states, so that nothing is counted."""


def whole_folder(question: str) -> WholeFolderQuestion | None:
    """The request, if the question has the form of one about the whole folder; None for others.

    The form alone does not decide: 'How many rooms has the hotel?' asks for one fact. So a caller that finds nothing to
    count or add up goes on as with other questions.
    """
    plain = without_titles(_POLITE.sub("", " ".join(question.split()).rstrip("?!. ")))
    for form, pattern in _PATTERNS:
        if (match := pattern.match(plain)) and not (form is Form.COUNT and _LIMIT.search(plain)):
            return WholeFolderQuestion(form, match["subject"], author=match.groupdict().get("author") or "")
    which_not = _WHICH_NOT.match(plain)
    return WholeFolderQuestion(Form.LIST, which_not["subject"], needs_condition=True) if which_not is not None else None
