"""Compare an answer with a right one: exact match, F1, ROUGE-L, containment.

Normalisation is SQuAD's (arXiv 1606.05250, section 4.1 and its evaluation script): lower case, no punctuation, no
articles. Characters of scripts without blanks between words (Chinese, Japanese) count as words of their own.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation + "，。！？；：、“”‘’（）《》【】…—–")
_WIDE = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")
_LETTER = r"[0-9a-z\u00df-\u024f\u0370-\u052f]"
"""Digits and the letters of scripts that part words by blanks and hang no particles on them: Latin, Greek, Cyrillic."""


def normalise(text: str) -> str:
    """Lower case, no punctuation, no articles, single blanks."""
    plain = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", plain).split())


def words(text: str) -> list[str]:
    """Words of normalised text."""
    return _WIDE.sub(r" \1 ", normalise(text)).split()


def exact(answer: str, expected: str) -> float:
    """1 if the normalised texts are equal."""
    return float(normalise(answer) == normalise(expected))


def f1(answer: str, expected: str) -> float:
    """Overlap of words, as a bag; two texts without words are equal."""
    one, other = Counter(words(answer)), Counter(words(expected))
    if not one or not other:
        return float(one == other)
    shared = sum((one & other).values())
    return 2 * shared / (sum(one.values()) + sum(other.values()))


def rouge_l(answer: str, expected: str) -> float:
    """F-measure of the longest common subsequence of words (Lin 2004, section 3, with beta 1)."""
    one, other = words(answer), words(expected)
    if not one or not other:
        return float(one == other)
    return 2 * common_length(one, other) / (len(one) + len(other))


def recall_l(answer: str, expected: str) -> float:
    """Share of `expected` that its longest common subsequence with `answer` covers."""
    one, other = words(answer), words(expected)
    return common_length(one, other) / len(other) if other else 1.0


def contains(answer: str, expected: str) -> bool:
    """Return whether `answer` has the normalised words of `expected` in one run; '120' does not have '12'."""
    within, sought = normalise(answer), normalise(expected)
    if not sought:
        return expected.strip() in answer
    return re.search(rf"(?<!{_LETTER}){re.escape(sought)}(?!{_LETTER})", within) is not None


def common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        corner = 0
        for index, against in enumerate(other, start=1):
            above = row[index]
            row[index] = corner + 1 if word == against else max(above, row[index - 1])
            corner = above
    return row[-1]
