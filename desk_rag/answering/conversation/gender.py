"""Tell whether a name may be the one that 'he' or 'she' stands for, by titles, by the documents, by earlier turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from desk_rag.answering.conversation import vocabulary as v
from desk_rag.answering.conversation.talk import Talk

_HE = frozenset(("he", "him", "his"))
_SHE = frozenset(("she", "her", "hers"))
_TITLES = {"she": r"Mrs|Ms|Miss|Madam|Lady|Dame", "he": r"Mr|Sir|Lord"}
_SEXES = {"she": r"female|bitch|mare|woman|girl", "he": r"male|gelding|stallion|man|boy"}
_FARTHEST = 60
"""Characters between a name and the sex that the same line tells."""


def may_be(name: str, pronoun: str, talk: Talk) -> bool:
    """Return False if a title, a quoted document or an earlier pronoun says that the name is of the other sex."""
    low = pronoun.casefold()
    wanted = "he" if low in _HE else "she" if low in _SHE else ""
    return not wanted or next(_told_of(name, talk), wanted) == wanted


def _told_of(name: str, talk: Talk) -> Iterator[str]:
    """Yield 'he' or 'she' for all that tells the sex of a name, the surest first."""
    written = [word for word in v.words_of(name) if v.is_name(word)]
    words = [word for word in written if not any(re.fullmatch(titles, word) for titles in _TITLES.values())]
    if words:
        yield from _told_by_texts(name, words, talk)
        yield from _told_by_pronouns(name, talk)


def _told_by_texts(name: str, words: Sequence[str], talk: Talk) -> Iterator[str]:
    full, first_names = " ".join(words), rf"(?:{re.escape(words[0])}\s+)?" if len(words) > 1 else ""
    texts = [
        name,
        *(quote for turn in talk.turns[::-1] for quote in (turn.answer, *turn.quotes)),
        *talk.texts_about(full),
    ]
    with_title = rf"\b(?:{{}})\b\.?\s+{first_names}{re.escape(words[-1])}\b"
    with_sex = rf"(?i)\b{re.escape(full)}\b[^.\n]{{{{0,{_FARTHEST}}}}}\b(?:{{}})\b"
    for pattern, told in ((with_title, _TITLES), (with_sex, _SEXES)):
        for text in texts:
            yield from (pronoun for pronoun, said in told.items() if re.search(pattern.format(said), text))


def _told_by_pronouns(name: str, talk: Talk) -> Iterator[str]:
    for turn in talk.turns[::-1]:
        if name in turn.asked and name not in turn.question:
            spoken = {word.casefold() for word in v.words_of(turn.question)}
            if bool(spoken & _HE) != bool(spoken & _SHE):
                yield "he" if spoken & _HE else "she"
