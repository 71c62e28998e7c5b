"""Say of which day documents are that disagree, which of them is the newest, and whether the newest is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Citation
from desk_rag.answering.questions.folder.reading.kinds import Kind
from desk_rag.answering.questions.folder.reading.own_dates import refers_to
from desk_rag.answering.questions.folder.reading.records import records_of
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.requirements.dates import Date, in_words
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.store.store import Store

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
_ASKS_THEN = re.compile(
    r"\b(?:when|before|until)\s+(?:I|we|you|he|she|they)\b|\b(?:at\s+(?:first|the\s+(?:beginning|start)|that\s+time)|back\s+then"
    r"|original(?:ly)?|initial(?:ly)?|former(?:ly)?|previous(?:ly)?|used\s+to)\b",
    re.I,
)
_ANY = Kind("file", "files")


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
        or (_ASKS_IN_PRESENT.search(question) is not None and not asks_then(question))
    )


def asks_then(question: str) -> bool:
    """True if a question asks for the value of another time, which no document says in these words."""
    return _ASKS_THEN.search(question) is not None


def newest_first(store: Store, rows: Sequence[Row]) -> list[Row]:
    """Sort rows by the dates of their documents; those without one come last."""
    days = {row.passage.path: day_of(store, row.passage.path) for row in rows}
    dated = {path: (day.year, day.month, day.day) if day is not None else (0, 0, 0) for path, day in days.items()}
    return sorted(rows, key=lambda row: dated[row.passage.path], reverse=True)


def day_of(store: Store, path: Path) -> Date | None:
    """The date of a document, as far as it says one."""
    row = store.document(path)
    records = records_of(_ANY, row, tuple(store.passages_of(path))) if row is not None else iter(())
    return next((record.date for record in records), None)


def is_newer(store: Store, path: Path, quoted: Path, question: str) -> bool:
    """True if a question asks for what holds now, and a document is dated later than the quoted one."""
    return asks_in_present(question) and newest({one: day_of(store, one) for one in (path, quoted)}) == path


def amends_document(store: Store, text: str, quoted: Path) -> bool:
    """True if a text names the quoted document by its day, and so need not repeat what that is about."""
    day = day_of(store, quoted)
    return day is not None and refers_to(text, day)


def dated_name(path: Path, day: Date | None) -> str:
    """A file's name with the day of its document."""
    return f"{clean_name(path.name)} of {in_words(day)}" if day is not None else clean_name(path.name)


def said_by(store: Store, quoted: Citation, others: Sequence[Citation]) -> str:
    """A sentence part that says which documents say something else, of which day, and which is the newest."""
    days = {citation.path: day_of(store, citation.path) for citation in (quoted, *others)}
    names = ", ".join(dated_name(citation.path, days[citation.path]) for citation in others)
    numbers = ", ".join(f"[{citation.source_number}]" for citation in others)
    notice = f"{names} {'says' if len(others) == 1 else 'say'} something else, see {numbers}"
    latest = newest(days)
    if latest is None:
        return notice
    if len(others) > 1:
        return f"{notice}; the newest is {dated_name(latest, days[latest])}"
    age = "older" if latest == quoted.path else "newer"
    return f"{notice}, and is {age} than {dated_name(quoted.path, days[quoted.path])}"


def newest(days: Mapping[Path, Date | None]) -> Path | None:
    """The document with the latest date; None unless all say theirs, and one is surely later than the others."""
    known = {path: (day.year, day.month, day.day) for path, day in days.items() if day is not None and day.year}
    if len(known) < len(days):
        return None
    path_of_latest, latest = max(known.items(), key=lambda item: item[1])
    for path, day in known.items():
        of_same_length = [(mine, other) for mine, other in zip(day, latest, strict=True) if mine and other]
        if path != path_of_latest and all(mine == other for mine, other in of_same_length):
            return None
    return path_of_latest
