"""Compare the names, numbers and dates of a question with a sentence and the place where it stands.

A question about shelf 3 is not answered by a line about shelf 32, nor one about 2023 by the sheet of 2024. Both look
alike to models, so what the question names is compared letter by letter: with the sentence, then with the nearest
section line above it, then with file name and heading, then with the text before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from desk_rag.answering.requirements.correspondence import Correspondents, correspondents, header_of, headers
from desk_rag.answering.requirements.mentions import (
    CODE,
    YEAR,
    Kind,
    Value,
    codes,
    dated_kinds,
    is_time,
    numbered_kinds,
)
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.answering.requirements.titles import without_titles
from desk_rag.store.catalog.words import STOP_WORDS

_NAME = re.compile(r"(?<![\w’'])[^\W\d_][\w&’'-]*")
_OWNER = re.compile(r"['’]s?$")
_UNDER_NAME = re.compile(r"^(?P<name>[^\W\d_][^:,;\n]{1,40}), (?P<label>[^:,;\n]{2,30}): ", re.M)
_BEFORE_DASH = re.compile(r"(?:[^:\n]{2,24}:\s)?(?P<name>[^\W\d_a-z]\w+(?:\s[^\W\d_a-z]\w+)?)\s+[-–—]\s")
"""Entry about one name in a line about several: 'Allergies: Bruno - penicillin. Helen - none.'"""
_NO_NAMES = frozenset(
    "i i'm i've i'd i'll ok pdf csv pin faq id mr mrs ms dr christmas easter".split()  # noqa: SIM905
)


_FOR_YEAR = re.compile(r"\bfor\s+(?:the\s+year\s+)?(?:19|20)\d\d\b", re.I)
"""'The subscription for 2024', in minutes of 2023."""
_BEGINNING = content_stems(
    "joined since born birth birthday hired started founded built established entered appointed elected registered"
)
"""Columns that say when something began that the other cells of a row are about today."""
_ASKS_BEGINNING = _BEGINNING | content_stems("join start begin new old become became came bear")


class Fit(IntEnum):
    """How well a place meets one requirement, best first."""

    STATED = 0
    """The sentence or what it stands under has the value."""
    NEARBY = 1
    """The text around it has the value."""
    MISSING = 2
    OTHER = 3
    """The sentence, or what it stands under, has another value of the same kind."""


_PENALTIES = {Fit.STATED: 0.0, Fit.NEARBY: 0.25, Fit.MISSING: 2.5, Fit.OTHER: 5.0}
"""Span score, in log-odds, that a sentence loses; see "Requirements of a question" in bench/LOG.md."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A value that the evidence must be about."""

    asked: str
    """Words of the question that state it."""
    kind: Kind
    wanted: frozenset[Value]
    is_of_row: bool = False
    """True for a time of which the other cells of a row are to be: not 'Joined: 2018' for a subscription."""

    def fit(self, place: Place, begin: int, end: int) -> Fit:
        """Compare with characters [begin, end) of the place's text."""
        text = place.text[place.marker_before(begin) : end]
        mentioned = self.kind.values(_without_beginnings(text) if self.is_of_row else text)
        if self.wanted & mentioned:
            return Fit.STATED
        labelled = self.kind.values(place.labels)
        in_labels = bool(self.wanted & labelled)
        if mentioned:
            is_for_other = self.kind is YEAR and _FOR_YEAR.search(text) is not None
            return Fit.NEARBY if in_labels and not is_for_other else Fit.OTHER
        if in_labels:
            return Fit.STATED
        for line in place.sections_before(begin):
            if of_section := self.kind.values(line):
                return Fit.STATED if self.wanted & of_section and not labelled & of_section else Fit.OTHER
        # Under a heading with another date, only the same paragraph may say otherwise.
        before = place.text.rfind("\n", 0, begin) + 1 if labelled else place.body
        if labelled & self.kind.values(place.text[before:begin]):
            return Fit.OTHER  # 'from June 2024 to June 2025' in the file of 2024 is about 2024
        if self.wanted & self.kind.last(place.text[before:begin]):
            return Fit.NEARBY
        return Fit.OTHER if labelled else Fit.MISSING

    def fit_of_chunk(self, place: Place) -> Fit:
        """Compare with a whole chunk."""
        labelled, mentioned = self.kind.values(place.labels), self.kind.values(place.text[place.body :])
        if self.wanted & (labelled | mentioned):
            return Fit.STATED
        return Fit.OTHER if labelled or mentioned else Fit.MISSING


