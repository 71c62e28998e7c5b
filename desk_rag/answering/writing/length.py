"""Settle how long an answer may be, from its question and its model."""

from __future__ import annotations

import re
from dataclasses import dataclass

from desk_rag.config import AnswerSettings
from desk_rag.model.prompt import PromptFormat
from desk_rag.model.reasoning import Thinking

QUOTED_TOKENS = 160
"""Longest answer of a model that quotes, quotes included."""
WRITTEN_TOKENS = 1024
"""Longest answer of a model that writes."""
_FACT_TOKENS = 384
_REASONING_TOKENS = {Thinking.NEVER: 0, Thinking.SOMETIMES: 1024, Thinking.ALWAYS: 2048}
_SHARE_OF_WINDOW = 4
"""An answer, reasoning included, takes at most one part in this many of a model's window."""
_WIDE = re.compile(
    r"\b(?:summar\w+|overview|compare|compari\w+|differ\w*|versus|vs|list|all|every|each|explain|describe|outline|steps?|"
    r"how (?:do|does|can|should|to)|pros|advantages|write|draft|table|why|detail\w*|tell me about|"
    r"what are|"
    r"which are|"
    r"zusammenfass\w*|fasse?|überblick|vergleich\w*|unterschied\w*|liste\w*|alle\w*|erkläre?\w*|beschreib\w*|"
    r"wie (?:kann|soll|macht|geht)|warum|tabelle|résum\w*|aperçu|compar\w*|différen\w*|toutes?|tous|expliqu\w*|"
    r"décri\w*|pourquoi|comment|resum\w*|diferenci\w*|lista\w*|todos|todas|explica\w*|describ\w*|cómo|riassum\w*|"
    r"panoramica|confront\w*|differenz\w*|elenc\w*|tutt[ie]|spieg\w*|descriv\w*|perché|samenvat\w*|vat|overzicht|"
    r"vergelijk\w*|verschil\w*|lijst|alle|leg|uitleg\w*|beschrijf|waarom|hoe|diferenç\w*|liste|todos|explique|descreva|"
    r"porque|como|sammanfatta\w*|översikt|jämför\w*|skillnad\w*|lista|alla|förklara|beskriv\w*|varför|hur|"
    r"opsummer\w*|sammenlign\w*|forskel\w*|forklar\w*|hvorfor|hvordan|streść|podsumuj\w*|streszcz\w*|przegląd|porówn\w*|różnic\w*|"
    r"wymień|wszystkie|wyjaśnij|opisz|dlaczego|jak)\b",
    re.IGNORECASE,
)
_LONG_QUESTION = 160
"""Characters from which on a question asks for more than one fact."""


@dataclass(frozen=True, slots=True)
class AnswerLength:
    """Limits of one answer in tokens."""

    answer: int
    """Maximum tokens of the answer without its reasoning."""
    all: int
    """Maximum tokens decoded, reasoning included."""


def longest(settings: AnswerSettings, prompt: PromptFormat, window: int) -> int:
    """Most tokens that any answer of this model takes, reasoning included: the room that its cache needs."""
    if settings.max_new_tokens:
        answer = settings.max_new_tokens
        return answer + (min(_REASONING_TOKENS[prompt.reasoning.thinking], window // _SHARE_OF_WINDOW))
    if not prompt.writes:
        return QUOTED_TOKENS
    return min(WRITTEN_TOKENS + _REASONING_TOKENS[prompt.reasoning.thinking], max(window // _SHARE_OF_WINDOW, 1))


def length_for(question: str, settings: AnswerSettings, prompt: PromptFormat, window: int) -> AnswerLength:
    """Limits of the answer to `question`.

    A fact takes a sentence or two; a summary, a list or a comparison may take the whole room. Reasoning does not count
    against the answer.
    """
    room = longest(settings, prompt, window)
    if settings.max_new_tokens:
        return AnswerLength(settings.max_new_tokens, room)
    if not prompt.writes:
        return AnswerLength(QUOTED_TOKENS, room)
    wide = len(question) > _LONG_QUESTION or _WIDE.search(question) is not None
    return AnswerLength(min(WRITTEN_TOKENS if wide else _FACT_TOKENS, room), room)
