"""Answer questions about mails as such: what one person wrote to another, who sent one.

Sender, recipients and date stand in the heading of a mail and not in its sentences, so these questions are not for
models: the heading decides.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer, AnswerEvent, Source
from desk_rag.answering.evidence.quote_matching import QuoteFinder
from desk_rag.answering.questions import summary
from desk_rag.answering.questions.folder.reading.kinds import MAIL_FORMATS
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.questions.one_fact.rewriting import rewritten, source_quoted
from desk_rag.answering.questions.whole_folder import finish, show
from desk_rag.answering.requirements.answer_kinds import AnswerKind, kind_asked
from desk_rag.answering.requirements.correspondence import Correspondents, Header, correspondents, header_of, headers
from desk_rag.answering.requirements.dates import without_dates
from desk_rag.answering.requirements.places import Place, place_of_passage, place_of_source
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.answering.requirements.titles import without_titles
from desk_rag.documents.formats import format_of_name
from desk_rag.documents.status import plural

if TYPE_CHECKING:
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store
    from desk_rag.store.types import Passage

_CONTENT = re.compile(
    r"^\W*what\s+(?:did|has|does|had)\s+.+?\s+(?:writ\w+|say|said|tell|told|send|sent|repl\w+|answer\w*|e?-?mail\w*|report)\b",
    re.I,
)
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
_LIGHT = content_stems(
    "mail mails email emails e letter message messages show list find give display open write wrote written say said"
    " tell told send sent reply replied answer answered report get got receive received come came me all in on of"
    " from to by and between please did what which are there have exist year month"
)
_MOST_MAILS = 100
_FEW_MAILS = 3
"""Mails of which each is quoted when the question asks for what somebody wrote."""
_FEWEST_WORDS = 4
_MOST_SENTENCES = 8


@dataclass(frozen=True, slots=True)
class _Mail:
    passage: Passage
    place: Place
    header: Header

    @property
    def line(self) -> str:
        return self.place.text[self.header.begin : self.header.end]


def answer(store: Store, embedder: EmbedderLike, question: str, under: Sequence[Path]) -> Iterator[AnswerEvent]:
    """Yield the answer to a question for what somebody wrote; nothing for other questions."""
    who = correspondents(question)
    if not (who and _CONTENT.match(question)):
        return
    began = time.perf_counter()
    if content_stems(without_titles(without_dates(question))) - content_stems(who.names) - _LIGHT:
        return
    mails, passages = _mails(store, under)
    chosen = [mail for mail in mails if _meets(mail, who, question)]
    if not chosen:
        return
    files = len({mail.passage.path for mail in mails})
    read = (began, passages, files)
    if len(chosen) > _FEW_MAILS:
        shown = show(store, [Row(mail.passage, mail.line) for mail in chosen[:_MOST_MAILS]])
        more = f" (the first {_MOST_MAILS} are shown)" if len(chosen) > _MOST_MAILS else ""
        text = f"{plural(len(chosen), 'mail')} of {len(mails):,}, by sender, recipients and date{more}."
    else:
        rows = [row for mail in chosen for row in _sentences(store, mail, _MOST_SENTENCES // len(chosen))]
        if not rows:
            return
        shown = show(store, rows)
        text = "\n".join(" ".join(citation.quote.split()) for citation in shown.citations)
    yield from finish(store, question, text, shown, under, read)


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


def _mails(store: Store, under: Sequence[Path]) -> tuple[list[_Mail], int]:
    """All mails below the folders, and the number of passages that were read for them."""
    mails, passages = [], 0
    for row in distinct(indexed(store, under)):
        if format_of_name(row.path.name) not in MAIL_FORMATS:
            continue
        for passage in store.passages_of(row.path):
            passages += 1
            place = place_of_passage(passage)
            mails += [_Mail(passage, place, header) for header in headers(place)]
    return mails, passages


def _meets(mail: _Mail, who: Correspondents, question: str) -> bool:
    """True if the mail is from and to whom the question names, and of its date."""
    begin, end = mail.header.begin, mail.header.end
    of_time = Requirements(question).timed
    return who.are(mail.header) and all(each.fit(mail.place, begin, end) <= Fit.STATED for each in of_time)


def _sentences(store: Store, mail: _Mail, most: int) -> list[Row]:
    """The first sentences of a mail, without heading and greeting."""
    rows = []
    for passage in store.passages_of(mail.passage.path):
        of_mail = [header for header in headers(place_of_passage(passage))]
        if of_mail and mail.header.begin not in [header.begin for header in of_mail]:
            continue
        rows += [
            row for row in summary.sentences_of([passage], _FEWEST_WORDS, own=True) if not row.text.startswith("From: ")
        ]
    return rows[:most]