@dataclass(frozen=True, slots=True)
class _Reference(Requirement):
    """A reference number. A passage that has it below the sentence is about it too, unless the sentence has another."""

    def fit(self, place: Place, begin: int, end: int) -> Fit:
        """Compare with characters [begin, end) of the place's text."""
        fit = Requirement.fit(self, place, begin, end)
        below = fit is Fit.MISSING and self.wanted & self.kind.values(place.text)
        return Fit.NEARBY if below else fit


@dataclass(frozen=True, slots=True)
class _Name:
    """A proper name or code. A missing one may be spelled differently, so no other name contradicts it."""

    asked: str
    stems: frozenset[str]
    owned: str = ""
    """Word behind the name's possessive: 'birthday' in "Ana's birthday"."""

    def fit(self, place: Place, begin: int, end: int) -> Fit:
        """Compare with characters [begin, end) of the place's text; a part of the name somewhere in it is near."""
        if self._in(f"{place.text[begin:end]} {place.labels}"):
            return Fit.STATED
        if self._labels_another_line(place, begin, end):
            return Fit.OTHER
        stems = content_stems(f"{place.text} {place.labels}")
        return Fit.NEARBY if any(has_stem(stem, stems) for stem in self.stems) else Fit.MISSING

    def fit_of_chunk(self, place: Place) -> Fit:
        """Compare with a whole chunk."""
        return Fit.STATED if self._in(f"{place.text} {place.labels}") else Fit.MISSING

    def _labels_another_line(self, place: Place, begin: int, end: int) -> bool:
        """True if the chunk's lines are labelled with names, as contacts are, and this line with another name."""
        own = _UNDER_NAME.match(place.text[begin:end]) or _BEFORE_DASH.match(place.text[begin:end])
        if own is None or self._in(own["name"]):
            return False
        if own.re is _BEFORE_DASH:
            return self._in(place.text)
        if content_stems(self.owned) & content_stems(own["label"]):
            return True
        return any(self._in(match["name"]) for match in _UNDER_NAME.finditer(place.text, place.body))

    def _in(self, text: str) -> bool:
        stems = content_stems(text)
        return all(has_stem(stem, stems) for stem in self.stems)


@dataclass(frozen=True, slots=True)
class _Letter:
    """A mail from one person to another."""

    asked: str
    who: Correspondents

    def fit(self, place: Place, begin: int, end: int) -> Fit:
        """Compare with the mail that characters [begin, end) stand in."""
        header = header_of(place, begin)
        if header is None:
            return _Name(self.asked, frozenset(content_stems(self.who.names))).fit(place, begin, end)
        if not self.who.are(header):
            return Fit.OTHER
        return Fit.MISSING if begin == header.begin else Fit.STATED

    def fit_of_chunk(self, place: Place) -> Fit:
        """Compare with the mails of a chunk."""
        in_chunk = list(headers(place)) or list(filter(None, [header_of(place, 0)]))
        if not in_chunk:
            return _Name(self.asked, frozenset(content_stems(self.who.names))).fit_of_chunk(place)
        return Fit.STATED if any(map(self.who.are, in_chunk)) else Fit.OTHER


def _without_beginnings(text: str) -> str:
    """A row of a table without the cells that say when something began: 'Joined: 2018'; other text as it is."""
    cells = text.split("; ")
    kept = [cell for cell in cells if not (": " in cell and content_stems(cell.partition(": ")[0]) & _BEGINNING)]
    return "; ".join(kept) if len(cells) > 2 else text


