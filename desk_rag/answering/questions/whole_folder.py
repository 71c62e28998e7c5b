"""Answer questions about the whole folder: every line that matches is shown with its place, counted or added up.

Matching goes by words (`matching`), so that it is exact, fast and the same each time. Whatever is computed says so.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.context import SourceFiles, answer_without_sources, source_of
from desk_rag.answering.events import (
    AnswerEvent,
    AnswerText,
    Basis,
    Citation,
    Evidence,
    Finished,
    FirstToken,
    Retrieved,
    Source,
    Stage,
    Timings,
)
from desk_rag.answering.evidence.citation_check import CitationCheck
from desk_rag.answering.evidence.quote_matching import QuoteFinder
from desk_rag.answering.questions.conditions import Condition, YesNo, conditions, needed
from desk_rag.answering.questions.disagreement.newest import days_of, writing_of_passage
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.questions.folder.reading.records import is_in
from desk_rag.answering.questions.forms import Form, WholeFolderQuestion
from desk_rag.answering.questions.matching import Matches, Row, match, stands_for_files
from desk_rag.answering.questions.narrowing import also_as, some_of
from desk_rag.answering.requirements import amounts
from desk_rag.answering.requirements.dates import A_YEAR
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import quotable
from desk_rag.documents.status import plural
from desk_rag.ingest.unread import UnreadFiles
from desk_rag.sanitize import clean_name, shown_path

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

_PAID = re.compile(r"\b(?:pay|paid|spend|spent)\b", re.I)
_MOST_ROWS = 200
"""Rows that are shown; more are counted."""
_MOST_NEAR = 5
"""Files with similar names that are named."""
_COUNTED = frozenset({"errors", "warnings", "entries", "lines", "rows", "records", "messages", "mentions", "times"})
"""Things that can be counted line by line in any folder."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The rows that are shown, as sources and citations."""

    sources: tuple[Source, ...]
    citations: tuple[Citation, ...]


def answer(store: Store, question: str, request: WholeFolderQuestion, under: Sequence[Path]) -> Iterator[AnswerEvent]:
    """Yield progress and the answer; nothing after the progress if there is nothing to show, count or add up."""
    began = time.perf_counter()
    plain, asked_conditions = conditions(request.subject)
    decided: list[str] = []
    matches: Matches | None = None
    if asked_conditions and request.form is not Form.FILES:
        matches = yield from match(store, plain, under, whole_tables=True)
        decided = _decide(matches, asked_conditions)
    if not decided and request.needs_condition:
        return
    if not decided:
        if request.form is Form.COUNT and not _countable(store, request.subject, under):
            return
        period = _period_of(question) if request.form is Form.TOTAL else None
        matches = yield from _matches_in_period(store, request.subject, under, period)
    assert matches is not None
    disregarded = [] if decided else [condition.asked for condition in asked_conditions if needed(condition)]
    if disregarded and not matches.rows:
        matches = yield from match(store, plain, under)
    rows, left_out = matches.rows, ""
    if request.form is Form.FILES:
        rows = list({row.passage.path: row for row in reversed(rows)}.values())[::-1]
    if request.form in (Form.TOTAL, Form.COUNT):
        is_total = request.form is Form.TOTAL
        rows, left_out = _to_add_up(rows, question) if is_total else _of_named_tables(rows, request.subject)
    fewest = 2 if request.form is Form.TOTAL else 1
    if len(rows) < fewest:
        return
    shown = show(store, rows[:_MOST_ROWS])
    text = _text(question, request, rows, _Regard(decided, disregarded)) + left_out
    text = _with_near(text, matches, {row.passage.path for row in rows})
    if request.form is Form.FILES:
        text = "\n".join([text, *_copies(store, rows[:_MOST_ROWS], matches)])
    read = (began, matches.passages, matches.files)
    doubtful = bool(disregarded) or (matches.only_near and request.form in (Form.COUNT, Form.TOTAL))
    doubtful = doubtful or (request.form is Form.COUNT and not decided and not _is_one_list(rows, request.subject))
    yield from finish(store, question, text, shown, under, read, support=0.0 if doubtful else None)


