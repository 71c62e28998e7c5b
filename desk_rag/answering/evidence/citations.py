"""The answer form parsed while it streams: quoted evidence lines become citations, the rest is the answer.

Knows the form ('"{evidence sentence}"' on lines of their own, then the short answer) and the sources; knows
no model and no screen. Models that keep to no form are met half-way: words of theirs that stand verbatim in a
source become citations when the answer is complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from desk_rag.answering.events import AnswerText, Citation, Evidence, Source
from desk_rag.answering.evidence.quote_matching import DOUBLE_QUOTES, QuoteFinder, same_words
from desk_rag.model.prompt import NO_ANSWER

_MARKS = "".join(sorted(DOUBLE_QUOTES))
_BEFORE_QUOTE = re.compile(r"\s*(?:(?:[>*\u2022-]+|\d{1,2}[.)]|\[\d{1,3}\])\s*)*")
_PERHAPS_BEFORE_QUOTE = re.compile(r"\d{1,2}|\[\d{0,3}")
_AFTER_QUOTE = re.compile(r"[\s*.,;:]*(?:\[\d{1,3}\][\s.,;]*)*$")
_MARKER = re.compile(r" *\[ *(\d{1,3}(?: *[,;] *\d{1,3})*) *\]")
_PERHAPS_MARKER = re.compile(r"\s*(?:\[[\d,; ]*)?\Z")
_INLINE_QUOTE = re.compile(f"[{re.escape(_MARKS)}]([^{re.escape(_MARKS)}\n]+)[{re.escape(_MARKS)}]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_FEWEST_WORDS = 4
"""Of the model's own words before they are looked for in the sources: fewer stand everywhere by chance."""
_MOST_LINES = 12
"""Of one quote; what stays open longer was never closed."""


