"""Look up the line of a settings file, or the constant of a program, whose key a question spells out.

'How much deposit does the booking page ask for?' is answered by 'deposit_percent: 30' in booking-page.yaml. Models read
few such lines, so the words of the key are compared with those of the question, and the file's name with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from desk_rag.answering.requirements.answer_kinds import AnswerKind, kind_asked
from desk_rag.answering.requirements.objections import definition_asked
from desk_rag.answering.requirements.places import Lookup, Place
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.sentences import quotable

_LINE = re.compile(r"^(?P<key>[A-Za-z][\w-]*(?:\.[\w-]+)*)\s*(?::|=|:=)\s+(?P<value>\S.*)$")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NO_VALUE = re.compile(r"[.!?]\s|\w[(\[]|[({\[]$|\s(?:if|for|and|or|not|in)\s")
"""Text of several sentences, and expressions of a program."""
_HOW_MANY = re.compile(r"^(?:until\s+|after\s+|from\s+)?how\s+(?:much|many|long|often|far|high|large|old|big)\b", re.I)
_NUMBER = re.compile(r"^[\W]{0,2}\d")
_REMARK = re.compile(r"\s+(?:#|//|--)\s.*$")
_LONGEST_VALUE = 6
"""Words of a value; more are text."""
_UNITS = content_stems(
    "s ms seconds second minutes minute hours hour days day percent cm mm m km kg kw kwh mb gb gib mib kib bytes lps"
    " max min default number count size time at is"
)
"""Words of a key that a question need not have."""
_LIGHT = content_stems(
    "much many long often high large big far does have has ask asks there time times get gets got set use used uses"
    " called default listen listens runs value setting settings option key file number before after people somebody one"
    " made make done"
)
"""Words of a question that need not stand in the key or the file's name."""
_MONEY = content_stems("price cost costs fee charge amount")
_COSTS = re.compile(r"\bhow much\b|\bcosts?\b|\bprice\b|\bpay\b", re.I)
_OF_TIME = content_stems("time at")
_LEAST_COVERED, _LEAST_OF_KEY = 0.75, 0.5
"""Shares of the question's words that key and names must have, and of the key's words that a question for a number
must have; other questions must have all."""


def look_up_key(question: str, places: Sequence[Place]) -> Lookup | None:
    """Return the value of the key that the question spells out; None if it spells out no key, or several."""
    wanted = content_stems(question) - _LIGHT - (_MONEY if _COSTS.search(question) else set())
    if not wanted or definition_asked(question):
        return None
    requirements = Requirements(question)
    rated = [one for place in dict.fromkeys(places) for one in _lines(question, wanted, requirements, place)]
    if not rated:
        return None
    best = max(score for score, _ in rated)
    lines = [line for score, line in rated if score == best]
    return lines[0] if len({line.text for line in lines}) == 1 else None


def _lines(
    question: str, wanted: set[str], requirements: Requirements, place: Place
) -> Iterator[tuple[tuple[float, float], Lookup]]:
    """Yield the lines whose key fits, with the share of the question that they cover and of the key that is asked."""
    labels, question_stems = content_stems(place.labels), content_stems(question)
    for unit in quotable(place.text):
        match = _LINE.match(unit)
        if (
            match is None
            or len(_REMARK.sub("", match["value"]).split()) > _LONGEST_VALUE
            or _NO_VALUE.search(match["value"])
        ):
            continue
        asks_number = _HOW_MANY.search(question) is not None
        repeated = content_stems(match["value"]) <= question_stems
        if repeated or (asks_number and not _NUMBER.search(match["value"])):
            continue
        *sections, name = (content_stems(_CAMEL.sub(" ", part).replace("_", " ")) for part in match["key"].split("."))
        key = set[str]().union(name, *sections)
        if name and name <= _OF_TIME and kind_asked(question) is not AnswerKind.TIME:
            continue  # 'backup.time' is not where it is made
        if _COSTS.search(question):
            name, key = name - _MONEY, key - _MONEY
        own = {stem for stem in wanted if has_stem(stem, key)}
        named = {stem for stem in key if has_stem(stem, question_stems)}
        needed = ((name - _UNITS) | (key - name - _UNITS - labels)) | named
        covered = sum(stem in own or has_stem(stem, labels) for stem in wanted) / len(wanted)
        least = _LEAST_OF_KEY if asks_number else 1.0
        if not own or covered < _LEAST_COVERED or len(named) < least * len(needed):
            continue
        begin = place.text.find(unit)
        if begin >= place.body and requirements.worst(place, begin, begin + len(unit)) <= Fit.NEARBY:
            first, last = _value(match)
            line = Lookup(place, begin, begin + len(unit), (begin + first, begin + last))
            yield (covered, len(named) / len(needed)), line


def _value(match: re.Match[str]) -> tuple[int, int]:
    """The value without quotation marks and without a comma at its end."""
    begin, end = match.span("value")
    text = _REMARK.sub("", match["value"]).rstrip(" ,;")
    end = begin + len(text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return begin + 1, end - 1
    return begin, end