class Requirements:
    """What one question requires of its evidence; falsy if it requires nothing."""

    def __init__(self, question: str) -> None:
        self._question = without_titles(question)

    @cached_property
    def _all(self) -> tuple[Requirement | _Name | _Letter, ...]:
        is_of_row = not content_stems(self._question) & _ASKS_BEGINNING
        valued = [Requirement(asked, kind, frozenset({value}), is_of_row)
                  for kind, value, asked in dated_kinds(self._question)]  # fmt: skip
        numbered = numbered_kinds(self._question)
        valued += [Requirement(asked, kind, frozenset({value})) for kind, value, asked in numbered]
        named = [requirement.asked for requirement in valued]
        valued += [
            _Reference(asked, kind, frozenset({value}))
            for kind, value, asked in codes(self._question)
            if not any(asked in words for words in named)
        ]
        asked_texts = [each.asked for each in valued]
        who = correspondents(self._question)
        if not who:
            return (*valued, *_names(self._question, asked_texts))
        return (*valued, _Letter(who.names, who), *_names(self._question, [*asked_texts, who.names]))

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def asked(self) -> list[str]:
        """All that is required, in the words of the question."""
        return [each.asked for each in self._all]

    @property
    def has_values(self) -> bool:
        """True if a year, date or number is required."""
        return any(isinstance(each, Requirement) for each in self._all)

    @property
    def stems(self) -> set[str]:
        """The stems of all that is required."""
        return content_stems(" ".join(self.asked))

    @property
    def timed(self) -> tuple[Requirement, ...]:
        """Years, months, days and weekdays."""
        return tuple(each for each in self._all if isinstance(each, Requirement) and each.kind.is_time)

    def penalty(self, place: Place, begin: int, end: int) -> float:
        """The log-odds that a sentence at characters [begin, end) loses."""
        return sum(_PENALTIES[each.fit(place, begin, end)] for each in self._all)

    def worst(self, place: Place, begin: int, end: int) -> Fit:
        """The worst fit of a sentence at characters [begin, end)."""
        return max((each.fit(place, begin, end) for each in self._all), default=Fit.STATED)

    def chunk_fits(self, place: Place) -> list[Fit]:
        """The fit of a whole chunk to each requirement."""
        return [each.fit_of_chunk(place) for each in self._all]

    def unmet(self, place: Place, begin: int, end: int) -> tuple[str, ...]:
        """The words of the question that neither the sentence nor its place has."""
        return tuple(each.asked for each in self._all if each.fit(place, begin, end) >= Fit.MISSING)


def _names(question: str, taken: Sequence[str]) -> list[_Name]:
    """The proper names and codes of a question, without words that another requirement covers (`taken`)."""
    words = list(_NAME.finditer(question))
    runs: list[list[str]] = []
    owned: list[str] = []
    last_end = -1
    for number, match in enumerate(words):
        word = match.group()
        plain = _OWNER.sub("", word)
        begins = number == 0 or plain.lower().removesuffix("'s") in STOP_WORDS
        begins = begins or question[: match.start()].rstrip()[-1:] in ("?", ".", "!", ":", "“", '"')
        is_name = word[0].isupper() and plain.lower() not in _NO_NAMES and not is_time(plain)
        is_name = is_name and plain.lower() not in STOP_WORDS and (not begins or word != plain)
        is_name = is_name and not any(plain in other.split() for other in taken)
        if not is_name:
            last_end = -1
            continue
        if last_end >= 0 and question[last_end : match.start()] in (" ", " & "):
            runs[-1].append(plain)
        else:
            runs.append([plain])
            owned.append("")
        if word != plain and number + 1 < len(words):
            owned[-1] = words[number + 1].group()
        last_end = match.end() if word == plain else -1
    names = [
        _Name(" ".join(run), frozenset(content_stems(" ".join(run))), thing)
        for run, thing in zip(runs, owned, strict=True)
    ]
    codes = [_Name(code, frozenset(content_stems(code))) for code in CODE.findall(question)
             if not any(code in other for other in taken)]  # fmt: skip
    return [name for name in (*names, *codes) if name.stems]
