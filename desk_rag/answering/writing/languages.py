"""Guess the language of a sentence from its function words, well enough to know when two texts do not compare."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_]+")
_FUNCTION_WORDS = {
    "en": "the and of is are was to in for with not that this it on be by from as at has have or which they must may",
    "de": "der die das und ist nicht ein eine mit für auf wird sind von dem den des im zu zur zum sie es auch bei nach",
    "fr": "le la les des est et une un du dans pour pas que qui sur avec sont au aux ce cette il elle ne se par",
    "es": "el la los las es y una un del en para no que con por se al son más lo su como este esta",
    "it": "il lo la gli è e una un del della di che per non con sono dei delle nel nella si al alla come",
    "nl": "de het een en is van niet dat op te voor met zijn aan er die door wordt naar ook bij uit",
    "pt": "o a os as é e uma um do da de que para não com em no na por são dos das ao se mais",
    "sv": "och är att det som en ett på av för inte med den till kan har från de om ska",
    "da": "og er at det som en et på af for ikke med den til kan har fra de om skal der",
    "pl": "i jest nie na się do to że z w o jak po za od przez są dla oraz który",
}
_LANGUAGES = {language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()}
_LEAST_HITS = 2


def language_of(text: str) -> str | None:
    """ISO code of the language; None if the text is too short or has no clear one."""
    words = [word.casefold() for word in _WORD.findall(text)]
    hits = sorted(
        ((sum(word in known for word in words), language) for language, known in _LANGUAGES.items()), reverse=True
    )
    (most, language), (second, _) = hits[0], hits[1]
    return language if most >= _LEAST_HITS and most > second else None


def differ(one: str, other: str) -> bool:
    """True if both texts have a clear language, and not the same one."""
    first, second = language_of(one), language_of(other)
    return first is not None and second is not None and first != second
