"""Look up the line whose label is what the question asks for: 'Emergency number: ...', 'The monthly rent is ...'.

Two lines of one sheet look alike to models, so the label is compared word by word: it must have every word of what is
asked for, and label, heading and file name together what the question names besides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from desk_rag.answering.requirements.answer_kinds import AnswerKind, is_of_kind, kind_asked
from desk_rag.answering.requirements.dates import dates
from desk_rag.answering.requirements.places import Lookup, Place
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.sentences import quotable

_OF = r"(?:\s+(?:of|for|in|at|on|from|to)\s+.+)?"
_NO_PREPOSITION = r"(?!(?:of|for|in|at|on|from|to)\b)"
_PROPERTIES = tuple(
    re.compile(pattern, re.I)
    for pattern in (
        r"^(?:what|who|which|how\s+(?:much|high|large)|where|until\s+when)(?:['’]s|\s+(?:is|are|was|were))\s+(?:the|my|our)"
        rf"\s+(?P<property>(?!(?:same|total|sum)\b)\S+(?:\s+{_NO_PREPOSITION}\S+){{0,3}}){_OF}$",
        r"^what(?:['’]s|\s+(?:is|was))\s+.+['’]s?\s+(?P<property>\S+(?:\s+\S+)?)$",
        r"^(?:which|what)\s+(?P<property>\S+(?:\s+\S+)?)\s+(?:does|do|did|has|have)\s+.+$",
        r"^how\s+much\s+(?P<property>(?!of\b|did\b|do\b|does\b|more\b|is\b|was\b)\S+(?:\s+\S+){0,2}?)"
        r"\s+(?:do|does|did|is|was|were|has|have|must|will|should)\s+.+$",
        r"^who\s+(?:is|are)\s+(?:responsible|liable|in\s+charge)\s+(?:for|of)\s+(?:(?:the|my|our)\s+)?(?P<property>\S+(?:\s+\S+)?)$",
        r"^who\s+(?:is|are|was|were)\s+(?P<property>present|absent|excused|invited)\b.*$",
    )
)
_LABELLED = re.compile(r"^\W{0,3}(?P<label>[^\W_](?:[^:;?!()]|\([^:;?!()]*\)){1,60}):\s+(?P<value>\S.*)$")
_IN_COLUMN = re.compile(
    r"^(?P<label>[A-Z][^\W\d_]*(?:\s[^\W\d_][\w-]*){0,5})\s+(?P<value>[€$£]?\d[\d.,]*(?:\s?[€$£%]|\s[a-z]\w{0,6})?)$"
)
"""A line of a sum in two columns: 'Income tax due   5,177'."""
_STATED = re.compile(
    r"^(?:The|Our|My)\s+(?P<label>[^,;:]{2,40}?)\s+(?:is|are|was|were|stands\s+at|amounts\s+to)\s+"
    r"(?P<value>(?:[^,;(]|(?<=\d),(?=\d))+)"
)
_VALUE = re.compile(r"^(?:[€$£]?\d|[A-Z]|(?:the|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve)\b)")
_CONTACTS: dict[AnswerKind | None, re.Pattern[str]] = {
    AnswerKind.PHONE: re.compile(r"(?<![\w-])\+?\(?\d(?:[\s()/.-]{0,2}\d){5,14}(?![\w-])"),
    AnswerKind.ADDRESS: re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
}
_LONGEST_VALUE = 12
"""Words of a value; more are a sentence, in which the pointer finds the answer."""
_FREE = content_stems("much does have has use uses used pay due responsible liable charge live lives lived")
"""Words of a question that need not stand anywhere."""


def property_asked(question: str) -> str:
    """Return what a question asks for by name: 'emergency number', 'monthly rent'; empty if it does not."""
    if kind_asked(question) is AnswerKind.POSTAL:  # 'Where does Ana live?'
        return "address"
    plain = " ".join(question.split()).rstrip("?!. ")
    return next((match["property"] for pattern in _PROPERTIES if (match := pattern.match(plain))), "")


def look_up_label(question: str, places: Sequence[Place]) -> Lookup | None:
    """Return the value under the label that is asked for; None without such a label, or if several values differ."""
    property_stems = content_stems(property_asked(question))
    if not property_stems:
        return None
    besides = content_stems(question) - property_stems - _FREE
    requirements = Requirements(question)
    fitting = [
        (extra, line)
        for place in dict.fromkeys(places)
        for extra, line in _lines(question, property_stems, besides, requirements, place)
    ]
    if not fitting:
        return None
    least = min(extra for extra, _ in fitting)
    best = [line for extra, line in fitting if extra == least]
    return best[0] if len({line.text.casefold() for line in best}) == 1 else None


def look_up_contact(question: str, places: Sequence[Place]) -> Lookup | None:
    """Return the only phone number or mail address in a sentence about the named person; None without one."""
    pattern = _CONTACTS.get(kind_asked(question))
    requirements = Requirements(question)
    if pattern is None or not requirements:
        return None
    lines = []
    for place in dict.fromkeys(places):
        for unit in quotable(place.text):
            values = [match for match in pattern.finditer(unit) if not dates(match.group())]
            begin = place.text.find(unit)
            if len(values) == 1 and requirements.worst(place, begin, begin + len(unit)) is Fit.STATED:
                first, last = values[0].span()
                lines.append(Lookup(place, begin, begin + len(unit), (begin + first, begin + last)))
    return lines[0] if len({re.sub(r"\W", "", line.text) for line in lines}) == 1 else None


def _lines(
    question: str, asked: set[str], besides: set[str], requirements: Requirements, place: Place
) -> Iterator[tuple[int, Lookup]]:
    """Yield the lines that have the label, each with the number of words of its label that nobody asked for."""
    kind = kind_asked(question)
    for unit in quotable(place.text):
        match = _LABELLED.match(unit) or _STATED.match(unit) or _IN_COLUMN.match(unit)
        if match is None or "; " in unit and ": " in match["value"]:  # rows of several columns: see rows
            continue
        stems = content_stems(match["label"])
        value = match["value"].rstrip(" .")
        if not asked <= stems or not 0 < len(value.split()) <= _LONGEST_VALUE:
            continue
        if kind is not None and not is_of_kind(kind, value) or match.re is _STATED and not _VALUE.match(value):
            continue
        for unit_match in re.finditer(re.escape(unit), place.text):
            begin, end = unit_match.span()
            around = stems | content_stems(" ".join([place.labels, *place.sections_before(begin)[:1]]))
            around |= content_stems(place.text[: place.body or place.text.find("\n")])
            if begin < place.body or not all(has_stem(stem, around) for stem in besides):
                continue
            if requirements.worst(place, begin, end) <= Fit.NEARBY:
                start = begin + match.start("value")
                extra = len(stems - asked - besides)
                yield extra, Lookup(place, begin, end, (start, start + len(value)))
