"""Answer questions about documents of one kind: totals, counts, lists, the latest, the largest, the unpaid.

Every document that matches stands in the answer with its place, and every one that nearly does with the reason why not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder import wording
from desk_rag.answering.questions.folder.reading.fields import cells_of
from desk_rag.answering.questions.folder.reading.money import Amount, money_in, sums, written
from desk_rag.answering.questions.folder.reading.naming import folders_named
from desk_rag.answering.questions.folder.reading.records import Reading, Record, all_dates, read
from desk_rag.answering.questions.folder.request import Request, Role, Task, request_of
from desk_rag.answering.questions.folder.selection import Selection, nearly, needs_amount, select, stems_in
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.whole_folder import finish, show
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import quotable
from desk_rag.ingest import unread

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_MOST = 500
"""Documents that are shown, counted and added up."""
_WITH_AMOUNTS = frozenset({"invoice", "receipt", "order", "offer", "payslip"})
_PROPER = frozenset({"invoice", "receipt"})
"""Kinds of which it is said that there are none, where other kinds may be meant as things in a text."""


def answer(store: Store, question: str, under: Sequence[Path], today: date) -> Iterator[AnswerEvent]:
    """Yield progress and the answer; no answer if the question is not one about documents that are here."""
    request = request_of(question, today)
    if request is None or not _is_for_documents(request):
        return
    began = time.perf_counter()
    below = under
    if request.folder:
        below = folders_named(store, request.folder, under)
        if not below:
            return
    reading = yield from _reading(store, request, below)
    if not reading.records or (request.kind.is_any and request.task is Task.COUNT and not _is_narrowed(request)):
        yield from _counted(store, question, request, reading, below, began)
        return
    selection = select(reading.records, request)
    is_proper = (request.kind.name in _PROPER or bool(request.who)) and not request.is_implied
    if selection is None or not (
        selection.chosen or selection.without_amount or selection.vague or selection.undecided
    ):
        if not is_proper or not _may_be_none(request, selection):
            return
        yield from _nothing(store, question, request, reading, below, began)
        return
    if needs_amount(request) and not selection.amounts and not is_proper:
        return
    shown_records = _ordered(selection, request)[:_MOST]
    rows = [_row(record, _amount(selection, record), request) for record in shown_records]
    shown = show(store, [row for row in rows if row is not None])
    text = wording.text(request, selection, reading, shown_records, _ledger_note(reading, request))
    not_read = unread.may_hold_answer(store, below)
    yield from finish(store, question, text, shown, below, (began, reading.passages, reading.files), not_read=not_read)


def _is_narrowed(request: Request) -> bool:
    return bool(request.topic or request.period or request.folder)


def _counted(
    store: Store, question: str, request: Request, reading: Reading, under: Sequence[Path], began: float
) -> Iterator[AnswerEvent]:
    """Count the files of a format by their endings, or say that there are none; nothing for other kinds."""
    if request.task is not Task.COUNT or _is_narrowed(request) or not (request.kind.is_any or request.kind.is_format):
        return
    suffixes = Counter(record.path.suffix.lower() or "without ending" for record in reading.records)
    listed = ", ".join(f"{count:,} {suffix}" for suffix, count in suffixes.most_common())
    among = f": {listed}" if listed else f" among the {wording.plural(reading.files, 'file')} that were read"
    kind = request.kind.plural(2).removeprefix("2 ")
    text = f"{len(reading.records):,} (counted: {kind}{among})"
    not_read = unread.may_hold_answer(store, under)
    read_for_it = (began, reading.passages, reading.files)
    yield from finish(store, question, text, show(store, []), under, read_for_it, not_read=not_read)


def _may_be_none(request: Request, selection: Selection | None) -> bool:
    """True if the question is clearly one for such documents, so that it is an answer that there is none."""
    is_name = not request.topic or request.topic[0].isupper() or request.topic[0].isdigit()
    is_number = bool(request.topic) and any(character.isdigit() for character in request.topic)
    return (is_name and request.is_all) or is_number or selection is not None


def _is_for_documents(request: Request) -> bool:
    """True if documents of the kind can have what is asked, and the question is not one for a single fact."""
    if request.kind.is_any:
        is_mention = request.role is Role.MENTION and request.task in (Task.LIST, Task.COUNT)
        if request.task in (Task.LATEST, Task.OLDEST):
            return bool(request.topic)
        return not is_mention and (request.task is not Task.LIST or request.period is not None or bool(request.folder))
    if needs_amount(request) and request.kind.name not in _WITH_AMOUNTS:
        return False
    if request.task is Task.LIST:
        return request.is_all and not request.is_one
    if request.task is Task.COUNT:
        return request.is_all
    return not (request.is_one and request.kind.name not in _PROPER)


def _reading(store: Store, request: Request, under: Sequence[Path]) -> Generator[AnswerEvent, None, Reading]:
    for event in read(store, request.kind, under):
        if isinstance(event, Reading):
            return event
        yield event
    raise AssertionError("reading ends with what was read")


def _nothing(
    store: Store, question: str, request: Request, reading: Reading, under: Sequence[Path], began: float
) -> Iterator[AnswerEvent]:
    """Say that no document matches, and which there are."""
    text = wording.none(request, reading, nearly(request.topic, reading.records))
    read_for_it = (began, reading.passages, reading.files)
    not_read = unread.may_hold_answer(store, under)
    yield from finish(store, question, text, show(store, []), under, read_for_it, found=False, not_read=not_read)


def _ordered(selection: Selection, request: Request) -> list[Record]:
    """The chosen documents; of the latest, oldest, largest and smallest only these."""
    indices = range(len(selection.chosen))
    match request.task:
        case Task.LATEST | Task.OLDEST:
            dated = [record for record in selection.chosen if record.date is not None]
            key = wording.by_date
            if not dated:
                return []
            best = max(map(key, dated)) if request.task is Task.LATEST else min(map(key, dated))
            return [record for record in dated if key(record) == best]
        case Task.LARGEST | Task.SMALLEST:
            values = {index: selection.amounts[index].value for index in indices if index in selection.amounts}
            best_value = (max if request.task is Task.LARGEST else min)(values.values(), default=None)
            return [selection.chosen[index] for index, value in values.items() if value == best_value]
        case _:
            return sorted(selection.chosen, key=wording.by_date)


def _amount(selection: Selection, record: Record) -> Amount | None:
    return next((selection.amounts.get(index) for index, one in enumerate(selection.chosen) if one is record), None)


def _row(record: Record, amount: Amount | None, request: Request) -> Row | None:
    """The words of a document to quote: whether it is paid, its amount, number, header as a mail, or its beginning."""
    _, status, passage = record.paid if request.paid is not None else (None, "", None)
    if passage is not None:
        return Row(passage, status)
    if amount is not None:
        return Row(amount.passage, amount.quote)
    if record.header_line:
        return Row(record.passages[0], record.header_line)
    for quote in (quote for _, quote in record.numbers):
        for passage in record.passages:
            if quote in passage.chunk.text:
                return Row(passage, quote)
    for passage in record.passages:
        for unit in quotable(passage.chunk.text):
            return Row(passage, unit)
    return None


def _ledger_note(reading: Reading, request: Request) -> str:
    """A sentence about rows of tables that are of the same parties and were not added or counted."""
    adds = request.task in (Task.TOTAL, Task.AVERAGE)
    if not adds and (
        request.task not in (Task.COUNT, Task.LIST) or request.paid is not None or request.limit is not None
    ):
        return ""
    topic, notes = stems_in(request.topic), []
    kind = content_stems(request.kind.words)
    for row, passages in reading.ledgers:
        lines = [line for passage in passages for line in passage.chunk.text.split("\n") if len(cells_of(line)) >= 3]
        of_kind = [line for line in lines if kind & content_stems(" ".join(key for key, _ in cells_of(line)))]
        matching = [line for line in (lines if request.is_implied else of_kind) if topic <= content_stems(line)]
        if request.period is not None:
            matching = [line for line in matching
                        if any(request.period.holds(day) for day in all_dates(line) if day.year)]  # fmt: skip
        if not matching:
            continue
        amounts = [money for line in matching if len(money := money_in(line)) == 1]
        total = sums(Amount(value, currency, "", passages[0]) for ((value, currency),) in amounts)
        worth = " and ".join(written(value, currency) for currency, value in total.items())
        worth = f", {worth} in all" if worth and len(amounts) == len(matching) else ""
        notes.append(f"{wording.plural(len(matching), 'row')} of {row.path.name}{worth}")
    return (
        f"Not {'added' if adds else 'counted'}, because tables may repeat what the documents say: {'; '.join(notes)}."
        if notes
        else ""
    )
