"""Read values out of sentences that answer one question, and tell whether two of them differ."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from desk_rag.answering.evidence.short_answers import ShortAnswers
from desk_rag.answering.requirements.answer_kinds import AnswerKind, is_of_kind, kind_asked
from desk_rag.answering.requirements.dates import MONTHS
from desk_rag.answering.requirements.rows import fields
from desk_rag.answering.requirements.statements.numbers import NUMBER_WORDS, numbers_of
from desk_rag.answering.requirements.stems import content_stems

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScores

_SPANS = 12
VALUE = re.compile(rf"\d|\b(?:{'|'.join(NUMBER_WORDS[2:])})\b", re.I)
PERSON = re.compile(r"\b[^\W\d_a-z][^\W\d_]+")
_TITLES = frozenset({"Mr", "Mrs", "Ms", "Dr", "The", "Our", "New"})
_CHANGED = (
    r"correct(?:ion|ed|s)|errat(?:um|a)|should\s+(?:read|have\s+(?:been|read))|(?:has|have)\s+(?:been\s+)?changed"
    r"|(?:is|are)\s+(?:hereby\s+)?(?:replaced|amended|superseded)|(?:is|are)\s+now"
    r"|new\s+(?:[a-z]+\s+){0,2}?(?:number|address|e-?mail|phone|mobile|account)"
)
ANNOUNCES = re.compile(rf"\b(?:{_CHANGED})\b", re.I)
"""Says that something is not as it was said to be."""
_REPLACED = r"t(?:ak(?:es?|ing)|ook)\s+over|succe(?:ed|ss)\w*|replac\w+"
REPLACES = re.compile(rf"\b(?:{_REPLACED})\b", re.I)
"""Says that somebody or something comes in the place of another; 'instead' is said of much else."""
CORRECTS = re.compile(
    rf"\b(?:{_CHANGED}|{_REPLACED}|instead|not|no\s+longer|cannot|rather\s+than|correct|wrong\w*|from\s+\S+\s+to"
    r"|forget|scrap(?:ped)?|drop(?:ped)?|cancel\w*|withdr[ae]wn?)\b|n['’]t\b",
    re.I,
)
"""Takes back what it names, or says it of the past."""
_DENIES = re.compile(
    r"\b(?:not|no|none|never|neither|nor|without|cannot|forbidden|prohibited|banned|exempt\w*|exclu\w+|refus\w+|reject\w+"
    r"|den(?:y|ied|ies))\b|n['’]t\b",
    re.I,
)
_CLAUSE_END = re.compile(r"[,;]\s+|\s+but\s+")
_DAY = content_stems("date day time month year")
WORD = re.compile(r"[^\W\d_]{2}")
_UNIT = re.compile(r"[^\W\d_]{2,}|%")
_SIGNS = {"£": " pounds ", "€": " euros ", "$": " dollars "}
_RATE = re.compile(r"\b(?:an?|per|each)\s+[a-z]+")
_NO_UNITS = frozenset(MONTHS) | frozenset(
    """
    half quarter past clock hundred thousand million
    at on in by from to of the and or about only now is was most least per each every until since am pm
    mon tue wed thu fri sat sun monday tuesday wednesday thursday friday saturday sunday
    """.split()  # noqa: SIM905
) | frozenset(NUMBER_WORDS)


def log_odds(scores: SpanScores, text: str, unit: str) -> float:
    """The log-odds that a sentence of a passage answers."""
    begin = text.find(unit)
    return scores.log_odds(begin, begin + len(unit))


def value_in(question: str, scores: SpanScores, text: str, unit: str, pattern: re.Pattern[str]) -> str:
    """The best short answer in a sentence, of the kind that is asked for."""
    begin, kind, shorts = text.find(unit), kind_asked(question), ShortAnswers(question, unit)
    for span in scores.best(begin, begin + len(unit), _SPANS):
        offsets = shorts.whole(span.begin - begin, span.end - begin)
        value = unit[slice(*offsets)] if offsets is not None else ""
        if pattern.search(value) and (kind is None or is_of_kind(kind, value)):
            return value
    return ""


def differ(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """True if two values, each with its sentence, have other numbers or names, in one unit as far as both name one."""
    numbers = _marks(one[0]), _marks(other[0])
    if not all(numbers) or numbers[0] <= numbers[1] or numbers[1] <= numbers[0]:
        return False
    for of_value, (_, sentence) in zip(numbers, (other, one), strict=True):
        if of_value <= _all_marks(sentence) and not CORRECTS.search(sentence):
            return False
    if not any(map(VALUE.search, (one[0], other[0]))):
        return True
    units = [units_of(value) for value, _ in (one, other)]
    return not all(units) or bool(units[0] & units[1])


def denies(question: str, sentence: str) -> bool:
    """True if the clause of a sentence that is about a question says no: 'water is covered, frost is not'."""
    asked = content_stems(question)
    clause = max(_CLAUSE_END.split(sentence), key=lambda one: len(content_stems(one) & asked))
    return _DENIES.search(clause) is not None


def differ_in_words(question: str, one: tuple[str, str], other: tuple[str, str]) -> bool:
    """True if the second value is none of the words of the question and the first sentence, nor has the first value."""
    new = content_stems(other[0])
    return bool(new - content_stems(f"{question} {one[1]}")) and not content_stems(one[0]) <= new


def says_same(value: str, sentence: str) -> bool:
    """True if a sentence states a value, in whichever form, and does not take it back."""
    marks = _marks(value)
    return bool(marks) and marks <= _all_marks(sentence) and not CORRECTS.search(sentence)


def of_other_event(question: str, row: str, value: str) -> bool:
    """True for a day below “Received on” in a row of a table, where the question asks for that of something else."""
    if kind_asked(question) is not AnswerKind.TIME:
        return False
    keys = [content_stems(cell.key) - _DAY for cell in fields(row) if value in cell.value]
    return any(key and not key & content_stems(question) for key in keys)


def units_of(value: str) -> set[str]:
    """The words of what a value counts: hours in '30 hours a week', and none in '12.40 an hour'."""
    for sign, word in _SIGNS.items():
        value = value.replace(sign, word)
    return set(_UNIT.findall(_RATE.sub(" ", value.lower()))) - _NO_UNITS


def _all_marks(sentence: str) -> set[str]:
    """The numbers and the words with a capital letter of a sentence, which may state both."""
    return numbers_of(sentence) | set(PERSON.findall(sentence))


def _marks(text: str) -> set[str]:
    """The numbers of a text; of one without any, its words with a capital letter."""
    return numbers_of(text) or {word for word in PERSON.findall(text) if word not in _TITLES}
