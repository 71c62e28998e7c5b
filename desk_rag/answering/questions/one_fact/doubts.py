"""Say what speaks against an answer about one fact: it is of another thing, a share, or no person."""

from __future__ import annotations

import re

from desk_rag.answering.requirements.answer_kinds import AnswerKind, asks_whether, kind_asked
from desk_rag.answering.requirements.mentions import is_time
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.statements.plans import asks_when_done, only_planned
from desk_rag.answering.requirements.stems import content_stems, has_stem

_SHARE = re.compile(r"\d\s?(?:%|per\s?cent\b)", re.I)
_ASKS_SHARE = re.compile(
    r"%|\b(?:per\s?cent(?:age)?|share|rate|interest|proportion|discount|part|raised?|rise|increase\w*)\b", re.I
)
_NAMED_BEFORE = re.compile(r"(?P<thing>[^\W\d_]+)(?:\s+(?:is|are|was|were|of)|\s*[:=])\s+(?:now\s+|about\s+)?$", re.I)
"""The thing that a value is of: 'The retention is 5 per cent'."""
_AT = re.compile(r"\b(?:on|in|at|onto|into|under)\s+$", re.I)
_THING = re.compile(r"(?:the|an?|our|my)\s+[a-z]", re.I)
_SUPERLATIVE_OF = re.compile(
    r"\bthe\s+(?P<adjective>[a-z]+est|best|most\s+[a-z]+|first)\s+(?P<thing>[a-z]{4,})\b", re.I
)
_WORD = re.compile(r"(?<![\w’'-])[a-z][a-z-]{2,}(?![\w’'])")
_LIGHT = content_stems(
    "much many long often far high have has had get got give gave make made take took does did called name number"
    " telephone phone mobile mail address date day month year time price cost amount person place"
)
"""Words that name the kind of an answer, or that every text has."""
_FEWEST_WORDS = 2
"""Words of a question beside a name: where the passage has none of them, it shares nothing but the name."""
_PROPER = re.compile(r"(?<=\s)[A-Z][a-z]")
_HOW_LONG = re.compile(r"^how\s+long\b|^what\b.*\b(?:notice|period|term|duration)\b", re.I)
_BARE = re.compile(r"\d{1,3}|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve", re.I)
_TIME_UNIT = re.compile(r"\s+(?:calendar\s+|working\s+|whole\s+)?(?P<unit>minute|hour|day|week|month|year)", re.I)
_LASTING = re.compile(rf"\b(?:{_BARE.pattern}){_TIME_UNIT.pattern}s?\b", re.I)
_MOST_ELIDED = 40
"""Characters between a length of time and a number that leaves its unit out."""
_OWN_KIND = re.compile(r"\b(?:of|for|on)\s+(?:my|our)\s+(?P<kind>[a-z]{3,})\s+(?P<thing>[a-z]{4,})\s*\W*$", re.I)


def reason(question: str, answer: str, quote: str, place: Place) -> str:
    """Return a sentence that says why an answer is not what was asked for; empty if nothing here speaks against it."""
    kind = kind_asked(question)
    asks_number = kind in (AnswerKind.AMOUNT, AnswerKind.NUMBER) and not _ASKS_SHARE.search(question)
    if asks_number and _SHARE.search(answer) and not _is_of_thing_asked(question, answer, quote):
        return f"The question asks for a number, and “{answer}” is a share"
    if asks_when_done(question) and only_planned(quote):
        return "The question asks when it was done, and the quote says what was planned"
    before = quote[: max(0, quote.find(answer))]
    if question.lower().startswith("who") and _THING.match(answer.strip()) and _AT.search(before):
        return f"The question asks for a person, and “{answer}” is a place or thing"
    return "" if asks_whether(question) else _of_another_thing(question, quote, place)


def _is_of_thing_asked(question: str, answer: str, quote: str) -> bool:
    """True if the quote says of the thing that the question names that it is this share."""
    named = _NAMED_BEFORE.search(quote[: max(0, quote.find(answer))])
    return named is not None and bool(content_stems(named["thing"]) & content_stems(question))


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


def _of_another_thing(question: str, quote: str, place: Place) -> str:
    """A sentence that names the thing that is not spoken of: leeks beside 'the best onions', the car beside a shed."""
    around = content_stems(f"{place.text}\n{place.labels}\n{place.name}")
    best = _SUPERLATIVE_OF.search(question)
    if best is not None and content_stems(best["adjective"]) & content_stems(quote):
        stems = content_stems(best["thing"])
        if stems and not any(has_stem(stem, around) for stem in stems):
            return f"The passage speaks of no “{best['thing']}”"
    words = [word for word in _WORD.findall(question) if content_stems(word) - _LIGHT and not is_time(word)]
    spoken_of = any(has_stem(stem, around) for word in words for stem in content_stems(word))
    if len(words) >= _FEWEST_WORDS and not spoken_of and _PROPER.search(question, 1):
        return f"The passage has none of the words “{'”, “'.join(words)}”"
    own = _OWN_KIND.search(question)
    if own is not None and content_stems(own["thing"]) & around:
        stems = content_stems(own["kind"]) or {own["kind"].lower()}
        if not any(has_stem(stem, around) for stem in stems):
            return f"The passage speaks of no “{own['kind']} {own['thing']}”"
    return ""
