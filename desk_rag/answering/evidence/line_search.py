"""Find the lines of a text file on which a quote stands, although its markup was taken out or its row was reworded."""

from __future__ import annotations

import re
from collections import Counter

_WORD = re.compile(r"[^\W_]+")
_MOST_LINES = 2000
"""Lines that are looked through."""
_WIDEST_WINDOW = 4
_LEAST_SHARE = 0.5
"""Share of the quote's words that must stand on the lines."""


def lines_of(quote: str, text: str, first: int, last: int) -> tuple[int, int] | None:
    """Return the lines of `text`, 1-based and from `first` to `last`, that hold a quote; None if that is unclear."""
    lines = text.split("\n")[first - 1 : min(last, first - 1 + _MOST_LINES)]
    words = [word.casefold() for word in _WORD.findall(quote)]
    placed = [(word.casefold(), first + index) for index, line in enumerate(lines) for word in _WORD.findall(line)]
    return _in_order(words, placed) or _most_words(words, lines, first)


def _in_order(words: list[str], placed: list[tuple[str, int]]) -> tuple[int, int] | None:
    """Return the lines of the only place where all words follow one another."""
    matches = {
        (placed[start][1], placed[start + len(words) - 1][1])
        for start in range(len(placed) - len(words) + 1)
        if words
        and placed[start][0] == words[0]
        and all(placed[start + offset][0] == word for offset, word in enumerate(words))
    }
    return matches.pop() if len(matches) == 1 else None


def _most_words(words: list[str], lines: list[str], first: int) -> tuple[int, int] | None:
    """Return the shortest run of lines that holds enough of the words, if no other one of its length holds as many."""
    wanted = Counter(words)
    counts = [Counter(word.casefold() for word in _WORD.findall(line)) for line in lines]
    for width in range(1, min(_WIDEST_WINDOW, len(lines)) + 1):
        overlaps = [
            (wanted & sum(counts[start : start + width], Counter())).total() for start in range(len(lines) - width + 1)
        ]
        most = max(overlaps)
        if most >= _LEAST_SHARE * len(words):
            start = first + overlaps.index(most)
            return (start, start + width - 1) if overlaps.count(most) == 1 else None
    return None
