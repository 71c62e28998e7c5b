"""Say what speaks against an answer about one fact: it is only planned, or of another thing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from desk_rag.answering.questions.folder.tables.extremes import LEAST, MOST
from desk_rag.answering.requirements.amounts import amount_of
from desk_rag.answering.requirements.answer_kinds import AnswerKind, asks_money, asks_whether, is_of_kind, kind_asked
from desk_rag.answering.requirements.dates import without_dates
from desk_rag.answering.requirements.mentions import is_time
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.statements.other_values import steps_down
from desk_rag.answering.requirements.statements.prices import asks_price, is_event
from desk_rag.answering.requirements.statements.standing import asks_when_done, only_planned
from desk_rag.answering.requirements.statements.value_doubts import ValueDoubts
from desk_rag.answering.requirements.stems import content_stems, has_stem

_SUPERLATIVE_OF = re.compile(r"\bthe\s+(?P<adjective>[a-z]+est|best|most\s+[a-z]+|first)\s+(?P<thing>[a-z]{4,})", re.I)
_EXTREME = re.compile(rf"^(?:which|what|who)\b.*\b(?:the\s+)?(?P<adjective>{MOST}|{LEAST}|most|least|fewest)\b", re.I)
_WORD = re.compile(r"(?<![\w’'-])[a-z][\w’'-]*")
_LIGHT = content_stems(
    "much many long often far high have has had get got give gave make made take took does did called name number"
    " telephone phone mobile mail address date day month year time price cost amount person place more most less than"
)
"""Words that name the kind of an answer, or that every text has."""
_FULL_NAME = re.compile(r"\b(?P<first>[A-ZÀ-Þ][\w-]+)\s+(?P<last>[A-ZÀ-Þ][\w-]{2,}?)(?:['’]s?)?(?![\w-])")
_NEARLY = 0.75
"""Least likeness of two family names behind the same first name."""
_ASKS_TIMES = re.compile(r"^(?:(?:on|in|at)\s+)?(?:which|what)\s+(?:days|dates|months|years|times)\b", re.I)
_SAYS_WHY = re.compile(r"\bbecause\b", re.I)
_MUST_SAY = (
    (
        re.compile(r"^(?i:who)\b.*\b(?:before|after)\s+(?:(?:the|our|my|Mrs?|Ms|Dr)\.?\s+)?[A-Z]"),
        re.compile(
            r"\b(?:before|after|until|since|former\w*|previous\w*|predecessor|succe\w+|replac\w+|follow\w*|instead|place"
            r"|t(?:akes?|ook)\s+over|from|handed|hands|gave|gives|st(?:an|oo)ds?|stepped|retire[sd]?|resign\w*|outgoing|late)\b",
            re.I,
        ),
        "who came first",
    ),
    (
        re.compile(r"^how\s+(?:much|many)\b.*\b(?:was|were|is|are|be|been)\s+left\b(?!\s+(?:to|behind|by|in)\b)", re.I),
        re.compile(r"\b(?:left|remain\w*|rest|over|unspent|surplus|balance|still|only)\b", re.I),
        "what is left",
    ),
    (
        re.compile(r"^(?:what|how\s+(?:much|high))\b.*\b(?:including|inclusive|incl\b)", re.I),
        re.compile(r"\b(?:incl\w*|with|gross|total|altogether)\b", re.I),
        "what is included",
    ),
    (
        re.compile(r"^(?:who|which|what)\b.*\b(?:more|fewer|less)\b.*,\s.+\sor\s", re.I),
        re.compile(r"\b(?:more|fewer|less)\b", re.I),
        "which of the two has more",
    ),
)
"""Questions for something that a quote must say in one of these words, and its name."""
_SHARE_MISSING, _SURE = 0.5, 0.75
"""Share of a question's words that a passage may not lack, unless the answer is so probable; see bench/LOG.md."""
_HOW_LONG = re.compile(r"^how\s+long\b|^what\b.*\b(?:notice|period|term|duration)\b", re.I)
_BARE = re.compile(r"\d{1,3}|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve", re.I)
_TIME_UNIT = re.compile(r"\s+(?:calendar\s+|working\s+|whole\s+)?(?P<unit>minute|hour|day|week|month|year)", re.I)
_ASKS_SEVERAL = re.compile(
    r"^(?:which|what)\s+(?:(?:of\s+)?(?:the|our|my|other)\s+)?(?P<things>[a-z]{3,}(?<![su])s)\s+(?:do|did|have|are|were)\b",
    re.I,
)
_LISTS = re.compile(r"[,;/&]|\b(?:and|or|both|all|every|none|no)\b|\d+\s+[a-z]+s$|[a-z]{3,}(?<![su])s$", re.I)
_LASTING = re.compile(rf"\b(?:{_BARE.pattern}){_TIME_UNIT.pattern}s?\b", re.I)
_MOST_ELIDED = 40
"""Characters between a length of time and a number that leaves its unit out."""
_ONLY_MEASURE = re.compile(
    rf"(?:(?:within|after|in|for|about|every|up\s+to|at\s+(?:least|most)|until|from)\s+)*(?:[£$€]\s?)?(?:\d[\d.,]*|{_BARE.pattern})"
    r"\s?(?:%|[£$€]|[A-Za-z]+)?(?:\s+(?:(?:an?|per|of|plus|and)\s+)?[A-Za-z]+){0,3}",
    re.I,
)
"""An amount or a length of time alone: '145.00', 'within 28 days', '40 pounds a month'."""


