"""Where a quote stands in the sources: tolerant of how text is set, strict about its words.

Knows the text of the sources and their line ranges; knows no model and no answer form.

A quote counts as found only as one contiguous run that begins and ends between words. White space, quote
marks, soft hyphens, hyphens between letters (line-end hyphenation), kinds of dashes, ligatures and composed
accents may differ, and a closing full stop or comma may be the model's own. What is cited is the source's
text, never the model's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from desk_rag.answering.events import Citation, Source
from desk_rag.documents.chunking import Location

DOUBLE_QUOTES = frozenset('"\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\uff02\u300c\u300d\u300e\u300f')
_IGNORED = DOUBLE_QUOTES | frozenset(
    "'`\u00b4\u2018\u2019\u201a\u201b\u2032\u2039\u203a\u00ad\u200b\u200c\u200d\u2060\ufeff"
)
_DASHES = frozenset("-\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d")
_CLOSING_POINTS = ".,;:!?\u2026"
_FEWEST_LETTERS = 3


@dataclass(frozen=True, slots=True)
class _Key:
    """Text reduced to what must agree."""

    letters: str
    places: tuple[int, ...]
    """For each character of `letters` the index of the character it came from."""


class QuoteFinder:
    """Finds quotes in the sources of one answer. Reduces each source once, when first needed."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._keys: list[_Key | None] = [None] * len(self._sources)

    def find(self, quote: str) -> Citation | None:
        """The place of `quote` in the first source that holds it, with the source's own wording; None if
        nowhere."""
        wanted = _reduce(quote).letters
        # A dash that opens a list's line looks in the source like one that divides a word at the line before.
        undashed = wanted[1:] if wanted[:1] == "-" and wanted[1:2].isalpha() else wanted
        ways = [wanted, wanted.rstrip(_CLOSING_POINTS), undashed, undashed.rstrip(_CLOSING_POINTS)]
        # One that closes a line looks there like one that divides a word, too: 'Death —' before a line with 'He'.
        ways += [way.rstrip("-" + _CLOSING_POINTS) for way in (wanted, undashed)]
        for letters in dict.fromkeys(ways):
            if sum(letter.isalnum() for letter in letters) < _FEWEST_LETTERS:
                return None
            for index, source in enumerate(self._sources):
                place = _find(source.text, self._key(index), letters)
                if place is not None:
                    location = _narrow(source, *place)
                    return Citation(source.number, source.path, location, source.text[place[0] : place[1]])
        return None

    def _key(self, index: int) -> _Key:
        key = self._keys[index]
        if key is None:
            key = self._keys[index] = _reduce(self._sources[index].text)
        return key


def same_words(quote: str, other: str) -> bool:
    """True if `quote` stands within `other` (under the same tolerance)."""
    letters = _reduce(quote).letters.rstrip(_CLOSING_POINTS)
    return bool(letters) and _find(other, _reduce(other), letters) is not None


def _reduce(text: str) -> _Key:
    letters: list[str] = []
    places: list[int] = []
    for index, character in enumerate(text):
        if character in _IGNORED or character.isspace():
            continue
        if character in _DASHES:
            if letters and letters[-1] == "-":
                continue  # '--' for a dash
            letters.append("-")
            places.append(index)
            continue
        if len(letters) > 1 and letters[-1] == "-" and letters[-2].isalpha() and character.isalpha():
            letters.pop()  # 'docu-\nment' and 'well-known' agree with 'document' and 'wellknown'
            places.pop()
        # NFKD letter by letter opens ligatures and takes accents apart alike in source and quote.
        for part in unicodedata.normalize("NFKD", character):
            if not part.isspace():
                letters.append(part)
                places.append(index)
    return _Key("".join(letters), tuple(places))


def _find(text: str, key: _Key, letters: str) -> tuple[int, int] | None:
    """First run of `letters` that begins and ends between words: (start, end) in `text`."""
    at = key.letters.find(letters)
    while at >= 0:
        start, end = key.places[at], key.places[at + len(letters) - 1] + 1
        if not _inside_word(text, start) and not _inside_word(text, end):
            return start, end
        at = key.letters.find(letters, at + 1)
    return None


def _inside_word(text: str, cut: int) -> bool:
    return 0 < cut < len(text) and text[cut - 1].isalnum() and text[cut].isalnum()


def _narrow(source: Source, start: int, end: int) -> Location:
    """The lines of the quote, where the chunk's lines are the file's lines one to one; else the chunk's
    range."""
    location = source.location
    if location.line_start is None or location.line_end is None:
        return location
    first, newline, _ = source.text.partition("\n")
    titled = bool(newline and source.title) and first.startswith(source.title)
    body = len(first) + 1 if titled else 0
    lines_in_text = source.text.count("\n", body) + 1
    if start < body or lines_in_text != location.line_end - location.line_start + 1:
        return location
    return replace(
        location,
        line_start=location.line_start + source.text.count("\n", body, start),
        line_end=location.line_start + source.text.count("\n", body, end),
    )
