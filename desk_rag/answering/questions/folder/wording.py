"""Write the answers about documents of one kind: the result first, a line for each document, then what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from desk_rag.answering.events import Citation
from desk_rag.answering.questions.folder.reading.kinds import CLAIMS
from desk_rag.answering.questions.folder.reading.money import Amount, Measure, sums, written
from desk_rag.answering.questions.folder.reading.records import Reading, Record
from desk_rag.answering.questions.folder.request import Request, Role, Task
from desk_rag.answering.questions.folder.selection import Selection
from desk_rag.answering.questions.narrowing import some_of
from desk_rag.answering.questions.whole_folder import listed
from desk_rag.answering.requirements.dates import in_words
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.sanitize import clean, clean_name

_MOST_NAMED = 5
_NO_PAYMENTS = ", by the dates of the invoices and not of the payments, and of nothing without an invoice"


@dataclass(frozen=True, slots=True)
class Listed:
    """A document of a list."""

    record: Record
    citation: Citation | None = None
    """Its quote; None if it has nothing to quote, or has several quotes of its own."""
    reason: str = ""
    """Its words that meet a condition of the question; '' if number, date and amount are enough."""


def text(
    request: Request,
    selection: Selection,
    reading: Reading,
    shown: Sequence[Listed],
    notes: Sequence[str],
    roots: Sequence[Path],
) -> str:
    """The whole text of an answer."""
    amounts = {id(record): selection.amounts.get(index) for index, record in enumerate(selection.chosen)}
    amounts |= {id(record): _amount_of(record, request) for record in only_undecided(request, selection)}
    lines = [_line(one, amounts.get(id(one.record)), roots) for one in shown]
    notes = [*_notes(request, selection), *filter(None, notes)]
    lines = [*_grouped(request, selection), *lines]
    return "\n".join([_result(request, selection, reading, shown), *lines, *notes])


def none(request: Request, reading: Reading, near: str) -> str:
    """The text where no document matches."""
    those = f"{_whose(request, by_words=False)}{_when(request)}{_condition(request, 'is')}"
    what = f"No {request.kind.name}{those} was found"
    hint = f" Did you mean “{near}”?" if near else ""
    return f"{what} among the {request.kind.plural(len(reading.records))} that were read{_parties(reading)}.{hint}"


def _amount_of(record: Record, request: Request) -> Amount | None:
    amount = record.amount(request.measure) if request.kind.name in CLAIMS else None
    return amount if isinstance(amount, Amount) else None


def not_understood(request: Request) -> str:
    """The text where a condition of the question could not be read, so that nothing may be chosen by the rest."""
    kind = request.kind.plural(2).removeprefix("2 ").capitalize()
    return (
        f"“{request.not_understood}” was not understood, so nothing was chosen. {kind} are chosen by name,"
        " date, age, amount and whether they are paid."
    )


def only_own(request: Request, selection: Selection) -> str:
    """The text where a question for payments finds only documents that were sent to others."""
    kind, count = request.kind, len(selection.own)
    sent = f"{kind.plural(count)} {'was' if count == 1 else 'were'} sent to others"
    return f"No {kind.name} that was to be paid was found: {sent} by {clean_name(selection.own[0].party)}."


def only_undecided(request: Request, selection: Selection) -> list[Record]:
    """The documents to list for 'Which are unpaid?' where none says so, and some do not say that they were paid."""
    is_asked = request.task is Task.LIST and request.paid is False and not selection.chosen
    return sorted(selection.undecided, key=by_date) if is_asked else []


def by_date(record: Record) -> tuple[int, int, int]:
    """Sort key; documents without a date come last."""
    day = record.date
    return (day.year, day.month, day.day) if day is not None else (9999, 0, 0)


def _result(request: Request, selection: Selection, reading: Reading, shown: Sequence[Listed]) -> str:
    match request.task:
        case Task.TOTAL | Task.AVERAGE:
            return _total(request, selection, reading)
        case Task.WHETHER_PAID:
            return _whether_paid(request, selection)
        case _:
            every = len(reading.records)
            are = "is" if every == 1 else "are"
            of_all = f"; there {are} {every:,} in all" if len(selection.chosen) != every else ""
            count = len(selection.chosen)
            of_all += _without_amount(selection)
            those = _those(request, selection, count)
            of_them = f"{request.kind.plural(count)}{those}{of_all}"
            if not count and selection.without_amount:
                of_them = f"No {request.kind.name} with an amount that could be read{those}{of_all}"
            if request.task is Task.COUNT:
                kind = request.kind.plural(2).removeprefix("2 ")
                return f"{count:,} (counted: {kind}{_those(request, selection)}{of_all})"
            if only_undecided(request, selection):
                silent = len(selection.undecided)
                verb = "does not say that it was" if silent == 1 else "do not say that they were"
                of_those = f"{_whose(request, by_words=selection.by_words)}{_when(request)}"
                return f"No {request.kind.name}{of_those} says that it is unpaid, but {silent:,} {verb} paid{of_all}:"
            if request.task is Task.LIST:
                return f"{of_them}{':' if shown else '.'}"
            if not shown:
                unknown = "amount" if request.task in (Task.LARGEST, Task.SMALLEST) else "date"
                return f"The {request.task.value} cannot be told: no {unknown} was found in {of_them}."
            most = f"{len(shown)} " if request.most > 1 else ""
            alike = f" ({len(shown)} are alike)" if len(shown) > request.most else ""
            return f"The {most}{request.task.value} of {of_them}{alike}:"


def _without_amount(selection: Selection) -> str:
    unread = len(selection.without_amount)
    return f"; no amount could be read from {unread:,}" if unread else ""


def _total(request: Request, selection: Selection, reading: Reading) -> str:
    """The sum or average of the amounts; apart for what the own firm sent and for what others did."""
    amounts = list(selection.amounts.values())
    if not amounts and selection.unpaid and not selection.without_amount:
        count = len(selection.unpaid)
        of_those = f"{_whose(request, by_words=selection.by_words)}{_when(request)}"
        return f"Nothing: {request.kind.plural(count)}{of_those} {'says' if count == 1 else 'say'} “not paid”."
    if not amounts:
        unknown = request.kind.plural(len(selection.without_amount))
        those = _those(request, selection, len(selection.without_amount))
        return f"No amount could be read from the {unknown}{those}."
    by_date = _NO_PAYMENTS if request.is_implied else ""
    total, sent = _sum(amounts, request), [record.path for record in selection.sent]
    if len(amounts) == 1 and not selection.without_amount:
        return f"{total} ({_single(request, selection, reading)}{by_date})"
    of_kind = _of_kind(request, selection, reading)
    by_own = [amount for index, amount in selection.amounts.items() if selection.chosen[index].path in sent]
    if request.task is Task.TOTAL and 0 < len(by_own) < len(amounts):
        by_others = [amount for amount in amounts if not any(amount is own for own in by_own)]
        kinds, party = request.kind.plural(2).removeprefix("2 "), clean_name(selection.sent[0].party)
        both = f"{_sum(by_own, request)} in {kinds} that {party} sent, {_sum(by_others, request)} in those of others"
        return f"{both} (computed: the sums of {of_kind}{by_date})"
    return f"{total} (computed: the {_computed(request)} {of_kind}{_without_amount(selection)}{by_date})"


def _whether_paid(request: Request, selection: Selection) -> str:
    """Return whether the documents are paid, by their own words."""
    said = Counter(record.paid[0] for record in selection.chosen)
    kind, count = request.kind, len(selection.chosen)
    those = f"{_whose(request, by_words=selection.by_words)}{_when(request)}"
    if count == 1:
        number = selection.chosen[0].number
        one = f"{kind.name} {number}" if number in request.topic.split() else f"the only {kind.name}{those}"
        if said[None]:
            return f"{one[0].upper()}{one[1:]} does not say whether it is paid:"
        return f"Yes, {one} says that it is paid:" if said[True] else f"No, {one} says that it is not paid:"
    states = {f"{said[True]:,} paid": True, f"{said[False]:,} not paid": False, f"{said[None]:,} that do not say": None}
    return f"{kind.plural(count)}{those}: {', '.join(words for words, state in states.items() if said[state])}."


def _single(request: Request, selection: Selection, reading: Reading) -> str:
    """'from invoice MO-24-02', or 'from the only invoice of Kessler Heating in May 2023; there are 13 in all'"""
    measure = "" if request.measure is Measure.TOTAL else f"the {request.measure.value} "
    (record,) = selection.chosen
    if record.number and record.number.casefold() in request.topic.casefold().split():
        return f"{measure}from {request.kind.name} {record.number}"
    only = f"{measure}from the only {request.kind.name}{_those(request, selection, 1)}"
    return only if len(reading.records) == 1 else f"{only}; there are {len(reading.records):,} in all"


def _of_kind(request: Request, selection: Selection, reading: Reading) -> str:
    """Return what was counted: '3 of 13 invoices, those of Kessler Heating in 2023'."""
    count, every = len(selection.chosen), len(reading.records)
    those = _those(request, selection)
    if count == every:
        return request.kind.plural(count) + those
    return f"{count:,} of {request.kind.plural(every)}{f', those{those}' if those else ''}"


def _those(request: Request, selection: Selection, count: int = 0) -> str:
    """' of Kessler Heating in 2023 that are not paid', of one document 'that is not paid'"""
    verb = "is" if count == 1 else "are"
    left_out = f" that {verb} not said to be unpaid" if selection.unpaid else ""
    return f"{_whose(request, by_words=selection.by_words)}{_when(request)}{_condition(request, verb)}{left_out}"


def _computed(request: Request) -> str:
    measure = "" if request.measure is Measure.TOTAL else f" of the {request.measure.value}"
    return f"{'average' if request.task is Task.AVERAGE else 'sum'}{measure} of"


def _sum(amounts: Sequence[Amount], request: Request) -> str:
    totals = sums(amounts)
    if request.task is Task.AVERAGE:
        counts = Counter(amount.currency for amount in amounts)
        if len(totals) == 1:
            counts = Counter({next(iter(totals)): len(amounts)})
        totals = {name: (value / Decimal(counts[name])).quantize(Decimal("0.01")) for name, value in totals.items()}
    return " and ".join(written(value, currency) for currency, value in totals.items())


def _whose(request: Request, *, by_words: bool) -> str:
    if not request.topic:
        return f" in the folder {request.folder}" if request.folder else ""
    if request.who:
        sender, recipient = request.who.sender, request.who.recipient
        names = f"{f' from {sender}' if sender else ''}{f' to {recipient}' if recipient else ''}"
        others = content_stems(request.topic) - content_stems(request.who.names)
        words = " ".join(word for word in request.topic.split() if content_stems(word) & others)
        return f"{names} with the words “{words}”" if words else names
    if request.role is Role.MENTION or by_words:
        return f" with the words “{request.topic_as_asked}”"
    of = "from or to" if request.kind.name in ("mail", "letter") else "of"
    return f" {of} {request.topic_as_asked}"


def _when(request: Request) -> str:
    if request.period is None:
        return ""
    words = request.period.words
    return f" {words}" if not words[0].isdigit() else f" of {words}"


def _condition(request: Request, verb: str) -> str:
    paid = {True: f" that {verb} paid", False: f" that {verb} not paid", None: ""}[request.paid]
    return f"{paid}{f' {request.limit.words}' if request.limit is not None else ''}"


def _line(one: Listed, amount: Amount | None, roots: Sequence[Path]) -> str:
    """Return '[1] KH-2021-007, 12 March 2021, 737.80 euros, “Status: open”: 2021/Kessler Heating.md lines 9-12'."""
    record = one.record
    subject = record.header_line.rpartition("; Subject: ")[2] if not record.number else ""
    sender = record.header.sender if record.header is not None else ""
    facts = [
        record.number or (f"“{subject}” from {sender}" if subject else ""),
        in_words(record.date),
        written(amount.value, amount.currency) if amount is not None else "",
        f"“{clean(one.reason, single_line=True)}”" if one.reason else "",
    ]
    with_place = (bool(one.reason) or amount is not None) and not sender  # a mail's place is its sender and subject
    return listed(one.citation, ", ".join(filter(None, facts)), record.path, roots, with_place=with_place)


def _notes(request: Request, selection: Selection) -> Iterator[str]:
    what = "Not in the sum" if request.task in (Task.TOTAL, Task.AVERAGE) else "Not decided"
    for reason in dict.fromkeys(reason for _, reason in selection.without_amount):
        records = [record for record, why in selection.without_amount if why == reason]
        yield (
            f"{what}, because {reason} was found there: {names(records)}."
            if not reason.startswith("several")
            else (f"{what}, because there are {reason}: {names(records)}.")
        )
    if selection.unpaid:
        yield f"Left out, because by their own words not paid yet: {names(selection.unpaid)}."
    if selection.own:
        sender = clean_name(selection.own[0].party)
        yield f"Left out, because {sender} sent them to others: {names(selection.own)}."
    if selection.is_sender_unknown:
        yield f"Whose {request.kind.plural(2).removeprefix('2 ')} these are could not be told: none names both sides."
    if selection.vague:
        yield f"Left out, because their date is not clear: {names(selection.vague)}."
    if selection.only_mention:
        which = "Of another party and left out, although the name stands in it"
        yield f"{which}: {names(selection.only_mention)}."
    for record, first in selection.repeated:
        yield f"Counted once: {clean_name(record.path.name)} repeats {record.number} of {clean_name(first.path.name)}."
    if selection.undecided and not only_undecided(request, selection):
        silent = request.kind.plural(len(selection.undecided))
        verb = "does not say whether it is" if len(selection.undecided) == 1 else "do not say whether they are"
        yield f"{silent} {verb} paid: {names(selection.undecided)}."


def _grouped(request: Request, selection: Selection) -> Iterator[str]:
    """A line for each year, month or party with its number of documents and their sum."""
    if not request.group:
        return
    groups: dict[str, list[int]] = {}
    for index, record in sorted(enumerate(selection.chosen), key=lambda pair: by_date(pair[1])):
        groups.setdefault(_group(record, request.group), []).append(index)
    for name, indices in groups.items():
        totals = sums(selection.amounts[index] for index in indices if index in selection.amounts)
        worth = " and ".join(written(value, currency) for currency, value in totals.items())
        yield f"{name}: {request.kind.plural(len(indices))}{f', {worth}' if worth else ''}"


def _group(record: Record, by: str) -> str:
    if by == "party":
        return record.party or "party not known"
    day = record.date
    if day is None:
        return "date not known"
    return str(day.year) if by == "year" else in_words(replace(day, day=0))


def names(records: Sequence[Record]) -> str:
    """The names of some documents, the first of many."""
    return some_of([clean_name(record.path.name) for record in records])


def _parties(reading: Reading) -> str:
    """Return ', which are from Kessler Heating (5) and Bright Paper (4)'; '' if few documents name a party."""
    names = list(dict.fromkeys(record.party for record in reading.records if record.party))
    of_each = [next((name for name in names if name in (record.party, *record.head)), "") for record in reading.records]
    parties = Counter(filter(None, of_each))
    if parties.total() < len(reading.records) / 2:
        return ""
    most = parties.most_common(_MOST_NAMED)
    more = f" and {len(parties) - len(most):,} others" if len(parties) > len(most) else ""
    return f", which are from {', '.join(f'{name} ({count:,})' for name, count in most)}{more}"
