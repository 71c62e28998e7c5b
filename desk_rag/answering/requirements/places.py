"""The surroundings of a sentence that say what it is about: section lines, heading, title and file name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.requirements.dates import without_dates
from desk_rag.documents.formats import Format, format_of_name
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.answering.events import Source
    from desk_rag.documents.chunking import Location
    from desk_rag.store.types import Passage

_LEVELS = " › "
_LONGEST_HEADING = 8
"""Words of a line that may be a heading inside a chunk."""
_NOT_HEADING = re.compile(r"[.,;]$|;\s|^\s*[-*•]|^\s*\d{1,3}[.)]\s|:\s\S")
_LIST_NUMBER = re.compile(r"[^\w\n]{0,3}\d{1,3}[.)]\s+")
_LETTER_HEAD = re.compile(r"^(?:From|To|Date|Subject|Cc): ")


@dataclass(frozen=True, slots=True)
class Place:
    """A chunk with the names under which it stands."""

    text: str
    labels: str
    """File name and headings; words are parted by blanks."""
    body: int
    """Character of `text` at which the title line ends."""
    is_code: bool = False
    """True for the source of a program."""
    name: str = ""
    """The file's name without its ending and its numbers; empty if it is not known."""
    closely: bool = False
    """True if a second look chose it: both pointers read it."""

    def marker_before(self, begin: int) -> int:
        """The begin of a list item's number that ends at `begin`; `begin` without one."""
        line = self.text.rfind("\n", 0, begin) + 1
        return line if _LIST_NUMBER.fullmatch(self.text[line:begin]) else begin

    def sections_before(self, begin: int) -> list[str]:
        """The lines before `begin` that look like headings, the nearest first."""
        lines = self.text[self.body : begin].split("\n")[:-1]
        return [line for line in reversed(lines) if _is_heading(line)]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A line with the value that is asked for, as characters of the place's text."""

    place: Place
    begin: int
    end: int
    value: tuple[int, int]

    @property
    def row(self) -> tuple[Place, int, int]:
        """The line without the value."""
        return self.place, self.begin, self.end

    @property
    def text(self) -> str:
        """The value."""
        return self.place.text[slice(*self.value)]


def bare(text: str | Place) -> Place:
    """The place of a chunk of which nothing but its text is known."""
    return text if isinstance(text, Place) else Place(text, "", 0)


def place_of_source(source: Source) -> Place:
    """The place of a source of an answer."""
    return _place(source.text, source.path, source.title, source.location, source.closely)


def place_of_passage(passage: Passage, *, closely: bool = False) -> Place:
    """The place of a retrieved passage."""
    return _place(passage.chunk.text, passage.path, passage.title, passage.chunk.location, closely)


def _place(text: str, path: Path, title: str, location: Location, closely: bool) -> Place:
    heading = location.heading
    # The title of a workbook is the name of its first sheet.
    of_section = heading.split(_LEVELS)[-1] if location.units.names_section and heading else heading or title
    several = location.page_end not in (None, location.page_start)
    names = [_spaced(path.parent.name), _spaced(path.stem), "" if several else of_section]
    first, newline, _ = text.partition("\n")
    titled = bool(newline and title) and first.startswith(title)
    is_code = format_of_name(path.name) is Format.CODE
    body = len(first) + 1 if titled else 0
    return Place(text, "\n".join(filter(None, names)), body, is_code, _in_words(path), closely)


def _in_words(path: Path) -> str:
    """The words of a file's name: dates and numbers are compared elsewhere, and say nothing of what a text is about."""
    words = re.split(r"[\s_-]+", clean_name(path.stem))
    return " ".join(word for word in words if any(letter.isalpha() for letter in word))


def _spaced(name: str) -> str:
    """A file name with blanks for its underscores; hyphens stay, because dates and numbers have them."""
    return name.replace("_", " ")


def _is_heading(line: str) -> bool:
    words = line.split()
    if not 0 < len(words) <= _LONGEST_HEADING or _NOT_HEADING.search(line) or _LETTER_HEAD.match(line):
        return False
    return len(words) == 1 or bool(without_dates(line).strip(" .,"))  # a letter's date is no heading
