"""Cut an answer into units while it streams: sentences, list items, table rows, headings, lines of code.

A unit is what is checked, cited and shown as a whole. The cut does not depend on where the stream's pieces end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from desk_rag.answering.writing import claims

_FENCE = re.compile(r"^\s{0,3}(```|~~~)")
_END = re.compile(
    r"(?:[.!?…]+[\"'”’»)\]*_]*|[。！？])"  # the end of a sentence and what closes with it
    r"(?:[ \t]*(?:\[\^?[^\]\n]{1,24}\]|【[^】\n]{1,40}】)[.,]?)*"  # the citations behind it
    r"(?:[ \t]+(?=[^\s\[【])|(?<=[。！？])(?=\S))"
)
_NO_END = re.compile(
    r"(?:^|[\s(\[*_\"“„])(?:\d{1,2}|[^\W\d_]|Mr|Mrs|Ms|Dr|Prof|St|Nr|Fig|vs|cf|approx|ca|etc|e\.g|i\.e|z\.\s?B|d\.\s?h|"
    r"u\.\s?a|bzw|evtl|ggf|inkl|Abs|Art|Hr|Fr|Str|Tel|p\.\s?ex|Mme|Mlle|M|Sr|Sra|Sta|Dra|vgl|bijv|resp|np|tzw|tj|ul)"
    r"\.\s*$"
)
"""Abbreviations and numbers before which a full stop ends nothing: 'am 12. Mai', 'z. B.'."""
_NEXT_CONTINUES = re.compile(r"[a-zäöüßàâéèêëîïôûùçñáíóúãõåøæąćęłńśźż,;)]")
_LONGEST = 2_000
"""Characters of a unit; what runs on for longer is cut, so that a stream without an end cannot grow without bound."""


class UnitKind(Enum):
    """Kind of a unit."""

    SENTENCE = "sentence"
    ROW = "table row"
    HEADER = "first row of a table"
    OTHER = "heading, rule, code or blank line"


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit as the model wrote it."""

    text: str
    """Without the white space around it."""
    before: str
    """White space between the unit before and this one."""
    kind: UnitKind


class UnitSplitter:
    """Cuts the text of one answer into units."""

    def __init__(self) -> None:
        self._pending = ""
        self._line_begins = True
        """True if the pending text is the beginning of a line."""
        self._in_code = False
        self._in_table = False
        self._has_header = False
        """True if the table row that is taken next stands above a rule."""

    @property
    def pending(self) -> str:
        """The text that is not yet a whole unit."""
        return self._pending

    def feed(self, piece: str) -> list[Unit]:
        """Take the next piece of text; return the units that are complete."""
        self._pending += piece.replace("\r", "")
        units = []
        while (unit := self._next(ended=False)) is not None:
            units.append(unit)
        return units

    def finish(self) -> list[Unit]:
        """Return what is left, as the last unit."""
        units = []
        if self._pending.strip():
            self._pending += "\n"
            while (unit := self._next(ended=True)) is not None:
                units.append(unit)
        self._pending = ""
        return units

    def _next(self, *, ended: bool) -> Unit | None:
        stripped = self._pending.lstrip()
        if not stripped:
            return None
        before = self._pending[: len(self._pending) - len(stripped)]
        line_begins = self._line_begins or "\n" in before
        line, newline, following = stripped.partition("\n")
        if line_begins and (self._in_code or _whole_line(line)):
            if not newline or not (ended or self._in_code or self._in_table or _tells_header(line, following)):
                return None
            self._has_header = claims.is_delimiter_row(following.partition("\n")[0])
            return self._take(before, line)
        if line_begins and not newline and len(line) < 4 and set(line) <= set("`~"):
            return None
        end = self._sentence_end(line, complete=bool(newline))
        return None if end is None else self._take(before, stripped[:end], rest=stripped[end:])

    def _take(self, before: str, text: str, rest: str | None = None) -> Unit:
        kind = self._kind(text)
        self._pending = self._pending[len(before) + len(text) :] if rest is None else rest
        # A sentence may end within its line; the blanks behind it belong to the next unit.
        text, blanks = text.rstrip(), text[len(text.rstrip()) :]
        self._pending = blanks + self._pending
        self._line_begins = self._pending.startswith("\n")
        return Unit(text, before, kind)

    def _kind(self, text: str) -> UnitKind:
        if _FENCE.match(text):
            self._in_code = not self._in_code
            self._in_table = False
            return UnitKind.OTHER
        if self._in_code:
            return UnitKind.OTHER
        if claims.is_table_row(text):
            first, self._in_table = not self._in_table, True
            return UnitKind.HEADER if first and self._has_header else UnitKind.ROW
        self._in_table = False
        return UnitKind.SENTENCE if claims.is_claim(text) else UnitKind.OTHER

    def _sentence_end(self, line: str, *, complete: bool) -> int | None:
        for match in _END.finditer(line):
            following = line[match.end() : match.end() + 1]
            sentence = re.sub(r"(?:[ \t]*\[[^\]]*\][.,]?)+\s*$", "", line[: match.end()])
            continues = _NEXT_CONTINUES.match(following)
            numbered = following.isdigit() and sentence.rstrip().endswith(" No.")
            if not continues and not numbered and not _NO_END.search(sentence):
                return match.end()
        if complete:
            return len(line)
        return _LONGEST if len(line) > _LONGEST else None


def _whole_line(line: str) -> bool:
    """True for lines that are a unit whatever they hold: headings, table rows, fences of code."""
    return line.startswith(("|", "#")) or _FENCE.match(line) is not None


def _tells_header(line: str, following: str) -> bool:
    """True once what follows a table's first row says whether that row is its header."""
    begun = following.lstrip(" ")
    return not claims.is_table_row(line) or "\n" in following or (begun != "" and not begun.startswith("|"))
