"""Tell two values of one sentence apart by the words that each stands next to in it.

'The charge goes up from 14 to 16 crowns' and 'bought in 2016 and overhauled in 2023' hold two answers each. The models
prefer one of them whatever is asked, so a preference by clause and by old and new value is added to their scores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from desk_rag.answering.requirements.answer_kinds import AnswerKind, kind_asked, verb_of_who
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
    re.compile(
        rf"(?P<new>{_VALUE}\b[^,.;()]*)\((?:(?:the\s+)?(?:last|previous)\s+\w+|previously|formerly|before|until\s+now|so\s+far"
        r"|was|up\s+from|down\s+from)\b:?\s*(?P<old>[^()]*\d[^()]*)\)",
        re.IGNORECASE,
    ),
)
_REPLACED = re.compile(
    r"(?P<old>[^,.;]+?)\s+(?:was|were|is|are|(?:has|have)\s+been)\s+(?:replaced|succeeded|superseded)"
    r"\s+(?:by|with)\s+(?P<new>[^,.;()]+)",
    re.IGNORECASE,
)
"""Old and new value, with numbers or without; 'Who replaced the valve?' asks for neither."""
_DENIED = re.compile(r",?\s(?:and\s)?not\s+(?:the\s+)?(?P<denied>[\w-]+(?:\s\w+)?)", re.IGNORECASE)
_ASKS_WHO_DID = re.compile(r"\b(?:replace[sd]?|succeeded|superseded|when|why|how)\b", re.IGNORECASE)
_ASKS_OLD = re.compile(
    r"\b(?:before|previous(?:ly)?|original(?:ly)?|former(?:ly)?|old|earlier|initial(?:ly)?|used to|at first|until"
    r"|normal(?:ly)?|so far|estimate[ds]?|first)\b",
    re.IGNORECASE,
)
_ASKS_NEW = re.compile(
    r"\b(?:now|new|current(?:ly)?|after|next|will|today|nowadays|since|from|is|are|does|do|finally|actual(?:ly)?)\b",
    re.IGNORECASE,
)
_WITHOUT = re.compile(r"\b(?:without|excluding|excl\.?|less|minus|not\s+including)\b", re.IGNORECASE)
_WITH = re.compile(r"\b(?:with|including|incl\.?|and)\b", re.IGNORECASE)
_NAME = r"[^\W\d_a-z][\w.’'-]*"
_NAME_AND_ROLE = re.compile(rf"(?P<name>{_NAME}(?:\s+{_NAME})*)\s+\((?P<role>[^()]+)\)")
_PASSIVE = re.compile(r"\b(?:is|are|was|were|be|been|being)\s+(?:\w+ly\s+)?$", re.IGNORECASE)
_PAIR = re.compile(
    r"[\"']?(?P<key>[^\W\d][\w-]*)[\"']?\s*[:=]\s*(?P<value>\([^()]*\)|\[[^\[\]]*\]|\"[^\"]*\"|'[^']*'|[^,{}()\[\]:=]+)"
)
"""One of the entries of '{"A1": (841, 594), "A3": (420, 297)}'."""
_NUMBER = re.compile(r"#?\w*\d[\w.]*(?<!\.)")
_ITEM = re.compile(
    r"(?:^|[,;:]\s|\band\s)(?P<name>[a-z-]{3,}(?:\s[a-z-]{3,})?)\s+(?P<number>[€$£]?\d[\d.,]*(?<![.,]))(?=\s*(?:[,;.]|$|\band\b))",
    re.I,
)
"""An item of a list of prices or counts in a sentence."""
_HOW = re.compile(r"^how\s+(?P<word>high|tall|long|wide|deep|heavy|thick)\b", re.IGNORECASE)
_MEASURES = {
    "high": "high(?:er)?|height|taller|tall", "tall": "tall(?:er)?|high(?:er)?|height", "long": "long(?:er)?|length",
    "wide": "wid(?:e|er)|width|broad(?:er)?", "deep": "deep(?:er)?|depth",
    "heavy": "heav(?:y|ier)|weight|weighs?|weighed",
    "thick": "thick(?:er)?|thickness",
}  # fmt: skip
_MEASURED = r"(?P<value>\d[\d.,]*\s?[^\W\d_]+)"
_COUNTED = re.compile(
    r"\d|\b(?:none|no|nothing|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\b", re.IGNORECASE
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
        entry = _of_entry(question, sentence)
        self.is_whole = entry is not None
        """True if the value is the whole short answer."""
        self._wanted = entry or self._wanted or _by_measure(question, sentence)
        self._wanted = self._wanted or _by_owner(question, sentence) or _of_list(question, sentence)
        if entry is None and kind_asked(question) is AnswerKind.NAME:
            self._wanted = _name_by_role(question, sentence) or _subject(question, sentence) or self._wanted
        self._clauses = [] if self._wanted else _with_or_without(question, sentence) or _clauses(question, sentence)

    @property
    def value(self) -> tuple[int, int] | None:
        """The characters of the sentence that the short answer must come from; None if any may be."""
        return (self._wanted.begin, self._wanted.end) if self._wanted else None

    def nats(self, begin: int, end: int) -> float:
        """Return the bonus of characters [begin, end) of the sentence."""
        clause = sum(weight * part.share(begin, end) for part, weight in self._clauses)
        return _NATS * (clause - sum(part.share(begin, end) for part in self._unwanted))


def _of_entry(question: str, sentence: str) -> _Part | None:
    """The value of the one entry whose key the question has, or the key of the one whose numbers it has."""
    entries = list(_PAIR.finditer(sentence, sentence.find("{") + 1)) if "{" in sentence else []
    if len(entries) < 2:
        return None
    stems, numbers = content_stems(question), set(_NUMBER.findall(question))
    by_value = [one for one in entries if numbers and numbers <= set(_NUMBER.findall(one["value"]))]
    if len(by_value) == 1:
        return _Part(*by_value[0].span("key"))
    by_key = [one for one in entries if content_stems(one["key"]) and content_stems(one["key"]) <= stems]
    if len(by_key) != 1:
        return None
    begin, end = by_key[0].span("value")
    inner = by_key[0]["value"].strip("()[]\"' ")
    begin = sentence.find(inner, begin, end)
    return _Part(begin, begin + len(inner))


def _by_measure(question: str, sentence: str) -> _Part | None:
    """The value beside the question's measure: '2.2 metres' in 'larger than 2.4 metres nor higher than 2.2 metres'."""
    asked = _HOW.match(question.strip())
    if asked is None:
        return None
    forms = _MEASURES[asked["word"].lower()]
    values = [
        _Part(*match.span("value"))
        for pattern in (rf"\b(?:{forms})\b(?:\s+(?:than|of|is|to|at|most|least|up|only|about)){{0,3}}:?\s+{_MEASURED}",
                        rf"{_MEASURED}\s+(?:{forms})\b")
        for match in re.finditer(pattern, sentence, re.I)
    ]  # fmt: skip
    return values[0] if len(values) == 1 else None