class _Line(Enum):
    UNDECIDED = "may yet begin with a quote mark"
    QUOTED = "begins with a quote mark; held back until it is complete"
    OWN = "the answer's own words; passed on as they come"


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What the whole text of a model came to."""

    text: str
    """The answer's own words, or the evidence where that is the answer, or the sentence that there is none. Of a
    stopped answer the own words that had come, perhaps none."""
    found: bool
    """False if the model said that the documents do not hold the answer, or wrote nothing that can be shown."""
    citations: tuple[Citation, ...]
    dropped_quotes: tuple[str, ...]
    """Quotes that stand in no source."""
    events: tuple[Evidence | AnswerText, ...]
    """What `feed` had not yet told."""


class AnswerParser:
    """Takes the text of one answer in pieces; the outcome does not depend on where the pieces are cut.

    All AnswerText, joined, is `ParsedAnswer.text`; all Evidence, in order, is `ParsedAnswer.citations`.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._finder = QuoteFinder(sources)
        self._numbers = frozenset(source.number for source in sources)
        self._line = ""
        self._kind = _Line.UNDECIDED
        self._open: list[str] = []
        """Lines of a quote that has begun and not ended, all of them found in a source so far."""
        self._own = ""
        self._told = 0
        self._citations: list[Citation] = []
        self._dropped: list[str] = []
        self._events: list[Evidence | AnswerText] = []
        self._finished = False

    def feed(self, piece: str) -> list[Evidence | AnswerText]:
        """Take the next piece of text; return what became certain."""
        assert not self._finished, "feed after finish"
        *complete, rest = piece.replace("\r", "").split("\n")
        for part in complete:
            self._extend(part)
            self._end_line()
        self._extend(rest)
        self._tell(final=False)
        return self._take_events()

    def finish(self, *, stopped: bool = False) -> ParsedAnswer:
        """Close the text; return the outcome with the events that were left.

        `stopped`: the user ended it before the model did. Then what had begun and cannot be judged yet is left out,
        the text may be empty, and nothing is concluded from what did not come.
        """
        assert not self._finished, "finish twice"
        self._finished = True
        if stopped:
            self._leave_out_unfinished()
        else:
            self._end_line()
        while self._open:
            self._resolve_open()
        self._tell(final=not stopped)
        text = self._answer(final=not stopped)
        refused = same_words(NO_ANSWER, text[: len(NO_ANSWER) + 8])
        refused = refused or (stopped and bool(text) and NO_ANSWER.startswith(text))
        if not refused and not stopped:
            self._cite_own_words(text)
        found = bool(text or self._citations) and not refused
        if not text and not stopped:
            text = "\n".join(" ".join(c.quote.split()) for c in self._citations) if found else NO_ANSWER
            self._events.append(AnswerText(text))
        return ParsedAnswer(text, found, tuple(self._citations), tuple(self._dropped), tuple(self._take_events()))

    @property
    def dropped_quotes(self) -> tuple[str, ...]:
        """Quotes so far that stand in no source."""
        return tuple(self._dropped)

    # Lines ------------------------------------------------------------------------------------------------

    def _extend(self, part: str) -> None:
        self._line += part
        if self._open:
            return  # whether this line goes on with the quote shows when it is complete
        if self._kind is _Line.OWN:
            self._own += part
        elif self._kind is _Line.UNDECIDED:
            self._kind = _kind(self._line)
            if self._kind is _Line.OWN:
                self._own += self._line

    def _end_line(self) -> None:
        line, kind = self._line, self._kind
        self._line, self._kind = "", _Line.UNDECIDED
        if self._open:
            self._continue_quote(line)
        elif kind is _Line.QUOTED:
            self._begin_quote(_BEFORE_QUOTE.sub("", line, count=1).rstrip())
        else:
            self._own += "\n" if kind is _Line.OWN else line + "\n"

    def _leave_out_unfinished(self) -> None:
        """Of the last line keep what stays as it is whatever comes next: own words, and a quote that is closed.

        One that only waits because its marks are odd is closed, too: going on it would hold the same words.
        """
        line, kind, waiting = self._line, self._kind, self._open
        self._line, self._kind, self._open = "", _Line.UNDECIDED, []
        if waiting and _closed(waiting[0]):
            self._settle(waiting[0])
        quote = _AFTER_QUOTE.sub("", _BEFORE_QUOTE.sub("", line, count=1), count=1)
        if kind is _Line.QUOTED and not waiting and _closed(quote) and _worth_citing(quote[1:-1]):
            self._cite(self._finder.find(quote))

    def _begin_quote(self, line: str) -> None:
        # Not closed, or an odd number of marks: the quote may go on in the next line (or a mark was forgotten).
        unbalanced = sum(character in DOUBLE_QUOTES for character in line) % 2 == 1
        if (unbalanced or not _closed(line)) and self._finder.find(line):
            self._open = [line]
        else:
            self._settle(line)

    def _continue_quote(self, line: str) -> None:
        joined = "\n".join([*self._open, line.rstrip()])
        goes_on = bool(line.strip()) and len(self._open) < _MOST_LINES and self._finder.find(joined) is not None
        if goes_on and joined[-1] in DOUBLE_QUOTES:
            self._open = []
            self._settle(joined)
        elif goes_on:
            self._open.append(line.rstrip())
        else:
            self._open.append(line)
            self._resolve_open()

    def _resolve_open(self) -> None:
        """The quote was never closed: its first line is the quote, the others are read afresh."""
        first, *others = self._open
        self._open = []
        self._settle(first)
        for line in others:
            self._extend(line)
            self._end_line()

    def _settle(self, line: str) -> None:
        """Decide about a line (or lines) that begins with a quote mark."""
        if _closed(line):
            self._settle_quote(_AFTER_QUOTE.sub("", line, count=1)[1:-1].strip(), line)
            return
        last = max(index for index, character in enumerate(line) if character in DOUBLE_QUOTES)
        body, tail = line[1:last].strip(), line[last + 1 :].strip(" \t-\u2013\u2014:.,;")
        if last > 0 and tail:
            if self._cite(self._finder.find(body)):
                self._own += tail + "\n"
            else:
                self._own += line + "\n"
        else:
            self._settle_quote(line.strip(_MARKS + " "), line)

    def _settle_quote(self, body: str, line: str) -> None:
        if not any(character.isalnum() for character in body):
            return
        cited = next((c for c in self._citations if same_words(body, c.quote)), None)
        if cited is not None and same_words(cited.quote, body):
            return  # said twice
        if cited is not None or not _worth_citing(body):
            self._own += line + "\n"  # '"The Hound"' after the evidence that names it is the answer, put in quotes
        elif not self._cite(self._finder.find(body)):
            self._dropped.append(" ".join(body.split()))

    # Outcome ----------------------------------------------------------------------------------------------

    def _cite(self, citation: Citation | None) -> bool:
        if citation is None:
            return False
        if citation not in self._citations:
            self._citations.append(citation)
            self._events.append(Evidence(citation))
        return True

    def _cite_own_words(self, text: str) -> None:
        """Citations for verbatim words of models that quote inside their sentences, or not at all."""
        plain = _MARKER.sub("", text)
        inline = [quote.strip() for quote in _INLINE_QUOTE.findall(plain)]
        for quote in inline:
            if len(quote.split()) >= _FEWEST_WORDS and not self._cite(self._finder.find(quote)):
                self._dropped.append(quote)
        if self._citations:
            return
        for sentence in _SENTENCE_END.split(plain):
            if len(sentence.split()) >= _FEWEST_WORDS:
                self._cite(self._finder.find(sentence.strip(" \t*-")))

    def _answer(self, *, final: bool) -> str:
        """The own words so far, less what the next piece may still change; a longer text only adds to it."""
        own = self._own if final else _PERHAPS_MARKER.sub("", self._own, count=1)
        return re.sub(r"\n{3,}", "\n\n", _MARKER.sub(self._valid_marker, own)).strip()

    def _valid_marker(self, marker: re.Match[str]) -> str:
        numbers = [number for number in re.findall(r"\d+", marker.group(1)) if int(number) in self._numbers]
        lead = marker.group()[: marker.group().index("[")]
        return f"{lead}[{', '.join(numbers)}]" if numbers else ""

    def _tell(self, *, final: bool) -> None:
        answer = self._answer(final=final)
        if len(answer) > self._told:
            self._events.append(AnswerText(answer[self._told :]))
            self._told = len(answer)

    def _take_events(self) -> list[Evidence | AnswerText]:
        events, self._events = self._events, []
        return events


def _kind(line: str) -> _Line:
    lead = _BEFORE_QUOTE.match(line)
    assert lead is not None
    rest = line[lead.end() :]
    if not rest or _PERHAPS_BEFORE_QUOTE.fullmatch(rest):
        return _Line.UNDECIDED
    return _Line.QUOTED if rest[0] in DOUBLE_QUOTES else _Line.OWN


def _closed(line: str) -> bool:
    core = _AFTER_QUOTE.sub("", line, count=1)
    return len(core) > 1 and core[-1] in DOUBLE_QUOTES


def _worth_citing(body: str) -> bool:
    return len(body.split()) > 1 or len(body) >= 8
