"""Say of which day documents are that disagree, which of them is the newest, and whether the newest is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Citation, Source
from desk_rag.answering.questions.folder.reading.kinds import Kind
from desk_rag.answering.questions.folder.reading.own_dates import refers_to
from desk_rag.answering.questions.folder.reading.records import records_of
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.requirements.dates import Date, dates, in_words
from desk_rag.answering.requirements.stems import PAST_FORMS
from desk_rag.documents.formats import Format, format_of_name
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.documents.location import Location
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow, Passage

_ASKS_NOW = re.compile(
    r"\b(?:now|nowadays|current(?:ly)?|today|latest|newest|at\s+present|at\s+the\s+moment|these\s+days)\b", re.I
)
_ASKS_AT_LAST = re.compile(r"\bin\s+the\s+end\b|\b(?:finally|eventually|ultimately|actually)\b", re.I)
_ASKS_IN_PRESENT = re.compile(
    r"^(?:up\s+to\s+)?(?:(?:at|by|in|on|from|to|for|with|of|since|until)\s+)?(?:who|what|which|where|when|how)\b"
    r"(?:(?!\b(?:was|were|did|had)\b).)*?"
    r"\b(?:am|is|are|do|does|has|have|can|may|must)\b(?!.*\b(?:was|were|did|had)\b)"
    r"|^(?:am|is|are|do|does|has|have|can|may|must)\b(?!.*\b(?:was|were|did|had)\b)",
    re.I,
)
_WITHOUT_AUXILIARY = re.compile(
    r"\s*(?:who|what|which|whose)\b(?!.*\b(?:am|is|are|was|were|do|does|did|ha[sd]|have|can|could|may|might|must|will|would|should)\b)",
    re.I,
)
_ENDS_IN_ED = re.compile(r"[a-z]{2,}(?<!e)ed")
_ASKS_THEN = re.compile(
    r"\b(?:when|before|until)\s+(?:I|we|you|he|she|they)\b|\b(?:at\s+(?:first|the\s+(?:beginning|start)|that\s+time)|back\s+then"
    r"|original(?:ly)?|initial(?:ly)?|former(?:ly)?|previous(?:ly)?|used\s+to)\b",
    re.I,
)
_ASKS_BEFORE = re.compile(r"(?<!^)\b(?:(?P<before>before)|until|till|up\s+to)\s+(?P<year>(?:19|20)\d\d)\b", re.I)
_ASKS_BACK = re.compile(
    r"(?<!^)\bbefore\s+(?:it|that|they|the\s+(?:amendment|addendum|change|increase|rise|raise|correction|move))\b"
    r"|\b(?:the|our|my|his|her|their)\s+(?:old|former|previous|earlier)\b|\bused\s+to\b",
    re.I,
)
"""A question for what held before something that it does not date: 'before the amendment', 'the old password'."""
_SAYS_BACK = re.compile(r"\b(?:before|old|former|previous|earlier|until|used\s+to|so\s+far|formerly|instead)\b", re.I)
_ANY = Kind("file", "files")
_MOST_DAYS = 512
_days: dict[DocumentRow, tuple[Date | None]] = {}
"""The dates of documents as they were when they were read."""


@dataclass(frozen=True, slots=True)
class Writing:
    """A document, or one mail of a mailbox: what has a day of its own."""

    path: Path
    mail: str = ""
    """The heading of the mail, which holds its day; empty for a whole document."""


def writing_of(quoted: Citation | Source) -> Writing:
    """Return the document or mail that a quote or a source of an answer comes from."""
    return _writing(quoted.path, quoted.location)


def writing_of_passage(passage: Passage) -> Writing:
    """Return the document or mail that a passage comes from."""
    return _writing(passage.path, passage.chunk.location)


def _writing(path: Path, location: Location) -> Writing:
    return Writing(path, location.heading if format_of_name(path.name) is Format.MAILBOX else "")


def asks_now(question: str) -> bool:
    """True if a question asks for what holds now in so many words."""
    return _ASKS_NOW.search(question) is not None


def asks_at_last(question: str) -> bool:
    """True if a question asks for what came of a plan: 'What did it cost in the end?'"""
    return _ASKS_AT_LAST.search(question) is not None


def asks_in_present(question: str) -> bool:
    """True if a question asks for what holds, and so for what the newest of documents that disagree says."""
    return (
        asks_now(question)
        or asks_at_last(question)
        or ((_ASKS_IN_PRESENT.search(question) is not None or _has_present_verb(question)) and not asks_then(question))
    )


def _has_present_verb(question: str) -> bool:
    """True for 'Who runs the stall?', which has neither an auxiliary verb nor a form of the past."""
    words = re.findall(r"[a-z]+", question)
    is_past = any(word in PAST_FORMS or _ENDS_IN_ED.fullmatch(word) for word in words)
    return _WITHOUT_AUXILIARY.match(question) is not None and not is_past


def asks_then(question: str) -> bool:
    """True if a question asks for the value of another time, which no document says in these words."""
    return _ASKS_THEN.search(question) is not None


def newest_first(store: Store, rows: Sequence[Row]) -> list[Row]:
    """Sort rows by the dates of their documents or mails; those without one come last."""
    days = days_of(store, map(writing_of_passage, (row.passage for row in rows)))
    dated = {one: (day.year, day.month, day.day) if day is not None else (0, 0, 0) for one, day in days.items()}
    return sorted(rows, key=lambda row: dated[writing_of_passage(row.passage)], reverse=True)


def day_of(store: Store, writing: Writing) -> Date | None:
    """The date of a document or mail, as far as it says one."""
    if days := dates(writing.mail):
        return days[0]
    row = store.document(writing.path)
    if row is None:
        return None
    known = _days.get(row)
    if known is None:  # an answer asks some ten times for the days of a few documents
        records = records_of(_ANY, row, tuple(store.passages_of(writing.path)))
        known = (next((record.date for record in records), None),)
        if len(_days) >= _MOST_DAYS:
            _days.clear()
        _days[row] = known
    return known[0]


def days_of(store: Store, writings: Iterable[Writing]) -> dict[Writing, Date | None]:
    """The dates of documents and mails."""
    return {writing: day_of(store, writing) for writing in writings}


def is_newer(store: Store, one: Writing, quoted: Writing, question: str) -> bool:
    """True if a question asks for what holds now, and a document is dated later than the quoted one."""
    return asks_in_present(question) and newest(days_of(store, (one, quoted))) == one


def is_too_late(store: Store, question: str, quoted: Citation, sources: Sequence[Source]) -> str:
    """A sentence about the day of a document, where the question asks for what held before; else ''."""
    if _ASKS_BACK.search(question) and not _SAYS_BACK.search(quoted.quote):
        days = days_of(store, {writing_of(quoted), *map(writing_of, sources)})
        dated = {one: (day.year, day.month, day.day) for one, day in days.items() if day is not None}
        if min(dated, key=lambda one: dated[one], default=None) != writing_of(quoted):
            return "The question asks for what was before, and the quote may be of a later time"
    asked, writing = _ASKS_BEFORE.search(question), writing_of(quoted)
    day = day_of(store, writing) if asked is not None and "when" not in question.lower().split() else None
    if asked is None or day is None or any(one.year < int(asked["year"]) for one in dates(quoted.quote) if one.year):
        return ""
    if day.year < int(asked["year"]) + (not asked["before"]):
        return ""
    return f"The question asks for the time {asked[0]}, and the quote is of {in_words(day)}"


def amends_document(store: Store, text: str, quoted: Writing) -> bool:
    """True if a text names the quoted document by its day, and so need not repeat what that is about."""
    day = day_of(store, quoted)
    return day is not None and refers_to(text, day)


def dated_name(path: Path, day: Date | None) -> str:
    """A file's name with the day of its document."""
    return f"{clean_name(path.name)} of {in_words(day)}" if day is not None else clean_name(path.name)


