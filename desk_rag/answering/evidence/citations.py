"""Parse an answer while it streams: evidence lines become citations, the rest is the answer.

The expected form is '"{evidence sentence}"' on lines of their own, then the short answer. For models that do not follow
it, words of theirs that a source contains verbatim become citations once the answer is complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from desk_rag.answering.events import AnswerText, CheckedSentence, Citation, Evidence, Source
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
_MIN_WORDS = 4
"""Minimum words of unquoted text to be searched in the sources: fewer occur anywhere by chance."""
_MAX_LINES = 12
"""Maximum lines of one quote; one that stays open longer was never closed."""


class _Line(Enum):
    UNDECIDED = "may still begin with a quotation mark"
    QUOTED = "begins with a quotation mark; emitted once it is complete"
    OWN = "the answer's own words; emitted as they come"


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """Result of parsing the whole text of an answer."""

    text: str
    """The answer's own words; without any, the evidence, or the sentence that there is no answer. For a stopped answer
    the own words so far, perhaps none."""
    found: bool
    """False if the model said that the documents do not contain the answer, or wrote nothing that can be shown."""
    citations: tuple[Citation, ...]
    dropped_quotes: tuple[str, ...]
    """Quotes that no source contains."""
    events: tuple[Evidence | AnswerText, ...]
    """Events that `feed` has not returned yet."""
    sentences: tuple[CheckedSentence, ...] = ()
    reasoning: str = ""
    notices: tuple[str, ...] = ()
    """As in `Answer`; empty for models that quote."""


class AnswerParser:
    """Parses one answer in pieces; the result does not depend on where they are cut.

    All AnswerText, joined, is `ParsedAnswer.text`; all Evidence, in order, is `ParsedAnswer.citations`.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._finder = QuoteFinder(sources)
        self._numbers = frozenset(source.number for source in sources)
        self._line = ""
        self._kind = _Line.UNDECIDED
        self._open: list[str] = []
        """Lines of a quote that has begun and not ended; a source contains all of them so far."""
        self._own = ""
        self._emitted_length = 0
        self._citations: list[Citation] = []
        self._dropped: list[str] = []
        self._events: list[Evidence | AnswerText] = []
        self._finished = False

    def feed(self, piece: str) -> list[Evidence | AnswerText]:
        """Take the next piece of text; return the events that became certain."""
        assert not self._finished, "feed after finish"
        *complete, rest = piece.replace("\r", "").split("\n")
        for part in complete:
            self._extend(part)
            self._end_line()
        self._extend(rest)
        self._emit(final=False)
        return self._take_events()

    def finish(self, *, stopped: bool = False) -> ParsedAnswer:
        """Close the text; return the result with the remaining events.

        With `stopped` the user ended the answer before the model did: unfinished parts are dropped, the text may be
        empty, and missing text does not count as a refusal.
        """
        assert not self._finished, "finish twice"
        self._finished = True
        if stopped:
            self._drop_unfinished()
        else:
            self._end_line()
        while self._open:
            self._resolve_open()
        self._emit(final=not stopped)
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
        """Quotes so far that no source contains."""
        return tuple(self._dropped)

    # Lines ------------------------------------------------------------------------------------------------

    def _extend(self, part: str) -> None:
        self._line += part
        if self._open:
            return  # whether this line continues the quote is known once it is complete
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

    def _drop_unfinished(self) -> None:
        """Keep of the last line what no later text could change: own words, and a closed quote.

        A quote that is only open because of an odd number of marks counts as closed: more text would not change its
        words.
        """
        line, kind, open_lines = self._line, self._kind, self._open
        self._line, self._kind, self._open = "", _Line.UNDECIDED, []
        if open_lines and _closed(open_lines[0]):
            self._settle(open_lines[0])
        quote = _AFTER_QUOTE.sub("", _BEFORE_QUOTE.sub("", line, count=1), count=1)
        if kind is _Line.QUOTED and not open_lines and _closed(quote) and _worth_citing(quote[1:-1]):
            self._cite(self._finder.find(quote))

    def _begin_quote(self, line: str) -> None:
        # Not closed, or an odd number of marks: the quote may continue on the next line, or a mark is missing.
        unbalanced = sum(character in DOUBLE_QUOTES for character in line) % 2 == 1
        if (unbalanced or not _closed(line)) and self._finder.find(line):
            self._open = [line]
        else:
            self._settle(line)

    def _continue_quote(self, line: str) -> None:
        joined = "\n".join([*self._open, line.rstrip()])
        continues = bool(line.strip()) and len(self._open) < _MAX_LINES and self._finder.find(joined) is not None
        if continues and joined[-1] in DOUBLE_QUOTES:
            self._open = []
            self._settle(joined)
        elif continues:
            self._open.append(line.rstrip())
        else:
            self._open.append(line)
            self._resolve_open()

    def _resolve_open(self) -> None:
        """Take the first line of a quote that was never closed as the quote; parse the others again."""
        quote_line, *other_lines = self._open
        self._open = []
        self._settle(quote_line)
        for line in other_lines:
            self._extend(line)
            self._end_line()

    def _settle(self, line: str) -> None:
        """Take lines that begin with a quotation mark as a citation or as the answer's own words."""
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
            return  # the same quote again
        if cited is not None or not _worth_citing(body):
            self._own += line + "\n"  # '"The Hound"' after the evidence that names it is the answer in quotation marks
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
        """Cite verbatim words of models that quote inside their sentences, or not at all."""
        plain = _MARKER.sub("", text)
        inline = [quote.strip() for quote in _INLINE_QUOTE.findall(plain)]
        for quote in inline:
            if len(quote.split()) >= _MIN_WORDS and not self._cite(self._finder.find(quote)):
                self._dropped.append(quote)
        if self._citations:
            return
        for sentence in _SENTENCE_END.split(plain):
            if len(sentence.split()) >= _MIN_WORDS:
                self._cite(self._finder.find(sentence.strip(" \t*-")))

    def _answer(self, *, final: bool) -> str:
        """The own words so far, without what the next piece may still change.

        Later results only extend it.
        """
        own = self._own if final else _PERHAPS_MARKER.sub("", self._own, count=1)
        return re.sub(r"\n{3,}", "\n\n", _MARKER.sub(self._valid_marker, own)).strip()

    def _valid_marker(self, marker: re.Match[str]) -> str:
        valid_numbers = [number for number in re.findall(r"\d+", marker.group(1)) if int(number) in self._numbers]
        lead = marker.group()[: marker.group().index("[")]
        return f"{lead}[{', '.join(valid_numbers)}]" if valid_numbers else ""

    def _emit(self, *, final: bool) -> None:
        answer = self._answer(final=final)
        if len(answer) > self._emitted_length:
            self._events.append(AnswerText(answer[self._emitted_length :]))
            self._emitted_length = len(answer)

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