def reason(question: str, answer: str, quote: str, place: Place) -> str:
    """Return a sentence that says why an answer is not what was asked for; empty if nothing here speaks against it."""
    for asks, says, thing in _MUST_SAY:
        if asks.search(question.strip()) and not says.search(quote):
            return f"The quote does not say {thing}"
    if asks_when_done(question) and only_planned(quote):
        return "The question asks when it was done, and the quote says what was planned"
    if asks_price(question) and is_event(quote):
        return "The question asks for a price, and the quote says what was paid on one day"
    if asks_whether(question) and _is_other_measure(question, answer.strip(" .")):
        return f"The question asks for yes or no, and “{answer}” says neither"
    extreme = _EXTREME.match(question.strip())
    if extreme and not content_stems(extreme["adjective"]) & content_stems(f"{quote}\n{place.labels}"):
        return f"The question asks for the {extreme['adjective'].lower()} of several, and the quote compares nothing"
    best = None if asks_whether(question) else _SUPERLATIVE_OF.search(question)
    is_said = best is not None and content_stems(best["adjective"]) & content_stems(quote)
    if best and is_said and _missing([best["thing"]], content_stems(f"{place.text}\n{place.labels}\n{place.name}")):
        return f"The passage speaks of no “{best['thing']}”"
    if over := steps_down(question, answer, quote):
        return over
    if other := _similar_name(question, f"{quote}\n{place.labels}"):
        return f"The quote is about “{other}”, which is spelled otherwise"
    begin = quote.find(answer)
    return ValueDoubts(question, quote).reason(begin, begin + len(answer)) if begin >= 0 else ""


def _similar_name(question: str, text: str) -> str:
    """The name in a text that is nearly one of the question's: Petra Hoffmann for Petra Hoffman; else ''."""
    for match in _FULL_NAME.finditer(question, 1):
        first, last = match["first"], match["last"]
        if re.search(rf"\b{first}\s+{last}\b", text) is not None:
            continue
        for other in re.findall(rf"\b{first}\s+([A-ZÀ-Þ][\w-]{{2,}})", text):
            if difflib.SequenceMatcher(None, last, other.removesuffix("'s")).ratio() >= _NEARLY:
                return f"{first} {other}"
    return ""


def one_of_several(question: str, answer: str) -> str:
    """A sentence that says that there may be more, where the question asks for several and the answer names one."""
    several = _ASKS_SEVERAL.match(question.strip())
    if several is None or _LISTS.search(answer.strip(" .")):
        return ""
    return f"The question asks for several {several['things'].lower()}; this is what one sentence says"


def unit_meant(question: str, answer: str, quote: str) -> str:
    """A sentence that names the unit which a length leaves out: months, in 'gives one month, the landlord two'."""
    begin, plain = quote.find(answer), answer.strip(" .")
    if not _HOW_LONG.match(question.strip()) or not _BARE.fullmatch(plain) or begin < 0:
        return ""
    end = begin + len(answer.rstrip(" ."))
    before = [match for match in _LASTING.finditer(quote, 0, begin) if begin - match.end() <= _MOST_ELIDED]
    if not before or _TIME_UNIT.match(quote, end):
        return ""
    return f"“{plain}” is of {before[-1]['unit'].lower()}s: “{before[-1].group()}” stands before it"


def _is_other_measure(question: str, answer: str) -> bool:
    """True for an amount or a length of time alone that the question does not name itself; a day may say when."""
    if not _ONLY_MEASURE.fullmatch(answer) or not without_dates(answer).strip(" .,") or answer in question:
        return False
    numbers = re.findall(r"\d[\d.,]*\d|\d", answer)
    return not numbers or not all(number in question for number in numbers)



def lacking(question: str, answer: str, quote: str, place: Place, support: float) -> str:
    """A sentence that names what a text lacks of the question, if that is much and the answer not very probable.

    Names do not count: a text about the right person may tell anything of them. An answer of the kind that is asked
    for may stand in other words, but not in a quote that has no word of the question.
    """
    is_money = asks_money(question) and amount_of(answer, "") is not None
    says_times = _ASKS_TIMES.match(question) is not None and is_of_kind(AnswerKind.TIME, answer)
    as_asked, around = kind_asked(question) is not None or is_money or says_times, f"{place.labels}\n{place.name}"
    section = place.sections_before(place.text.find(quote))[:1]
    text = "\n".join([quote, around, *section]) if as_asked else f"{place.text}\n{around}"
    words = [word for word in _WORD.findall(question) if content_stems(word) - _LIGHT and not is_time(word)]
    missing = _missing(words, content_stems(text))
    enough = len(words) if as_asked else _SHARE_MISSING * len(words)
    if asks_whether(question) or support >= _SURE or not len(missing) >= enough > 0 or _SAYS_WHY.search(quote):
        return ""
    return f"The {'quote' if as_asked else 'passage'} does not have “{'”, “'.join(missing)}”"


def _missing(words: Sequence[str], stems: set[str]) -> list[str]:
    """The words that say something and are in no form among the stems."""
    of_words = {word: content_stems(word) - _LIGHT for word in words}
    return [word for word, own in of_words.items() if own and not any(has_stem(stem, stems) for stem in own)]
