"""Answer questions about one file as a whole: its length, its rows, the names in it, when it was changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.fields import cells_of
from desk_rag.answering.questions.folder.reading.naming import things_named
from desk_rag.answering.questions.folder.reading.overview import names_in
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import indexed
from desk_rag.answering.questions.whole_folder import FolderQuestion, first_line
from desk_rag.answering.requirements.dates import Date, in_words
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.formats import Format, format_of_name
from desk_rag.documents.sentences import quotable
from desk_rag.documents.status import plural
from desk_rag.ingest import unread
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow, Passage

_UNITS = r"(?P<unit>pages?|words?|lines?|slides?)"
_LENGTH = (
    re.compile(rf"^how\s+many\s+{_UNITS}\s+(?:has|have|does|do|are\s+(?:there\s+)?in|is\s+in|in|long\s+is)\s+(?P<file>.+?)"
               r"(?:\s+(?:have|contain|has))?$", re.I),
    re.compile(r"^how\s+long\s+is\s+(?P<file>.+)$", re.I),
)  # fmt: skip
_PEOPLE = re.compile(
    r"^(?:who|which\s+(?:people|persons|names|companies)|what\s+names)\s+(?:is|are|was|were)\s+(?:mentioned|named|listed)\s+in\s+"
    r"(?P<file>.+)$",
    re.I,
)
_CHANGED = re.compile(
    r"^when\s+(?:was|did\s+I)\s+(?P<file>.+?)\s+(?:last\s+)?(?:changed?|modified|modify|edit(?:ed)?|updated?)(?:\s+last)?$",
    re.I,
)
_ROWS = re.compile(
    r"^how\s+many\s+(?P<noun>[\w-]+)(?:\s+(?P<which>.+?))??\s+(?:(?:are\s+(?:there\s+)?|do\s+I\s+have\s+|stand\s+)?in|has|have|does|do)\s+"
    r"(?P<file>.+?)(?:\s+(?:have|contain|hold))?$",
    re.I,
)
_OF_THE_ONE = re.compile(
    r"^(?P<what>how\s+many\s+[\w-]+(?:\s+[\w-]+)*?)(?:\s+(?:are|is|has|have|does|do))?(?:\s+(?:there|it|the\s+(?:file|table)))*"
    r"(?:\s+have)?(?:\s+(?:in|here)(?:\s+(?:it|the\s+(?:file|table)))?)?$",
    re.I,
)
"""'How many rows are there?' below a single file."""
_HOW_MANY = re.compile(
    r"^how\s+many\s+(?P<kind>[\w-]+(?:\s+files?)?)(?:\s+(?:are\s+there|do\s+(?:I|we)\s+have))?(?:\s+here)?$", re.I
)
_TABLES = frozenset({Format.TABLE, Format.SHEETS})
_ENTRIES = {
    Format.CONTACTS: content_stems("contacts people persons addresses cards names"),
    Format.CALENDAR: content_stems("appointments events dates meetings"),
}
"""Formats made of entries, with the words for these."""
_ROW_WORDS = content_stems("row rows entry entries line lines record records item items")
_MOST_ROWS = 50


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the answer to a question about one file as a whole; nothing if the question names no single file."""
    store, under = question.store, question.under
    plain = _with_the_one(" ".join(question.text.split()).rstrip("?! ").removesuffix("."), store, under)
    for pattern in _LENGTH:
        if (match := pattern.match(plain)) and (row := _file(store, match["file"], under)) is not None:
            is_whole_name = " " in row.path.stem and "unit" in match.groupdict()
            if not is_whole_name and not _is_explicit(match["file"], row):
                return
            text = _length(row, store.passages_of(row.path), match.groupdict().get("unit") or "")
            yield from question.answered(text, first_line(question.store, row), row.num_chunks, 1)
            return
    if (match := _HOW_MANY.match(plain)) and (kind := unread.counted_kind(match["kind"], store, under)) is not None:
        name, count = kind
        verb = "is" if count == 1 else "are"
        text = f"{count:,} {name}, which {verb} not read: only the {'name is' if count == 1 else 'names are'} known."
        yield from question.answered(text, [], 0, 0)
    elif (match := _PEOPLE.match(plain)) and (row := _file(store, match["file"], under)) is not None:
        yield from _people(question, row)
    elif (
        (match := _CHANGED.match(plain))
        and (row := _file(store, match["file"], under)) is not None
        and _is_explicit(match["file"], row)
    ):
        day = datetime.fromtimestamp(row.stamp.mtime_ns / 1e9, UTC).astimezone()
        when = f"{in_words(Date(day.year, day.month, day.day))}, {day:%H:%M}"
        text = f"{when}: that is when {clean_name(row.path.name)} was last changed."
        yield from question.answered(text, first_line(store, row), 1, 1)
    elif (match := _ROWS.match(plain)) and (row := _file(store, match["file"], under)) is not None:
        yield from _rows(question, row, match["noun"], match["which"] or "")


