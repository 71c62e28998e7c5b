"""Name the sender or the recipients of a quoted mail by its heading, which its sentences seldom repeat."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from desk_rag.answering.events import Answer, AnswerEvent, Source
from desk_rag.answering.evidence.quote_matching import QuoteFinder
from desk_rag.answering.questions.one_fact.rewriting import rewritten, source_quoted
from desk_rag.answering.requirements.answer_kinds import AnswerKind, kind_asked
from desk_rag.answering.requirements.correspondence import Header, header_of
from desk_rag.answering.requirements.places import place_of_source
from desk_rag.answering.requirements.stems import content_stems

_WHO_SENT = re.compile(
    r"^\W*who\s+(?:(?:has|had)\s+)?(?:sent|wrote|written|mailed|e-?mailed|told|asked|replied|answered|announced|promised)\b"
    r"|^\W*(?:from\s+whom|whose)\s+.*\bmails?\b|^\W*who\s+(?:is|was)\s+the\s+(?:sender|author)\b",
    re.I,
)
_TO_WHOM = re.compile(
    r"^\W*(?:to\s+whom|who(?:m)?\s+did\s+.+\s+(?:write|mail|send)\b|who\s+(?:received|got)\s+(?:the|an?)\s+(?:e-?)?mail\b)"
    r"|^\W*who\s+was\s+.*\bmails?\s+(?:sent|written)\s+to\b",
    re.I,
)
_FIRST_PERSON = re.compile(r"(?:(?:you|they)\s+(?:have|had|got)\s+)?(?:I|me|my|myself|mine|we|us|our)", re.I)
_WHO_ASKED = re.compile(r"^\W*who\s+(?:(?:has|had)\s+)?(told|asked|replied|answered|announced|promised)\b", re.I)
_OWN_WORDS = re.compile(r"\b(?:I|me|my|we|us|our)\b", re.I)


def name_correspondent(events: Iterator[AnswerEvent], question: str) -> Iterator[AnswerEvent]:
    """Pass on an answer; if the question asks who sent or received a mail, name them from the quoted mail's heading."""
    asks_recipient = bool(_TO_WHOM.match(question))
    if asks_recipient or _WHO_SENT.match(question):
        events = rewritten(events, partial(_with_correspondent, question, asks_recipient))
    yield from events


def _with_correspondent(question: str, asks_recipient: bool, done: Answer) -> Answer | None:
    """The answer with the sender or recipients by the heading of the quoted mail; None where no heading says."""
    citation = done.citations[0] if done.found and len(done.citations) == 1 else None
    source = source_quoted(done)
    if citation is None or source is None or _tells_of_other(question, citation.quote):
        return None
    header = _heading_above(source, citation.quote)
    if header is None:
        return None
    line = QuoteFinder([source]).find(source.text[header.begin : header.end])
    citations = (citation,) if line is None or line == citation else (citation, line)
    return replace(done, text=header.recipients if asks_recipient else header.sender, citations=citations)


def _heading_above(source: Source, quote: str) -> Header | None:
    """The heading of the mail that the quote is from; None if the passage does not hold it."""
    place = place_of_source(source)
    header = header_of(place, max(0, place.text.find(quote)))
    return header if header is not None and header.begin >= 0 else None


def _tells_of_other(question: str, quote: str) -> bool:
    """True if a sentence of a mail tells itself who asked or told, and it was not its writer."""
    verb = content_stems(" ".join(_WHO_ASKED.findall(question)))
    return bool(verb & content_stems(quote)) and _OWN_WORDS.search(quote) is None


def name_first_person(events: Iterator[AnswerEvent], question: str) -> Iterator[AnswerEvent]:
    """Pass on an answer; where it names a person as 'I' or 'my', name the sender of the quoted mail by its heading."""
    yield from rewritten(events, _with_sender) if kind_asked(question) is AnswerKind.NAME else events


def _with_sender(done: Answer) -> Answer | None:
    """The answer with the sender in place of 'I'; None for other answers, and where no heading names the sender."""
    if not done.found or len(done.citations) != 1 or not _FIRST_PERSON.fullmatch(done.text.strip(" .")):
        return None
    source = source_quoted(done)
    header = _heading_above(source, done.citations[0].quote) if source is not None else None
    line = QuoteFinder([source]).find(source.text[header.begin : header.end]) if source and header else None
    if header is None or line is None:
        return None
    notice = f"“{done.text.strip(' .')}” is read as {header.sender}, who wrote it"
    return replace(done, text=header.sender, citations=(*done.citations, line), notices=(*done.notices, notice))
