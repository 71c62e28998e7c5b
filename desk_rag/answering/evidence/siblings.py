"""Penalize a line if another line of the same document has more of the question's words.

Lists of bins, shelves or officers hold lines that look alike to models. Only the words that one line has tell it from
the others: 'When is the grey bin collected?' is answered by the line of the grey one, not by that of the green one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from desk_rag.answering.requirements.answer_kinds import is_of_kind, kind_asked
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.sentences import quotable

_PER_WORD, _MOST = 2.0, 4.0
"""Log-odds that a line loses for each word that another has besides, and in all; see "Lines alike" in bench/LOG.md."""
_HOW = content_stems("how much many long often far high large cost costs")
"""Words of a question that say only which kind of answer it wants."""
_ITEM = re.compile(r"^\W{0,3}(?:[-*•]|\d{1,3}[.)])\s")
_LABELLED = re.compile(r"^[^:;]{1,40}:\s")
_LONGEST_COLUMNS = 8
"""Words of a line without a full stop that may be a row of columns."""


@dataclass(frozen=True)
class Siblings:
    """The lines of the passages of one document, as answers to one question."""

    question: str
    places: tuple[Place, ...]

    def penalty(self, sentence: str) -> float:
        """The log-odds that a sentence loses because another says as much of the question, and more."""
        if len(self._rivals) < 2:
            return 0.0
        own, form, of_kind = self._covered(sentence), _form(sentence), kind_asked(self.question) is not None
        rivals = [rival for rival in self._rivals if rival[0] != sentence]
        more = [
            len(words - own)
            for _, unit_form, words in rivals
            if own < words and (form == unit_form != "" or (of_kind and (own or self._are_all(words))))
        ]
        return min(_MOST, _PER_WORD * max(more, default=0))

    def _are_all(self, words: set[str]) -> bool:
        """True for all words of a question that name what it is about, several of them."""
        named = self._asked - _HOW
        return len(named) > 1 and named <= words

    @cached_property
    def _asked(self) -> set[str]:
        return content_stems(self.question)

    @cached_property
    def _rivals(self) -> Sequence[tuple[str, str, set[str]]]:
        """The lines that may be an answer of the kind asked for, with their form and the question's words in them."""
        kind = kind_asked(self.question)
        return [
            (unit, _form(unit), self._covered(unit))
            for place in self.places
            if not place.is_code  # where a remark says more than the line that it is about
            for unit in quotable(place.text)
            if not unit.rstrip().endswith("?") and (kind is None or is_of_kind(kind, unit))
        ]

    def _covered(self, sentence: str) -> set[str]:
        stems = content_stems(sentence)
        return {stem for stem in self._asked if has_stem(stem, stems)}


def siblings_of(question: str, places: Sequence[Place]) -> dict[Place, Siblings]:
    """The lines of each place's document, as far as it is among the places."""
    by_file: dict[tuple[str, ...], list[Place]] = {}
    for place in places:
        by_file.setdefault(_file(place), []).append(place)
    of_file = {file: Siblings(question, tuple(of_one)) for file, of_one in by_file.items()}
    return {place: of_file[_file(place)] for place in places}


def _file(place: Place) -> tuple[str, ...]:
    """Names of folder and file; the text where nothing else is known."""
    return tuple(place.labels.split("\n")[:2]) if place.labels else (place.text,)


def _form(sentence: str) -> str:
    """The form of a line that has siblings: a row, an item of a list, a labelled line, columns; empty for prose."""
    if "; " in sentence and ": " in sentence:
        return "row"
    if _ITEM.match(sentence):
        return "item"
    if _LABELLED.match(sentence):
        return "labelled"
    words = sentence.split()
    return "columns" if len(words) <= _LONGEST_COLUMNS and sentence[-1:] not in (".", "!") else ""

