"""Say what speaks against an answer about one fact: it is of another thing, a share, or no person."""

from __future__ import annotations

import re

from desk_rag.answering.requirements.dates import without_dates
from desk_rag.answering.requirements.mentions import is_time
from desk_rag.answering.requirements.objections import asks_whether
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.statements.plans import asks_when_done, only_planned
from desk_rag.answering.requirements.stems import content_stems, has_stem

_SHARE = re.compile(r"\d\s?(?:%|per\s?cent\b)", re.I)
_COUNTED_OR_PRICED = re.compile(
    r"^(?!.*(?:%|\bper\s?cent))(?:how\s+(?:many|high|long|old|far|large|heavy|tall|wide|deep)\b"
    r"|how\s+much\s+(?:is|was|are|were)\s+(?:in|on|left|there)\b|how\s+much\b.*\b(?:pay|paid|spen[dt])\b"
    r"|(?:how\s+much|what)\b.*\b(?:costs?|prices?)\b)",
    re.I,
)
"""Asks for something that is never a share; a fee, a rent or a retention may be one."""
_ASKS_WHAT_DOES = re.compile(r"^what\s+(?:do|does|did)\s+(?P<who>\S+(?:\s+\S+){0,2}?)\s+do\W*$", re.I)
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
_ASKS_SEVERAL = re.compile(
    r"^(?:which|what)\s+(?:(?:of\s+)?(?:the|our|my|other)\s+)?(?P<things>[a-z]{3,}(?<![su])s)\s+(?:do|did|have|are|were)\b",
    re.I,
)
_LISTS = re.compile(r"[,;/&]|\b(?:and|or|both|all|every|none|no)\b|\d+\s+[a-z]+s$|[a-z]{3,}(?<![su])s$", re.I)
_LASTING = re.compile(rf"\b(?:{_BARE.pattern}){_TIME_UNIT.pattern}s?\b", re.I)
_MOST_ELIDED = 40
"""Characters between a length of time and a number that leaves its unit out."""
_OWN_KIND = re.compile(r"\b(?:of|for|on)\s+(?:my|our)\s+(?P<kind>[a-z]{3,})\s+(?P<thing>[a-z]{4,})\s*\W*$", re.I)


def reason(question: str, answer: str, quote: str, place: Place) -> str:
    """Return a sentence that says why an answer is not what was asked for; empty if nothing here speaks against it."""
    if _COUNTED_OR_PRICED.match(question.strip()) and _SHARE.search(answer):
        return f"The question asks for a number, and “{answer}” is a share"
    does = _ASKS_WHAT_DOES.match(question.strip())
    if does is not None and not without_dates(answer).strip(" .,"):
        return f"The question asks what {does['who']} does, and “{answer}” is a day"
    if asks_when_done(question) and only_planned(quote):
        return "The question asks when it was done, and the quote says what was planned"
    before = quote[: max(0, quote.find(answer))]
    if question.lower().startswith("who") and _THING.match(answer.strip()) and _AT.search(before):
        return f"The question asks for a person, and “{answer}” is a place or thing"
    return "" if asks_whether(question) else _of_another_thing(question, quote, place)


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