def said_by(store: Store, quoted: Citation, others: Sequence[Citation]) -> str:
    """A sentence part that says which documents say something else, of which day, and which is the newest."""
    days = days_of(store, map(writing_of, (quoted, *others)))
    names = ", ".join(dated_name(citation.path, days[writing_of(citation)]) for citation in others)
    numbers = ", ".join(f"[{citation.source_number}]" for citation in others)
    notice = f"{names} {'says' if len(others) == 1 else 'say'} something else, see {numbers}"
    latest = newest(days)
    if latest is None:
        return notice
    if len(others) > 1:
        return f"{notice}; the newest is {dated_name(latest.path, days[latest])}"
    age = "older" if latest == writing_of(quoted) else "newer"
    return f"{notice}, and is {age} than {dated_name(quoted.path, days[writing_of(quoted)])}"


def newest(days: Mapping[Writing, Date | None]) -> Writing | None:
    """Return the document or mail with the latest date; None unless all are dated and one is surely the latest."""
    known = {one: (day.year, day.month, day.day) for one, day in days.items() if day is not None and day.year}
    if len(known) < len(days):
        return None
    last, latest = max(known.items(), key=lambda item: item[1])
    for one, day in known.items():
        of_same_length = [(mine, other) for mine, other in zip(day, latest, strict=True) if mine and other]
        if one != last and all(mine == other for mine, other in of_same_length):
            return None
    return last
