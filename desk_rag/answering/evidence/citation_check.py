"""Ask the cited file itself, at the moment of answering, whether it holds a quote.

A file that still has the content it was read with holds every quote that was found in its passages. In one that has
changed the quote is looked for, if it is a text file; its lines are then those of the present text. A file that is
gone, is too large to be read at once or does not answer in time cannot be asked: the quote is from the index.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from desk_rag.answering.events import AnswerText, Citation, Evidence, Source
from desk_rag.documents import document
from desk_rag.documents.chunking import Location
from desk_rag.documents.formats import Format, format_of_name
from desk_rag.errors import DocumentError

_MOST_BYTES = 16 << 20
"""Of a file that is read; a larger one is asked for its size, time and inode."""
_SECONDS = 1.5
"""All files of one answer together: a drive that does not answer must not hold up what is already known."""
_PLAIN_FORMATS = frozenset({Format.MARKDOWN, Format.TEXT, Format.RST, Format.CODE, Format.HTML, Format.TABLE})


@dataclass(frozen=True, slots=True)
class _Present:
    """A file as it is now."""

    is_unchanged: bool
    text: str = ""
    """Of a text file that has changed."""


_ABSENT = _Present(is_unchanged=False)


class CitationCheck:
    """Checks the citations of one answer; each file is read once, and only if it is cited."""

    def __init__(self, sources: Sequence[Source], seconds: float = _SECONDS) -> None:
        self._sources = {source.number: source for source in sources}
        self._present: dict[int, _Present] = {}
        self._checked: dict[Citation, Citation] = {}
        self._left = seconds

    def event(self, event: Evidence | AnswerText) -> Evidence | AnswerText:
        """The event with its citation checked."""
        return Evidence(self.citation(event.citation)) if isinstance(event, Evidence) else event

    def citation(self, citation: Citation) -> Citation:
        """The citation with the lines where the quote is now, or with the time of the index that it comes from."""
        if citation not in self._checked:
            self._checked[citation] = self._check(citation)
        return self._checked[citation]

    def _check(self, citation: Citation) -> Citation:
        source = self._sources[citation.source_number]
        present = self._present.get(source.number)
        if present is None:
            present = self._present[source.number] = self._ask(source)
        if present.is_unchanged:
            return citation
        location = _found_at(citation, present.text)
        return replace(citation, as_of=source.indexed_at) if location is None else replace(citation, location=location)

    def _ask(self, source: Source) -> _Present:
        answers: list[_Present] = []
        began = time.monotonic()
        # Reading from a network drive that is away cannot be interrupted; the thread is left to itself.
        thread = threading.Thread(target=lambda: answers.append(_look(source)), name="citation", daemon=True)
        thread.start()
        thread.join(max(0.0, self._left))
        self._left -= time.monotonic() - began
        return answers[0] if answers else _ABSENT


def _look(source: Source) -> _Present:
    try:
        now = source.path.stat()
        if now.st_size > _MOST_BYTES:
            return _Present((now.st_size, now.st_mtime_ns, now.st_ino) == source.file)
        found, data = document.read_file(source.path, _MOST_BYTES)
    except (OSError, ValueError, DocumentError):
        return _ABSENT
    if source.digest and found.digest == source.digest:
        return _Present(is_unchanged=True)
    return _Present(is_unchanged=False, text=_decoded(data) if _is_plain(source.path) else "")


def _is_plain(path: Path) -> bool:
    return format_of_name(os.fspath(path.name)) in _PLAIN_FORMATS


def _decoded(data: bytes) -> str:
    for encoding in ("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


def _found_at(citation: Citation, text: str) -> Location | None:
    """Where `text` holds the quote as whole words, next to where it was; None if nowhere."""
    words = citation.quote.split()
    if not words or not text:
        return None
    pattern = r"(?<!\w)" * words[0][0].isalnum() + r"\s+".join(map(re.escape, words))
    pattern += r"(?!\w)" * words[-1][-1].isalnum()
    before = citation.location
    places = [
        (text.count("\n", 0, match.start()) + 1, text.count("\n", 0, match.end()) + 1)
        for match, _ in zip(re.finditer(pattern, text), range(_MOST_PLACES), strict=False)
    ]
    if not places:
        return None
    if before.line_start is None:
        return before
    wanted = before.line_start
    first, last = min(places, key=lambda place: abs(place[0] - wanted))
    return replace(before, line_start=first, line_end=last)


_MOST_PLACES = 100
