"""Check against the cited file itself, while answering, that it contains the quote.

A file whose content is still the one that was indexed contains every quote found in its chunks. If the content has
changed and it is a text file, the quote is searched in it, and the citation gets the lines of the present text. A file
that is gone, too large to be read at once or does not answer in time cannot be checked: the quote is from the index.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from desk_rag.answering.events import CheckedSentence, Citation, Evidence, SentenceChecked, Source, StreamEvent
from desk_rag.documents import document
from desk_rag.documents.chunking import Location
from desk_rag.documents.formats import Format, format_of_name, readable_in_part
from desk_rag.errors import DocumentError

_MOST_BYTES = 16 << 20
"""Maximum size of a file that is read; of a larger one size, modification time and inode are compared."""
_SECONDS = 1.5
"""Seconds for all files of one answer together: a drive that does not answer must not delay the answer."""
_MAX_MATCHES = 100
"""Occurrences of a quote in a changed file that are looked at."""
_WORD = re.compile(r"[^\W_]+")
_MOST_LINES = 2000
"""Lines that are looked through."""
_WIDEST_WINDOW = 4
_LEAST_SHARE = 0.5
"""Share of the quote's words that must stand on the lines."""


@dataclass(frozen=True, slots=True)
class _FileNow:
    """A cited file as it is now."""

    is_unchanged: bool
    text: str = ""
    """Content of a text file; empty for others and for large ones."""


_UNKNOWN = _FileNow(is_unchanged=False)


class CitationCheck:
    """Checks the citations of one answer; a file is read at most once, and only if it is cited."""

    def __init__(self, sources: Sequence[Source], seconds: float = _SECONDS) -> None:
        self._sources = {source.number: source for source in sources}
        self._files: dict[int, _FileNow] = {}
        self._checked: dict[Citation, Citation] = {}
        self._seconds_left = seconds

    def event(self, event: StreamEvent) -> StreamEvent:
        """The event with its citations checked."""
        if isinstance(event, SentenceChecked):
            return SentenceChecked(self.sentence(event.sentence))
        return replace(event, citation=self.citation(event.citation)) if isinstance(event, Evidence) else event

    def sentence(self, sentence: CheckedSentence) -> CheckedSentence:
        """The sentence with its citations checked."""
        return replace(sentence, citations=tuple(map(self.citation, sentence.citations)))

    def citation(self, citation: Citation) -> Citation:
        """The citation with the quote's present lines, or with the time its file was indexed."""
        if citation not in self._checked:
            self._checked[citation] = self._check(citation)
        return self._checked[citation]

    def _check(self, citation: Citation) -> Citation:
        source = self._sources[citation.source_number]
        file_now = self._files.get(source.number)
        if file_now is None:
            file_now = self._files[source.number] = self._read(source)
        if file_now.is_unchanged:
            return replace(citation, location=_narrowed(citation, file_now.text))
        location = _locate(citation, file_now.text)
        if location is not None:
            return replace(citation, location=location)
        return replace(citation, as_of=source.indexed_at, is_lost=bool(file_now.text))

    def _read(self, source: Source) -> _FileNow:
        results: list[_FileNow] = []
        began = time.monotonic()
        # A read from an unreachable network drive cannot be interrupted, so the thread is abandoned.
        thread = threading.Thread(target=lambda: results.append(_read_file(source)), name="citation", daemon=True)
        thread.start()
        thread.join(max(0.0, self._seconds_left))
        self._seconds_left -= time.monotonic() - began
        return results[0] if results else _UNKNOWN


def _read_file(source: Source) -> _FileNow:
    try:
        status = source.path.stat()
        if status.st_size > _MOST_BYTES or document.is_online_only(status):
            return _FileNow((status.st_size, status.st_mtime_ns, status.st_ino) == source.file)
        stamp, data = document.read_file(source.path, _MOST_BYTES)
    except (OSError, ValueError, DocumentError):
        return _UNKNOWN
    is_unchanged = bool(source.digest) and stamp.digest == source.digest
    is_plain = readable_in_part(source.path.name) or format_of_name(source.path.name) is Format.HTML
    return _FileNow(is_unchanged, _decoded(data) if is_plain else "")


def _decoded(data: bytes) -> str:
    for encoding in ("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


def _narrowed(citation: Citation, text: str) -> Location:
    """The lines of the quote in an unchanged file, where its chunk has more lines; else its location as it is."""
    location = citation.location
    first, last = location.line_start, location.line_end
    if not text or first is None or last is None or first == last:
        return location
    lines = lines_of(citation.quote, text, first, last)
    return location if lines is None else replace(location, line_start=lines[0], line_end=lines[1])


def _line_ranges(quote: str, text: str) -> list[tuple[int, int]]:
    """First and last line of each occurrence of the quote as whole words."""
    words = quote.split()
    if not words or not text:
        return []
    pattern = r"(?<!\w)" * words[0][0].isalnum() + r"\s+".join(map(re.escape, words))
    pattern += r"(?!\w)" * words[-1][-1].isalnum()
    return [
        (text.count("\n", 0, match.start()) + 1, text.count("\n", 0, match.end()) + 1)
        for match, _ in zip(re.finditer(pattern, text), range(_MAX_MATCHES), strict=False)
    ]


def _locate(citation: Citation, text: str) -> Location | None:
    """The occurrence of the quote in `text`, as whole words, nearest to its old place.

    None if there is none.
    """
    old_location, line_ranges = citation.location, _line_ranges(citation.quote, text)
    if not line_ranges:
        return None
    old_start = old_location.line_start
    if old_start is None:
        return old_location
    first, last = min(line_ranges, key=lambda lines: abs(lines[0] - old_start))
    return replace(old_location, line_start=first, line_end=last)


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
