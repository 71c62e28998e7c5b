"""Carry the conditions of a list over to 'What is the total?' after 'Which invoices are unpaid?'."""

from __future__ import annotations

import re
from datetime import date

from desk_rag.answering.questions.folder.reading.kinds import kind_in
from desk_rag.answering.questions.folder.reading.periods import take_period
from desk_rag.answering.questions.folder.request import Request, request_of

_THEM = r"(?:them|these|those|that|it|all(?:\s+of\s+(?:them|these|those|that))?)"
_OF_THEM = rf"(?:\s+(?:of|for)\s+{_THEM})?"
_TOTAL = re.compile(
    rf"^(?:what(?:['’]s|\s+is|\s+was)?\s+)?(?:the\s+)?(?P<total>total|sum|average)(?:\s+amount)?{_OF_THEM}$"
    rf"|^how\s+much\s+(?:is|are|was|were)\s+(?:that|it|they|these|those)(?:\s+(?:in\s+total|in\s+all|altogether|together))?$"
    rf"|^(?:add|sum)\s+{_THEM}\s+up$|^(?:in\s+total|altogether)$",
    re.I,
)
_EXTREME = re.compile(
    r"^(?:(?:which|what)(?:\s+one)?(?:\s+of\s+(?:them|these|those))?\s+(?:is|was)\s+)?(?:the\s+)"
    r"(?P<adjective>latest|newest|most\s+recent|oldest|earliest|largest|biggest|highest|most\s+expensive|smallest|lowest|cheapest)"
    rf"(?:\s+one)?(?:\s+of\s+{_THEM})?$",
    re.I,
)
_HOW_MANY = re.compile(
    rf"^how\s+many\s+(?:(?:are|were)\s+(?:there|they|these|those)|is\s+that|of\s+{_THEM}(?:\s+are\s+there)?)$", re.I
)
_THOSE = re.compile(
    r"^(?:those|these|the\s+ones)\s+(?P<rest>(?:of|from|to|in|since|before|after|over|under|above|below)\s+.+)$", re.I
)
_WHICH_OF = re.compile(
    r"^(?:which|what)\s+(?:ones?\s+)?of\s+(?:them|these|those)\s+(?P<verb>are|were|is|was|have|has)\s+(?P<rest>.+)$",
    re.I,
)
_ASKING = re.compile(
    r"^(?:(?:which|what|how\s+many|list|show|give|find|name)\s+(?:is\s+|was\s+)?(?:me\s+)?)?(?:(?:the|my|our|all|every)\s+)*"
    r"(?:(?:total|sum|average|latest|newest|most\s+recent|oldest|earliest|largest|biggest|highest|smallest|lowest|cheapest)"
    r"\s+(?:amount\s+)?(?:of\s+)?)?(?:(?:the|my|our|all)\s+)*",
    re.I,
)
_MOST = re.compile(
    r"\s(?:is|was)\s+(?:the\s+)?(?:latest|newest|most\s+recent|oldest|earliest|largest|biggest|highest|most\s+expensive"
    r"|smallest|lowest|cheapest)$",
    re.I,
)
_VERB = re.compile(r"\s(?P<verb>are|were|is|was|have|has)\s(?!there\b)", re.I)
_DID = re.compile(r"\s(?:(?:did|do|have|had)\s+(?:I|we)\s+(?:have\s+to|\w+)|(?:are|were)\s+there)\b", re.I)


def of_list(body: str, asked: str) -> str:
    """The question with what the last one asked documents for; '' unless it leans on such a question."""
    total, extreme, many, those = (pattern.match(body) for pattern in (_TOTAL, _EXTREME, _HOW_MANY, _THOSE))
    of_them = _WHICH_OF.match(body) if extreme is None else None
    if not (total or extreme or many or those or of_them):
        return ""
    plain = asked.rstrip("?!. ")
    request = request_of(plain, date.today())
    if request is None or request.is_implied or plain.lower().startswith("when "):
        return ""
    if those is not None:
        return _with_condition(plain, those["rest"], request)
    subject = _subject(plain)
    if of_them is not None:
        link = "and" if " that " in subject else of_them["verb"]
        return f"Which {subject} {link} {of_them['rest']}"
    if extreme is not None:
        return f"Which is the {extreme['adjective'].lower()} of the {subject}"
    if many is not None:
        return f"How many {subject}"
    assert total is not None
    return f"What is the {(total['total'] or 'total').lower()} of the {subject}"


def _subject(asked: str) -> str:
    """Return the subject: 'invoices of Kessler that are unpaid' of 'Which invoices of Kessler are unpaid'."""
    subject = f" {_ASKING.sub('', asked)}"
    subject = _DID.sub("", _MOST.sub("", subject))
    kind = kind_in(subject)
    if kind is not None and not kind[0].words.lower().endswith("s"):  # 'invoice' of 'Which invoice is the highest'
        subject = f"{subject[: kind[1].end()]}s{subject[kind[1].end() :]}"
    if " that " not in subject:
        subject = _VERB.sub(r" that \g<verb> ", subject, count=1)
    return " ".join(subject.split())


def _with_condition(asked: str, condition: str, request: Request) -> str:
    """The last question with a name or time more, or another in its place."""
    _, period = take_period(condition, date.today())
    old = request.period.words if period is not None and request.period is not None else ""
    if period is None and request.topic and request.topic in asked:
        old, condition = request.topic, re.sub(r"^(?:of|from|to)\s+", "", condition, flags=re.IGNORECASE)
    if old and old in asked:
        return asked.replace(old, condition, 1)
    kind = kind_in(asked)
    return f"{asked[: kind[1].end()]} {condition}{asked[kind[1].end() :]}" if kind is not None else ""