def _by_owner(question: str, sentence: str) -> _Part | None:
    """The clause of the name in the question: 'none from Juno', beside '31 jars from Ceres, 18 from Vesta'."""
    if kind_asked(question) not in (AnswerKind.AMOUNT, AnswerKind.NUMBER):
        return None
    asked = _names(question[1:])
    clauses = [
        (part, names)
        for part in _parts(sentence)
        if _COUNTED.search(sentence[part.begin : part.end])
        and (names := _names(sentence[part.begin or 1 : part.end]) | (_names(sentence[part.begin : part.end]) & asked))
    ]
    own = [part for part, names in clauses if names & asked]
    return own[0] if len(own) == 1 and any(not names & asked for _, names in clauses) else None


def _of_list(question: str, sentence: str) -> _Part | None:
    """The number of the one item that the question names in full: 'medium 27.50' in 'large dog 32.50, medium 27.50'."""
    items = list(_ITEM.finditer(sentence))
    if len(items) < 2 or kind_asked(question) in (AnswerKind.NAME, AnswerKind.TIME):
        return None
    asked = content_stems(question)
    named = [one for one in items if content_stems(one["name"]) and content_stems(one["name"]) <= asked]
    return _Part(*named[0].span("number")) if len(named) == 1 else None


def _names(text: str) -> set[str]:
    return {word.strip(".’'-").removesuffix("’s").removesuffix("'s") for word in re.findall(rf"(?<!\w){_NAME}", text)}


