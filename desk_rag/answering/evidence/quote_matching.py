"""Find where a quote stands in the sources: tolerant of typography, strict about the words.

A quote must be one contiguous run that begins and ends between words. White space, quotation marks, soft hyphens,
hyphens between letters (line-end hyphenation), kinds of dashes, ligatures and composed accents may differ, and a
closing full stop or comma may be the model's own. The citation holds the source's wording, never the model's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from desk_rag.answering.events import Citation, Source
from desk_rag.documents.sentences import quoted_parts, stands_in

DOUBLE_QUOTES = frozenset('"\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\uff02\u300c\u300d\u300e\u300f')
_IGNORED = DOUBLE_QUOTES | frozenset(
    "'`\u00b4\u2018\u2019\u201a\u201b\u2032\u2039\u203a\u00ad\u200b\u200c\u200d\u2060\ufeff"
)
_DASHES = frozenset("-\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d")
_CLOSING_POINTS = ".,;:!?\u2026"
_MIN_LETTERS = 3


@dataclass(frozen=True, slots=True)
class _Key:
    """Text reduced to the characters that must match."""

    letters: str
    positions: tuple[int, ...]
    """For each character of `letters`, the index in the text of the character it came from."""


class QuoteFinder:
    """Finds quotes in the sources of one answer; each source is reduced once, when first needed."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._keys: list[_Key | None] = [None] * len(self._sources)

    def find(self, quote: str) -> Citation | None:
        """Cite `quote` from the first source that contains it, in the source's wording.

        A mail that quotes it from an earlier one comes last. None if no source does.
        """
        exact = _reduce(quote).letters
        # A dash that opens a list item looks in the source like the hyphen of a word divided on the line before.
        undashed = exact[1:] if exact[:1] == "-" and exact[1:2].isalpha() else exact
        variants = [exact, exact.rstrip(_CLOSING_POINTS), undashed, undashed.rstrip(_CLOSING_POINTS)]
        # So does a dash that closes a line: 'Death —' before a line that begins with 'He'.
        variants += [variant.rstrip("-" + _CLOSING_POINTS) for variant in (exact, undashed)]
        for letters in dict.fromkeys(variants):
            if sum(letter.isalnum() for letter in letters) < _MIN_LETTERS:
                return None
            quoted: Citation | None = None
            for index, source in enumerate(self._sources):
                char_range = _find(source.text, self._key(index), letters)
                if char_range is None:
                    continue
                start, end = _with_marks(source.text, *char_range)
                location = source.location.within(source.text, start, end)
                citation = Citation(source.number, source.path, location, source.text[start:end])
                if not stands_in(start, quoted_parts(source.text)):
                    return citation
                heading = f"quoted in {citation.location.heading}"
                quoted = quoted or replace(citation, location=replace(citation.location, heading=heading))
            if quoted is not None:
                return quoted
        return None

    def _key(self, index: int) -> _Key:
        key = self._keys[index]
        if key is None:
            key = self._keys[index] = _reduce(self._sources[index].text)
        return key


def same_words(quote: str, other: str) -> bool:
    """True if `other` contains `quote`, with the tolerance of `QuoteFinder`."""
    letters = _reduce(quote).letters.rstrip(_CLOSING_POINTS)
    return bool(letters) and _find(other, _reduce(other), letters) is not None


def _reduce(text: str) -> _Key:
    letters: list[str] = []
    positions: list[int] = []
    for index, character in enumerate(text):
        if character in _IGNORED or character.isspace():
            continue
        if character in _DASHES:
            if letters and letters[-1] == "-":
                continue  # '--' stands for a dash
            letters.append("-")
            positions.append(index)
            continue
        if len(letters) > 1 and letters[-1] == "-" and letters[-2].isalpha() and character.isalpha():
            letters.pop()  # 'docu-\nment' and 'well-known' agree with 'document' and 'wellknown'
            positions.pop()
        # NFKD letter by letter opens ligatures and takes accents apart alike in source and quote.
        for part in unicodedata.normalize("NFKD", character):
            if not part.isspace():
                letters.append(part)
                positions.append(index)
    return _Key("".join(letters), tuple(positions))


def _find(text: str, key: _Key, letters: str) -> tuple[int, int] | None:
    """First run of `letters` that begins and ends between words: (start, end) in `text`."""
    index = key.letters.find(letters)
    while index >= 0:
        start, end = key.positions[index], key.positions[index + len(letters) - 1] + 1
        if not _inside_word(text, start) and not _inside_word(text, end):
            return start, end
        index = key.letters.find(letters, index + 1)
    return None


def _with_marks(text: str, start: int, end: int) -> tuple[int, int]:
    """The range with the quotation mark that opens or closes beside it, if the other of the pair stands inside.

    Marks do not count in the comparison, so a range begins at its first letter: 'The Salt Path" to Ana'.
    """
    if sum(character in DOUBLE_QUOTES for character in text[start:end]) % 2 == 0:
        return start, end
    if start > 0 and text[start - 1] in DOUBLE_QUOTES and not text[start - 2 : start - 1].isalnum():
        return start - 1, end
    if text[end : end + 1] and text[end] in DOUBLE_QUOTES:
        return start, end + 1
    return start, end


def _inside_word(text: str, cut: int) -> bool:
    return 0 < cut < len(text) and text[cut - 1].isalnum() and text[cut].isalnum()