def _with_the_one(plain: str, store: Store, under: Sequence[Path]) -> str:
    """A question about the number of something with the name of the file, if it is limited to a single one."""
    match = _OF_THE_ONE.match(plain) if len(under) == 1 else None
    if match is None or [row.path for row in indexed(store, under)] != list(under):
        return plain
    return f"{match['what']} are in {under[0].name}"


def _file(store: Store, name: str, under: Sequence[Path]) -> DocumentRow | None:
    """The one file with this name; None for a word that only stands in a longer name."""
    named = things_named(indexed(store, under), name, under)
    return (
        named.documents[0]
        if len(named.documents) == 1 and not named.folder and _is_name(name, named.documents[0])
        else None
    )


def _is_name(name: str, row: DocumentRow) -> bool:
    """True if the words are most of the file's name, or have its ending."""
    plain = name.strip("\"'“”@ ").casefold()
    return _has_ending(plain, row) or row.path.stem.casefold() in plain


def _is_explicit(name: str, row: DocumentRow) -> bool:
    """True if the words can only mean a file: 'how long is the lease' asks for something else than 'lease.md'."""
    return _has_ending(name.strip("\"'“”@ ").casefold(), row) or bool(
        re.search(r"[\"“]|\b(?:file|document)\b", name, re.I)
    )


def _has_ending(plain: str, row: DocumentRow) -> bool:
    return bool(row.path.suffix) and plain.endswith(row.path.suffix.casefold())


def _length(row: DocumentRow, passages: Sequence[Passage], unit: str) -> str:
    pages = max((one.chunk.location.page_end or one.chunk.location.page_start or 0 for one in passages), default=0)
    lines = max((one.chunk.location.line_end or 0 for one in passages), default=0)
    words = sum(len(one.chunk.text.split()) for one in passages)
    units = passages[0].chunk.location.units if passages else None
    name = clean_name(row.path.name)
    facts = [plural(pages, units.page if units is not None and units.page != "p." else "page")] if pages else []
    facts += [plural(lines, "line")] if lines else []
    facts.append(f"about {plural(words, 'word')}")
    no_pages = (
        f"{name} is not divided into pages; it has "
        if unit.lower().startswith("page") and not pages
        else f"{name} has "
    )
    return f"{no_pages}{', '.join(facts)}."


def _people(question: FolderQuestion, row: DocumentRow) -> Iterator[AnswerEvent]:
    """Yield the names in a file, each with the first line that has it."""
    passages = question.store.passages_of(row.path)
    rows: dict[str, Row] = {}
    for passage in passages:
        for name in names_in(passage.chunk.text):
            unit = next((unit for unit in quotable(passage.chunk.text) if name in unit), None)
            if unit is not None:
                rows.setdefault(name, Row(passage, unit))
    if not rows:
        return
    note = (
        "Names are told by their capitals: places and companies may be among them, and single first names are missing."
    )
    distinct = list({one.text: one for one in rows.values()}.values())
    text = f"{', '.join(rows)}\n{note}"
    yield from question.answered(text, distinct, len(passages), 1)


def _rows(question: FolderQuestion, row: DocumentRow, noun: str, which: str) -> Iterator[AnswerEvent]:
    """Yield the number of rows of a table, all or those with the words of the question."""
    stems = content_stems(noun)
    form = format_of_name(row.path.name)
    if form in _ENTRIES and not which and stems & (_ENTRIES[form] | _ROW_WORDS):
        places = (one.chunk.location for one in question.store.passages_of(row.path))
        last = max((place.page_end or place.page_start or 0 for place in places), default=0)
        if last:
            text = f"{last:,} (counted: entries of {clean_name(row.path.name)})"
            yield from question.answered(text, first_line(question.store, row), row.num_chunks, 1)
        return
    if format_of_name(row.path.name) not in _TABLES or not stems & (content_stems(row.path.stem) | _ROW_WORDS):
        return
    passages = question.store.passages_of(row.path)
    lines = [Row(passage, line) for passage in passages for line in passage.chunk.text.split("\n")
             if (cells := cells_of(line)) and all(key for key, _ in cells)]  # fmt: skip
    wanted = content_stems(which)
    chosen = [line for line in lines if wanted <= content_stems(line.text)]
    if not chosen:
        return
    with_words = f" with “{which}”, of {len(lines):,}" if wanted else ""
    text = f"{len(chosen):,} (counted: rows of {clean_name(row.path.name)}{with_words})"
    yield from question.answered(text, chosen[:_MOST_ROWS], len(passages), 1)