def _of_named_tables(rows: Sequence[Row], subject: str) -> tuple[list[Row], str]:
    """The rows of the tables that are called what is counted, of that year, and a sentence about the other lines."""
    years, noun = set(A_YEAR.findall(subject)), content_stems(subject.split()[0])
    named = [
        row
        for row in rows
        if amounts.fields_of(row.text)
        and years <= set(A_YEAR.findall(row.passage.path.stem))
        and noun <= content_stems(row.passage.path.stem)
    ]
    if not years or not noun or not named or len(named) == len(rows):
        return list(rows), ""
    others = Counter(clean_name(row.passage.path.name) for row in rows if row not in named)
    names = "; ".join(f"{name} ({plural(count, 'line')})" for name, count in others.items())
    return named, f"\nNot counted, because the table is called otherwise: {names}."


def _to_add_up(rows: Sequence[Row], question: str) -> tuple[list[Row], str]:
    """The rows whose amounts make the sum, and sentences about the others."""
    rows, unpaid = _without_unpaid(rows) if _PAID.search(question) else (rows, "")
    rows, others = _of_one_column(rows, question)
    return rows, others + unpaid


def _without_unpaid(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """The rows but those of tables whose column 'paid' says no, and a sentence about these."""
    says_no = YesNo("", "paid", wanted=False, needed=False).decide(rows)
    if says_no is None or not says_no.rows or len(says_no.rows) == len(rows):
        return list(rows), ""
    count = plural(len(says_no.rows), "row")
    return [row for row in rows if row not in says_no.rows], f"\nLeft out, because not paid ({says_no.by}): {count}."


def _copies(store: Store, rows: Sequence[Row], matches: Matches) -> list[str]:
    """Return sentences that name the copies of some of the files."""
    paths, roots = [row.passage.path for row in rows if row.passage.path in matches.copies], store.volumes.roots()
    return [also_as(path, matches.copies[path], roots) for path in paths[:_MOST_NEAR]]


def _of_one_column(rows: Sequence[Row], question: str) -> tuple[list[Row], str]:
    """The rows with an amount, of tables only those of the most frequent column, and a sentence about the others."""
    columns = [(row, amount[0]) for row in rows if (amount := amounts.column_and_amount(row.text, question))]
    named = Counter(column.casefold() for _, column in columns if column)
    if len(named) < 2:
        return [row for row, _ in columns], ""
    (most, _), *_ = named.most_common(1)
    others = Counter(f"“{column}” in {clean_name(row.passage.path.name)}" for row, column in columns
                     if column.casefold() not in ("", most))  # fmt: skip
    names = "; ".join(f"{name} ({plural(count, 'row')})" for name, count in others.items())
    same_column = [row for row, column in columns if column.casefold() in ("", most)]
    return same_column, f"\nLeft out, because it is another column: {names}."


def _with_near(text: str, matches: Matches, listed: set[Path]) -> str:
    """The text with a sentence about names that are only spelled nearly as in the question."""
    spelled = f"“{'”, “'.join(matches.words_near)}”" if matches.words_near else "a similar name"
    if matches.only_near:
        return f"No line has exactly what the question names; these have {spelled}. {text}"
    others = list(dict.fromkeys(row.passage.path for row in matches.near if row.passage.path not in listed))
    if not others:
        return text
    names = some_of([clean_name(path.name) for path in others])
    return f"{text}\nSpelled only nearly so ({spelled}) in {plural(len(others), 'other file')}: {names}."


def _period_of(question: str) -> Period | None:
    return take_period(question, _today())[1]


def _today() -> date:
    return datetime.now(UTC).astimezone().date()


def _matches_in_period(
    store: Store, subject: str, under: Sequence[Path], period: Period | None
) -> Generator[AnswerEvent, None, Matches]:
    """The matches; of several years, those in documents of that time: 'we paid in premiums from 2022 to 2025'.

    Rows of tables go by their own dates, of one year too.
    """
    is_of_years = period is not None and len(set(A_YEAR.findall(subject))) > 1
    plain = take_period(_PAID.sub(" ", subject), _today())[0] if is_of_years else subject
    matches = yield from match(store, plain, under)
    if period is not None:
        by_rows = [_row_is_in(row, period) for row in matches.rows]
        days = days_of(store, (writing_of_passage(row.passage) for row in matches.rows)) if is_of_years else {}
        matches.rows = [
            row
            for row, of_row in zip(matches.rows, by_rows, strict=True)
            if of_row or (of_row is None and (not is_of_years or period.holds(days[writing_of_passage(row.passage)])))
        ]
    return matches


def _row_is_in(row: Row, period: Period) -> bool | None:
    return is_in(row.text, row.passage.path, period) if amounts.fields_of(row.text) else None


def _decide(matches: Matches, asked_conditions: Sequence[Condition]) -> list[str]:
    """Keep the rows that meet all conditions, and return what decided; [] if one cannot be decided."""
    decided: list[str] = []
    rows = matches.rows
    for condition in asked_conditions:
        result = condition.decide(rows)
        if result is None:
            return []
        rows, decided = result.rows, [*decided, result.by]
    matches.rows = rows
    return decided


def show(store: Store, rows: Sequence[Row]) -> Shown:
    """The rows as citations, checked against their files; rows of one passage share a source."""
    files, by_passage = SourceFiles(store), dict[str, Source]()
    citations = []
    for row in rows:
        key = f"{row.passage.chunk.chunk_id} {row.passage.path}"
        if key not in by_passage:
            by_passage[key] = source_of(len(by_passage) + 1, row.passage, files)
        source = by_passage[key]
        citation = QuoteFinder([source]).find(row.text)
        citations.append(citation or Citation(source.number, source.path, source.location, row.text))
    sources = tuple(by_passage.values())
    check = CitationCheck(sources)
    return Shown(sources, tuple(check.citation(citation) for citation in citations))


def first_line(store: Store, row: DocumentRow) -> list[Row]:
    """The first words of a file that can be quoted; [] if it has none."""
    units = (Row(one, unit) for one in store.passages_of(row.path) for unit in quotable(one.chunk.text))
    return list(islice(units, 1))


def listed(
    citation: Citation | None, words: str, path: Path, roots: Sequence[Path], *, with_place: bool = False
) -> str:
    """A line of a list: '[1] INV-7, 3 May 2024: 2024/INV-7.pdf p. 1'; without a number if there is nothing to quote.

    `with_place` names page or lines of the quote, which tell nothing if it is only the first line.
    """
    where, number = shown_path(path, roots), ""
    if citation is not None:
        number = f"[{citation.source_number}] "
        where = f"{where} {citation.location}".rstrip() if with_place else where
        where += f" ({citation.origin})" if citation.origin else ""
    return f"{number}{words}{': ' if words else ''}{where}"


def finish(
    store: Store,
    question: str,
    text: str,
    shown: Shown,
    under: Sequence[Path],
    read: tuple[float, int, int],
    *,
    support: float | None = None,
    found: bool = True,
    not_read: UnreadFiles | None = None,
) -> Iterator[AnswerEvent]:
    """Yield sources, quotes and text of an answer that no model wrote; `read` is start time, passages and files.

    Quotes of a list, whose lines name them, are in the answer only.
    """
    began, passages, files = read
    timings = Timings((Stage("read", time.perf_counter() - began),))
    done = replace(
        answer_without_sources(question, text, timings),
        found=found,
        citations=shown.citations,
        sources=shown.sources,
        not_read=not_read,
        support=support,
        basis=Basis(passages, store.counts(under=under).chunks, files),
    )
    yield Retrieved(shown.sources)
    yield FirstToken(timings)
    if not done.is_list:
        for citation in shown.citations:
            yield Evidence(citation)
    yield AnswerText(text)
    yield Finished(done)


@dataclass(frozen=True, slots=True)
class FolderQuestion:
    """A question about the documents below some folders, as each of the ways to answer it takes it."""

    store: Store
    text: str
    under: Sequence[Path]
    today: date
    began: float = field(default_factory=time.perf_counter)

    def answered(
        self,
        text: str,
        rows: Shown | Sequence[Row],
        passages: int,
        files: int,
        *,
        support: float | None = None,
        found: bool = True,
        not_read: UnreadFiles | None = None,
    ) -> Iterator[AnswerEvent]:
        """Yield an answer with its rows, made from so many passages and files; see `finish`."""
        shown = rows if isinstance(rows, Shown) else show(self.store, rows)
        read = (self.began, passages, files)
        yield from finish(self.store, self.text, text, shown, self.under, read,
                          support=support, found=found, not_read=not_read)  # fmt: skip


def stopped_reading() -> Iterator[AnswerEvent]:
    """Yield the answer to a question whose files were not all read because the user stopped it."""
    timings = Timings((Stage("read", 0.0),))
    yield Retrieved(())
    yield FirstToken(timings)
    yield Finished(replace(answer_without_sources("", "", timings), stopped=True))


def not_readable(question: str, faults: Sequence[str]) -> Iterator[AnswerEvent]:
    """Yield the answer to a question about files that cannot be searched; `faults` are sentences that say why."""
    text, timings = "\n".join(faults), Timings((Stage("read", 0.0),))
    yield Retrieved(())
    yield FirstToken(timings)
    yield AnswerText(text)
    yield Finished(answer_without_sources(question, text, timings))


def _countable(store: Store, subject: str, under: Sequence[Path]) -> bool:
    """True if the thing to count is a line or a file here; 'How many rooms has the hotel?' asks for a fact."""
    noun = subject.split()[0].lower()
    return noun in _COUNTED or stands_for_files(store, noun, under)


def _is_one_list(rows: Sequence[Row], subject: str) -> bool:
    """True if lines are what is counted, or each line stands for one thing: rows of a table, one label of each file."""
    cells, files = [amounts.fields_of(row.text) for row in rows], {row.passage.path for row in rows}
    first = next(iter(cells[0]), "")
    if subject.split()[0].lower() in _COUNTED:
        return True
    if not first or {next(iter(one), "") for one in cells} != {first}:
        return False
    if len(files) == len(rows) > 1:
        return all(len(one) == 1 for one in cells)
    in_passage = [line for line in rows[0].passage.chunk.text.split("\n") if line.startswith(f"{first}: ")]
    return len(files) == 1 and len({*in_passage, *(row.text for row in rows)}) > 1


@dataclass(frozen=True, slots=True)
class _Regard:
    """Notices on the conditions of a question: what decided them, and which were left aside."""

    decided: Sequence[str]
    disregarded: Sequence[str]

    def __str__(self) -> str:
        if self.disregarded:
            return f", without regard to “{'”, “'.join(self.disregarded)}”"
        return f", by “{'”, “'.join(self.decided)}”" if self.decided else ""


def _text(question: str, request: WholeFolderQuestion, rows: Sequence[Row], regard: _Regard) -> str:
    files = len({row.passage.path for row in rows})
    lines = f"{plural(len(rows), 'line')} in {plural(files, 'file')}"
    more = f" (the first {_MOST_ROWS} are shown)" if len(rows) > _MOST_ROWS else ""
    more += str(regard)
    if request.form is Form.FILES:
        return f"{plural(files, 'file')}, each with the first line that matches{more}."
    if request.form is Form.LIST:
        return f"{lines} match{'es' if len(rows) == 1 else ''}{more}."
    if request.form is Form.COUNT:
        return f"{len(rows):,} (counted: {lines}{more})"
    amounts_or_none = [amounts.amount_of(row.text, question) for row in rows[:_MOST_ROWS]]
    known = [amount for amount in amounts_or_none if amount is not None]
    return f"{amounts.written(known)} (computed: the sum of the {len(known):,} amounts shown{more})"
