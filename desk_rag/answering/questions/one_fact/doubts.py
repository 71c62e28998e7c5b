"""Say what speaks against an answer about one fact: it is of another thing, a share, or no person."""

from __future__ import annotations

import re

from desk_rag.answering.requirements.answer_kinds import AnswerKind, kind_asked
from desk_rag.answering.requirements.objections import asks_whether
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.stems import content_stems, has_stem

_SHARE = re.compile(r"\d\s?(?:%|per\s?cent\b)", re.I)
_ASKS_SHARE = re.compile(r"%|\b(?:per\s?cent(?:age)?|share|rate|interest|proportion|discount|part|raised?|rise|increase\w*)\b", re.I)
_AT = re.compile(r"\b(?:on|in|at|onto|into|under)\s+$", re.I)
_THING = re.compile(r"(?:the|an?|our|my)\s+[a-z]", re.I)
_SUPERLATIVE_OF = re.compile(r"\bthe\s+(?P<adjective>[a-z]+est|best|most\s+[a-z]+|first)\s+(?P<thing>[a-z]{4,})\b", re.I)
_OWN_KIND = re.compile(r"\b(?:of|for|on)\s+(?:my|our)\s+(?P<kind>[a-z]{3,})\s+(?P<thing>[a-z]{4,})\s*\W*$", re.I)


def reason(question: str, answer: str, quote: str, place: Place) -> str:
    """Return a sentence that says why an answer is not what was asked for; empty if nothing here speaks against it."""
    kind = kind_asked(question)
    if kind in (AnswerKind.AMOUNT, AnswerKind.NUMBER) and _SHARE.search(answer) and not _ASKS_SHARE.search(question):
        return f"The question asks for a number, and “{answer}” is a share"
    before = quote[: max(0, quote.find(answer))]
    if question.lower().startswith("who") and _THING.match(answer.strip()) and _AT.search(before):
        return f"The question asks for a person, and “{answer}” is a place or thing"
    return "" if asks_whether(question) else _of_another_thing(question, quote, place)


def _of_another_thing(question: str, quote: str, place: Place) -> str:
    """A sentence that names the thing that is not spoken of: leeks in 'the best onions', the car in the shed's policy."""
    around = content_stems(f"{place.text}\n{place.labels}\n{place.name}")
    best = _SUPERLATIVE_OF.search(question)
    if best is not None and content_stems(best["adjective"]) & content_stems(quote):
        stems = content_stems(best["thing"])
        if stems and not any(has_stem(stem, around) for stem in stems):
            return f"The passage speaks of no “{best['thing']}”"
    own = _OWN_KIND.search(question)
    if own is not None and content_stems(own["thing"]) & around:
        stems = content_stems(own["kind"]) or {own["kind"].lower()}
        if not any(has_stem(stem, around) for stem in stems):
            return f"The passage speaks of no “{own['kind']} {own['thing']}”"
    return ""
