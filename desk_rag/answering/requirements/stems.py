"""Words that carry meaning, without their endings, and how many of a question's words a text has."""

from __future__ import annotations

import re
from functools import lru_cache

from desk_rag.store.catalog.words import STOP_WORDS

_WORD = re.compile(r"[^\W_]+")
_ENDINGS = ("ing", "edly", "ed", "ies", "es", "ly", "s", "e", "y")
_STEM = 5
"""Words that share this many first letters count as the same: 'postponed', 'postponement'."""
_IRREGULAR = {
    form: word
    for word, forms in (
        line.split(": ")
        for line in """\
begin: began begun;break: broke broken;bring: brought;buy: bought;build: built
catch: caught;choose: chose chosen;come: came;draw: drew drawn
drive: drove driven;eat: ate eaten;feed: fed;find: found;fly: flew flown;freeze: froze frozen;get: got gotten
give: gave given;go: went gone;grow: grew grown;hear: heard;hold: held;keep: kept;know: knew known;lead: led;lend: lent
lose: lost;make: made;meet: met;pay: paid;ring: rang rung;rise: risen;run: ran;sell: sold;send: sent;sing: sang sung
sit: sat;sleep: slept;speak: spoke spoken;spend: spent;stand: stood;steal: stole stolen;swim: swam swum
take: took taken;teach: taught;tell: told;throw: threw thrown;wear: wore worn;win: won;write: wrote written
foot: feet;man: men;mouse: mice;tooth: teeth;woman: women;child: children""".replace(";", "\n").split("\n")
    )
    for form in forms.split()
}
"""Words by their irregular forms; forms that are other words too, such as 'left' and 'saw', are missing."""
PAST_FORMS = frozenset(_IRREGULAR) | {"left", "saw", "put", "cut", "became", "rode"}
"""Forms of the past that do not end in -ed, and some plurals."""
_OTHER_WORDS = {"proof": "prove", "proven": "prove", "kilowatt": "kwh"}
"""Nouns of a verb, and measures written out."""


def coverage(question: str, text: str) -> float:
    """Share in [0, 1] of the question's content words that `text` has in some form.

    1 if the question has none.
    """
    question_stems = content_stems(question)
    text_stems = content_stems(text)
    beginnings = {stem[:_STEM] for stem in text_stems if len(stem) >= _STEM}
    covered = sum(stem in text_stems or (len(stem) >= _STEM and stem[:_STEM] in beginnings) for stem in question_stems)
    return covered / len(question_stems) if question_stems else 1.0


def has_stem(stem: str, stems: set[str]) -> bool:
    """True if `stem`, or another that begins like it, is among `stems`."""
    return stem in stems or (len(stem) >= _STEM and any(other[:_STEM] == stem[:_STEM] for other in stems))


def content_stems(text: str) -> set[str]:
    """The words of `text` that carry meaning, without their endings."""
    return set(_content_stems(text))


@lru_cache(maxsize=256)
def _content_stems(text: str) -> frozenset[str]:
    """See `content_stems`; "s" is the end of a possessive. The steps of an answer ask for those of the same chunks."""
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()) if word not in STOP_WORDS and word != "s")


@lru_cache(maxsize=4096)
def _stem(word: str) -> str:
    word = _IRREGULAR.get(word, _OTHER_WORDS.get(word, word))
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
