"""Answer questions about documents of one kind: totals, counts, lists, the latest, the largest, the unpaid.

Every document that matches stands in the answer with its place, and every one that nearly does with the reason why not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder import wording
from desk_rag.answering.questions.folder.reading.fields import cells_of
from desk_rag.answering.questions.folder.reading.kinds import CLAIMS, Kind
from desk_rag.answering.questions.folder.reading.money import Amount, money_in, sums, written
from desk_rag.answering.questions.folder.reading.naming import folders_named, with_capitals
from desk_rag.answering.questions.folder.reading.records import Reading, Record, all_dates, read
from desk_rag.answering.questions.folder.request import Request, Role, Task, request_of
from desk_rag.answering.questions.folder.selection import Selection, nearly, needs_amount, select
from desk_rag.answering.questions.matching import Row, quotable_rows
from desk_rag.answering.questions.narrowing import also_as
from desk_rag.answering.questions.summary import sentences_of
from desk_rag.answering.questions.whole_folder import FolderQuestion, show
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.status import plural
from desk_rag.ingest import unread

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_MOST = 500
"""Maximum documents that are shown, counted and added up."""
_MOST_SENTENCES, _FEWEST_WORDS = 4, 4
"""Sentences of the latest letter that are quoted, and their least number of words."""
_LONGEST_PARTY = 5
"""Words of a party's name; a longer line is an address."""
_WITH_AMOUNTS = CLAIMS | {"order", "offer", "payslip"}


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield progress and the answer; no answer if the question is not one about documents that are here."""
    request = request_of(question.text, question.today)
    if request is None or not _is_for_documents(request):
        return
    under = folders_named(question.store, request.folder, question.under) if request.folder else question.under
    if request.folder and not under:
        return
    question = replace(question, under=under)
    groups = _groups(request)
    kinds = [kind for group in groups for kind in group]
    reading = yield from read(question.store, kinds, under)
    request = request_of(with_capitals(question.text, reading.parties), question.today) or request
    if inside := _folder_of_topic(question.store, request, reading, under):
        request = replace(request, topic="", topic_as_asked="", folder=request.topic_as_asked)
        question = replace(question, under=inside)
        reading = yield from read(question.store, kinds, inside)
    readings = [one for group in groups if (one := reading.only(group)).records]
    if not readings or (request.kind.is_any and request.task is Task.COUNT and not _is_narrowed(request)):
        yield from _counted(question, request, reading)
        return
    if request.not_understood and request.kind.name in CLAIMS:
        yield from _said(question, wording.not_understood(request), reading)
        return
    for one in readings:
        selection = select(one.records, request)
        has_amounts = selection is not None and (selection.amounts or selection.unpaid or not needs_amount(request))
        if selection is not None and selection.is_answer and has_amounts:
            kind = next((kind for kind in groups[0] if kind == one.records[0].kind), one.records[0].kind)
            apart = readings[1].records if one is readings[0] and len(readings) > 1 and not request.topic else ()
            shown_as = replace(request, kind=request.kind if kind in groups[0] else kind)
            yield from _shown(question, shown_as, selection, one, apart)
            return
    selection = select(readings[0].records, request)
    is_about = _is_about(request) and not _is_of_one_document(question.text, selection)
    if is_about and selection is not None and selection.is_answer:
        yield from _shown(question, request, selection, readings[0], ())
    elif text := _why_none(request, selection, readings[0], is_about=is_about):
        yield from _said(question, text, readings[0])


def _folder_of_topic(store: Store, request: Request, reading: Reading, under: Sequence[Path]) -> Sequence[Path]:
    """The folders that the topic names, 'flat' in 'invoices for the flat'; none if a party is called so."""
    if not request.topic or request.who or request.role is Role.MENTION:
        return ()
    topic = content_stems(request.topic)
    if any(topic <= content_stems(name) for name in reading.parties if len(name.split()) <= _LONGEST_PARTY):
        return ()
    folders = folders_named(store, request.topic_as_asked, under)
    return folders if any(record.path.is_relative_to(one) for record in reading.records for one in folders) else ()


def _is_of_one_document(question: str, selection: Selection | None) -> bool:
    """True if no amount was read from the only document, which the question names: reading it may well find one."""
    if selection is None or len(selection.without_amount) != 1:
        return False
    if selection.chosen or selection.vague or selection.undecided:
        return False
    ((record, _),) = selection.without_amount
    return any(number in record.path.stem for number in re.findall(r"\w*\d[\w-]*\d", question))


def _groups(request: Request) -> list[list[Kind]]:
    """The kinds to look for, one group after the other, until one has what is asked."""
    alike = [request.kind.alike] if request.kind.alike is not None else []
    if request.is_implied:
        return [[request.kind, *alike], [Kind("receipt", "receipts")]]
    return [[request.kind], *([kind] for kind in alike)]


def _is_about(request: Request) -> bool:
    """True if the question names documents in which amounts or senders are to be expected."""
    return (request.kind.name in CLAIMS or bool(request.who)) and not request.is_implied


def _shown(
    question: FolderQuestion, request: Request, selection: Selection, reading: Reading, apart: Sequence[Record]
) -> Iterator[AnswerEvent]:
    """Yield the answer with every document that was chosen."""
    records = _ordered(selection, request)[:_MOST]
    if len(records) == 1 and request.task in (Task.LATEST, Task.OLDEST) and request.kind.name not in CLAIMS:
        shown = show(question.store, sentences_of(records[0].passages, _FEWEST_WORDS, own=True)[:_MOST_SENTENCES])
        lines = [wording.Listed(records[0])]
    else:
        records = records or wording.only_undecided(request, selection)[:_MOST]
        rows = [_row(record, _amount(selection, record), request, selection) for record in records]
        shown = show(question.store, [row for row, _ in rows if row is not None])
        citations = iter(shown.citations)
        lines = [
            wording.Listed(record, next(citations) if row is not None else None, row.text if row and is_reason else "")
            for record, (row, is_reason) in zip(records, rows, strict=True)
        ]
    notes = [_ledger_note(reading, request)]
    if apart:
        verb = "is" if len(apart) == 1 else "are"
        notes.append(f"{apart[0].kind.plural(len(apart))} {verb} not among them: {wording.names(apart)}.")
    roots = question.store.volumes.roots()
    notes += [also_as(path, reading.copies.get(path, ()), roots) for path in {record.path: 0 for record in records}]
    text = wording.text(request, selection, reading, lines, notes, roots)
    not_read = unread.may_hold_answer(question.store, question.under)
    is_open = request.task is Task.COUNT and request.paid is not None and bool(selection.undecided)
    support = 0.0 if is_open else None
    yield from question.answered(text, shown, reading.passages, reading.files, not_read=not_read, support=support)


def _is_narrowed(request: Request) -> bool:
    return bool(request.topic or request.period or request.folder)


def _counted(question: FolderQuestion, request: Request, reading: Reading) -> Iterator[AnswerEvent]:
    """Count the files of a format by their endings, or say that there are none; nothing for other kinds."""
    if request.task is not Task.COUNT or _is_narrowed(request) or not (request.kind.is_any or request.kind.is_format):
        return
    suffixes = Counter(record.path.suffix.lower() or "without ending" for record in reading.records)
    listed = ", ".join(f"{count:,} {suffix}" for suffix, count in suffixes.most_common())
    among = f": {listed}" if listed else f" among the {plural(reading.files, 'file')} that were read"
    kind = request.kind.plural(2).removeprefix("2 ")
    besides = _besides(question.store, question.under) if request.kind.is_any else ""
    text = f"{len(reading.records):,} (counted: {kind}{among}{besides})"
    not_read = unread.may_hold_answer(question.store, question.under)
    yield from question.answered(text, [], reading.passages, reading.files, not_read=not_read)


def _besides(store: Store, under: Sequence[Path]) -> str:
    """Return what the number of the files that were read leaves out; '' if that is none."""
    failed, skipped = store.counts(under=under).failed, unread.skipped_files(store, under)
    words = {"could not be read": failed, "left out": skipped.files}
    parts = [f"{number:,} more {word}" for word, number in words.items() if number]
    parts += [f"{group.named} left out" for group in skipped.folders]
    return f"; only files that were read, {' and '.join(parts)}" if parts else ""


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
    return not (request.is_one and request.kind.name not in CLAIMS)


def _why_none(request: Request, selection: Selection | None, reading: Reading, *, is_about: bool) -> str:
    """A text that no document matches, and which there are; '' if the question may be one for something else."""
    if selection is not None and selection.own and not selection.is_answer:
        return wording.only_own(request, selection)
    if is_about and _may_be_none(request, selection):
        return wording.none(request, reading, nearly(request.topic, reading.records))
    return ""


def _said(question: FolderQuestion, text: str, reading: Reading) -> Iterator[AnswerEvent]:
    """Yield an answer that names no document."""
    not_read = unread.may_hold_answer(question.store, question.under)
    yield from question.answered(text, [], reading.passages, reading.files, found=False, not_read=not_read)


def _ordered(selection: Selection, request: Request) -> list[Record]:
    """The chosen documents; of the latest, oldest, largest and smallest only these."""
    indices = range(len(selection.chosen))
    match request.task:
        case Task.LATEST | Task.OLDEST:
            dated = [record for record in selection.chosen if record.date is not None]
            key = wording.by_date
            if not dated:
                return []
            in_order = sorted(dated, key=key, reverse=request.task is Task.LATEST)
            days = {key(record) for record in in_order[: request.most]}
            return [record for record in in_order if key(record) in days]
        case Task.LARGEST | Task.SMALLEST:
            values = {index: selection.amounts[index].value for index in indices if index in selection.amounts}
            ordered = sorted(values, key=lambda index: values[index], reverse=request.task is Task.LARGEST)
            wanted = {values[index] for index in ordered[: request.most]}
            return [selection.chosen[index] for index in ordered if values[index] in wanted]
        case _:
            return sorted(selection.chosen, key=wording.by_date)


def _amount(selection: Selection, record: Record) -> Amount | None:
    return next((selection.amounts.get(index) for index, one in enumerate(selection.chosen) if one is record), None)


def _row(record: Record, amount: Amount | None, request: Request, selection: Selection) -> tuple[Row | None, bool]:
    """The words of a document to quote, and whether they are the reason why it is listed.

    They say whether it is paid, have the words of the question, its amount, its number, or head it as a mail; else they
    are its first ones.
    """
    asks_status = request.paid is not None or request.task is Task.WHETHER_PAID
    _, status, passage = record.paid if asks_status else (None, "", None)
    if passage is not None:
        return Row(passage, status), True
    units = quotable_rows(record.passages)
    if selection.by_words and (topic := content_stems(request.topic)):
        titles = [row.passage.chunk.text[: place_of_passage(row.passage).body].strip() for row in units]
        apart = [row for row, title in zip(units, titles, strict=True) if row.text not in (record.header_line, title)]
        with_words = [row for row in apart if topic & content_stems(row.text)]
        if with_words:
            return max(with_words, key=lambda row: len(topic & content_stems(row.text))), True
    if amount is not None:
        return Row(amount.passage, amount.quote), False
    if record.header_line:
        return Row(record.passages[0], record.header_line), False
    for quote in (quote for _, quote in record.numbers):
        for passage in record.passages:
            if quote in passage.chunk.text:
                return Row(passage, quote), False
    return next(iter(units), None), False


def _ledger_note(reading: Reading, request: Request) -> str:
    """A sentence about rows of tables that are of the same parties and were not added or counted."""
    adds = request.task in (Task.TOTAL, Task.AVERAGE)
    if not adds and (
        request.task not in (Task.COUNT, Task.LIST) or request.paid is not None or request.limit is not None
    ):
        return ""
    topic, notes = content_stems(request.topic), []
    kind = content_stems(request.kind.words)
    for row, passages in reading.ledgers:
        lines = [line for passage in passages for line in passage.chunk.text.split("\n") if len(cells_of(line)) >= 3]
        of_kind = [line for line in lines if kind & content_stems(" ".join(key for key, _ in cells_of(line)))]
        payments = [line for line in lines if topic or len(money_in(line)) == 1]
        matching = [line for line in (payments if request.is_implied else of_kind) if topic <= content_stems(line)]
        if request.period is not None:
            matching = [line for line in matching
                        if any(request.period.holds(day) for day in all_dates(line) if day.year)]  # fmt: skip
        if not matching:
            continue
        amounts = [money for line in matching if len(money := money_in(line)) == 1]
        total = sums(Amount(value, currency, "", passages[0]) for ((value, currency),) in amounts)
        worth = " and ".join(written(value, currency) for currency, value in total.items())
        is_one_way = len({value < 0 for ((value, _),) in amounts}) == 1  # money that came and went makes no sum
        worth = f", {worth} in all" if worth and is_one_way and len(amounts) == len(matching) else ""
        notes.append(f"{plural(len(matching), 'row')} of {row.path.name}{worth}")
    return (
        f"Not {'added' if adds else 'counted'}, because tables may repeat what the documents say: {'; '.join(notes)}."
        if notes
        else ""
    )
