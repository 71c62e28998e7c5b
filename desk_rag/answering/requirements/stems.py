"""Words that carry meaning, without their endings, and how many of a question's words a text has."""

from __future__ import annotations

import re

from desk_rag.store.catalog.words import STOP_WORDS

_WORD = re.compile(r"[^\W_]+")
_ENDINGS = ("ing", "edly", "ed", "ies", "es", "ly", "s", "e", "y")
_STEM = 5
"""Words that share this many first letters count as the same: 'postponed', 'postponement'."""


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
    return {_stem(word) for word in _WORD.findall(text.lower()) if word not in STOP_WORDS}


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