def _name_by_role(question: str, sentence: str) -> _Part | None:
    """The name before the brackets that hold what the question calls somebody: 'Gus (carpenter), Ana (engineer)'."""
    question_stems = content_stems(question)
    named = [match for match in _NAME_AND_ROLE.finditer(sentence) if question_stems & content_stems(match["role"])]
    return (
        _Part(*named[0].span("name"))
        if len(named) == 1 and not question_stems & content_stems(named[0]["name"])
        else None
    )


def _subject(question: str, sentence: str) -> _Part | None:
    """The subject of the question's verb: Ana for 'Who takes over the store?' and 'Ana takes over the store.'"""
    asked_verb = verb_of_who(question)
    if not asked_verb:
        return None
    (verb,) = content_stems(asked_verb) or ("",)
    does = next((word for word in re.finditer(r"[^\W\d_]+", sentence) if content_stems(word.group()) == {verb}), None)
    if (
        does is None
        or _PASSIVE.search(sentence[: does.start()])
        or re.match(r"\s+(?:\w+\s+)?by\b", sentence[does.end() :])
    ):
        return None
    begin = max((end.end() for end in _CLAUSE_END.finditer(sentence, 0, does.start())), default=0)
    names = re.search(_NAME, sentence[begin : does.start()])
    return _Part(begin, does.start()) if names is not None else None


def _changed_values(question: str, sentence: str) -> tuple[_Part | None, list[_Part]]:
    """The value that is asked for where one replaces another, and those that are not."""
    denied = [_Part(*match.span("denied")) for match in _DENIED.finditer(sentence)]
    for pattern in (*_CHANGES, *([] if _ASKS_WHO_DID.search(question) else [_REPLACED])):
        match = pattern.search(sentence)
        if match is not None:
            old, new = _Part(*match.span("old")), _Part(*match.span("new"))
            if _ASKS_OLD.search(question):
                return old, [new, *denied]
            if _ASKS_NEW.search(question):
                return new, [old, *denied]
    return None, denied


def _with_or_without(question: str, sentence: str) -> list[tuple[_Part, float]]:
    """The part before or after 'without' in a sentence with a value in each, whichever the question asks for."""
    match = _WITHOUT.search(sentence)
    if match is None or not (_WITHOUT.search(question) or _WITH.search(question)):
        return []
    before, after = _Part(0, match.start()), _Part(match.start(), len(sentence))
    if not all(any(map(str.isdigit, sentence[part.begin : part.end])) for part in (before, after)):
        return []
    return [(after if _WITHOUT.search(question) else before, 1.0)]


def _clauses(question: str, sentence: str) -> list[tuple[_Part, float]]:
    """The clauses of a sentence, each with the share of the question's words that it holds."""
    wanted = content_stems(question)
    bounds = _parts(sentence)
    shared = [len(wanted & content_stems(sentence[part.begin : part.end])) for part in bounds]
    most = max(shared)
    if most == 0 or len(bounds) == 1:
        return []
    return [(part, count / most) for part, count in zip(bounds, shared, strict=True)]


def _parts(sentence: str) -> list[_Part]:
    """The clauses of a sentence."""
    bounds, start = [], 0
    for match in _CLAUSE_END.finditer(sentence):
        bounds.append(_Part(start, match.start()))
        start = match.end()
    return [*bounds, _Part(start, len(sentence))]
