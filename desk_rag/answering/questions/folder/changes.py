"""Answer questions about files by the time they were changed or are dated, and by their size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.kinds import Kind
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.questions.folder.reading.records import records_of
from desk_rag.answering.questions.narrowing import indexed
from desk_rag.answering.questions.whole_folder import FolderQuestion, first_line, listed, show
from desk_rag.answering.requirements.dates import Date, in_words
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.status import plural
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

_CHANGED = re.compile(
    r"^(?:what|which\s+(?:files|documents))\s+(?:has\s+|have\s+|was\s+|were\s+|is\s+|are\s+|did\s+(?:I|we)\s+)?"
    r"(?:been\s+)?(?:changed?|new|modif(?:y|ied)|edit(?:ed)?|updated?|added)\b(?P<rest>.*)$",
    re.I,
)
_WRITTEN = re.compile(
    r"^what\s+(?:did|have|has)\s+(?:I|we)\s+(?:write|written|note|noted|do|done|work(?:ed)?\s+on)(?:\s+down)?\b(?P<rest>.*)$",
    re.I,
)
_EXTREME = re.compile(
    r"^(?:what|which)\s+(?:is|are|was|file\s+is|file\s+was)\s+(?:the\s+)?(?P<which>newest|latest|oldest|largest|biggest|smallest"
    r"|most\s+recent|(?:most\s+recently|last)\s+(?:changed|modified|edited))(?:\s+(?:file|document))?(?:\s+here)?$",
    re.I,
)
_MOST, _FIRST = 200, 20
"""Files listed if the question wants all of them, and otherwise."""
_ALL = re.compile(
    r"^(?:(?:list|show|name)\s+(?:me\s+)?)?all\s+(?:the\s+)?(?P<what>files|documents)\s+(?:that|which)\s+", re.I
)
_DEFAULT = "in the last 7 days"


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the files that were changed or are dated in a period, or the newest or largest file."""
    plain = " ".join(question.text.split()).rstrip("?!. ")
    most = _MOST if _ALL.match(plain) else _FIRST
    plain = _ALL.sub(r"which \g<what> ", plain)
    if (match := _EXTREME.match(plain)) and re.search(r"\bfile\b|\bdocument\b", plain, re.I):
        if rows := _rows(question.store, question.under):
            yield from _extreme(question, rows, match["which"].lower())
        return
    changed, written_in = _CHANGED.match(plain), _WRITTEN.match(plain)
    match = changed or written_in
    if match is None:
        return
    rest, period = take_period(match["rest"], question.today)
    if period is None and changed and not content_stems(rest):
        rest, period = take_period(_DEFAULT, question.today)
    if period is None or content_stems(rest):
        return
    if changed and not period.is_relative and not plain.lower().startswith("which"):
        return  # 'What changed in 2019?' asks what the documents say
    rows = _rows(question.store, question.under)
    by_change = [row for row in rows if period.holds(_changed_on(row))]
    dated = {} if changed else _dated(question.store, rows, period)
    if written_in and not (dated or by_change):
        return
    chosen = sorted((row for row in rows if row.path in dated or row in by_change), key=lambda row: -row.stamp.mtime_ns)
    yield from _listed(question, chosen, len(rows), period, None if changed else dated, most)


def _listed(
    question: FolderQuestion, chosen: Sequence[DocumentRow], count: int, period: Period,
    dated: dict[Path, Date] | None, most: int,
) -> Iterator[AnswerEvent]:  # fmt: skip
    """List files; `dated` holds the dates that some have themselves, None if only their last change counts."""
    words = period.words if not period.words[0].isdigit() else f"in {period.words}"
    by_date = dated is not None
    what = "dated or last changed" if by_date else "last changed"
    rows = [first_line(question.store, row) for row in chosen[:most]]
    quotes = [line for lines in rows for line in lines]
    shown, roots = show(question.store, quotes), question.store.volumes.roots()
    citations = iter(shown.citations)
    lines = [
        listed(next(citations) if quote else None, _when(row, dated or {}), row.path, roots)
        for row, quote in zip(chosen, rows, strict=False)
    ]
    head = f"{len(chosen):,} of {plural(count, 'file')} {'was' if len(chosen) == 1 else 'were'} {what} {words}"
    more = ""
    if len(chosen) > most:
        wider = "" if most == _MOST else f" (“All files that changed {period.words}” shows up to {_MOST})"
        more = f"; the newest {most} are shown{wider}"
    known = (
        "By the dates in names, titles and labels, and by when a file was last changed; who wrote it is not known."
        if by_date
        else "By when each file was last changed; what was changed in it, and deleted files, are not known."
    )
    text = "\n".join([f"{head}{more}{':' if chosen else '.'}", *lines, known])
    yield from question.answered(text, shown, len(quotes), count, found=bool(chosen))


def _when(row: DocumentRow, dated: dict[Path, Date]) -> str:
    """'of 3 May 2024', by the file's own date, or 'changed on 4 May 2024'"""
    day = dated.get(row.path)
    return f"changed on {in_words(_changed_on(row))}" if day is None else f"of {in_words(day)}"


def _extreme(question: FolderQuestion, rows: Sequence[DocumentRow], which: str) -> Iterator[AnswerEvent]:
    by_size = which in ("largest", "biggest", "smallest")
    last = which not in ("oldest", "smallest")
    best = (max if last else min)(rows, key=lambda row: row.stamp.size if by_size else row.stamp.mtime_ns)
    fact = f"{best.stamp.size:,} bytes" if by_size else f"changed on {in_words(_changed_on(best))}"
    by = "size" if by_size else "when each file was last changed"
    text = f"{clean_name(best.path.name)}, {fact}\nBy {by}; {plural(len(rows), 'file')} read."
    yield from question.answered(text, first_line(question.store, best), 1, len(rows))


def _rows(store: Store, under: Sequence[Path]) -> list[DocumentRow]:
    return list({row.path: row for row in indexed(store, under)}.values())


def _dated(store: Store, rows: Sequence[DocumentRow], period: Period) -> dict[Path, Date]:
    """The date of each file whose own one, or that of one of its mails, lies in the period."""
    kind = Kind("file", "files")
    records = (record for row in rows for record in records_of(kind, row, tuple(store.passages_of(row.path))))
    return {record.path: record.date for record in records if record.date and period.holds(record.date)}


def _changed_on(row: DocumentRow) -> Date:
    day = datetime.fromtimestamp(row.stamp.mtime_ns / 1e9, UTC).astimezone()
    return Date(day.year, day.month, day.day)

