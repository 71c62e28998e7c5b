"""Choose the documents that a question is about, and say for each other one why it is left out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from desk_rag.answering.questions.conditions import in_order
from desk_rag.answering.questions.folder.reading.kinds import CLAIMS
from desk_rag.answering.questions.folder.reading.money import Amount, NoAmount
from desk_rag.answering.questions.folder.reading.records import Record
from desk_rag.answering.questions.folder.request import Request, Role, Task
from desk_rag.answering.requirements.stems import content_stems

_WITH_WORDS = CLAIMS | {"mail", "letter", "offer", "order"}
"""Kinds of which a word that is no party's may choose some: 'invoices for heating'."""
_LETTERS_OF_SALUTATION = 60
_LEGAL_FORM = re.compile(r"(?<!\w)(?:e\.\s?v\.?|ltd\.?|limited|gmbh|ag|inc\.?|llc|plc|s\.a\.)(?!\w)")
_SENT = frozenset({"sent", "issued", "outgoing"})
_RECEIVED = frozenset({"received", "incoming"})
"""Names of folders that say who sent the invoices in them."""
_NEAR = 0.7
"""Least similarity of a name that is suggested."""


@dataclass(slots=True)
class Selection:
    """The documents of one question."""

    chosen: list[Record] = field(default_factory=list)
    only_mention: list[Record] = field(default_factory=list)
    """Documents of other parties that have the name in their text."""
    vague: list[Record] = field(default_factory=list)
    """Documents whose date is unknown or too vague."""
    without_amount: list[tuple[Record, str]] = field(default_factory=list)
    """Documents without the amount that is needed, with the reason."""
    repeated: list[tuple[Record, Record]] = field(default_factory=list)
    """A document and the one that it repeats."""
    undecided: list[Record] = field(default_factory=list)
    """Documents that do not say whether they are paid."""
    unpaid: list[Record] = field(default_factory=list)
    """Documents that say they are not paid, where the question asks what was: they are no part of the sum."""
    own: list[Record] = field(default_factory=list)
    """Documents of the own firm to others, where the question asks what 'we' paid."""
    is_sender_unknown: bool = False
    """True if the question asks what 'we' sent, and no document shows who 'we' are."""
    sent: list[Record] = field(default_factory=list)
    """Those of `chosen` that the own firm sent to others."""
    amounts: dict[int, Amount] = field(default_factory=dict)
    """Amounts by position in `chosen`."""

    @property
    def is_answer(self) -> bool:
        """True if there is something to say about some document."""
        return bool(self.chosen or self.without_amount or self.vague or self.undecided or self.unpaid)

    by_words: bool = False
    """True if the topic is no party's and was looked for in the texts."""


def select(records: Sequence[Record], request: Request) -> Selection | None:
    """The documents that the request means; None if its words fit none of them."""
    selection = Selection()
    of_topic = _of_topic(records, request, selection)
    if of_topic is None:
        return None
    own = {id(record) for record in own_documents(records)}
    if request.is_own:
        selection.is_sender_unknown = not own
        of_topic = [record for record in of_topic if id(record) in own] if own else of_topic
    elif request.is_expense:
        topic = content_stems(request.topic)
        selection.own = [record for record in of_topic if id(record) in own and not topic & content_stems(record.party)]
        of_topic = [record for record in of_topic if record not in selection.own]
    for record in _in_period(of_topic, request, selection):
        first = next((one for one in selection.chosen if _same(one, record)), None)
        if first is not None:
            selection.repeated.append((record, first))
        elif _is_paid_as_asked(record, request, selection) and _has_amount(record, request, selection):
            selection.chosen.append(record)
    selection.sent = [record for record in selection.chosen if id(record) in own]
    if request.period is not None:
        mentioning = selection.only_mention
        selection.only_mention = [record for record in mentioning if request.period.holds(record.date) is True]
    return selection


def own_documents(records: Sequence[Record]) -> list[Record]:
    """The documents that the own firm sent: by their folder, its name or, without one, by the letters of a number."""
    own = own_issuers(records)
    series = {_series(record) for record in records if _plain(record.party) in own} - {""}
    return [record for record in records if not _is_below(record, _RECEIVED) and (
        _is_below(record, _SENT) or _plain(record.party) in own or (not record.party and _series(record) in series)
    )]  # fmt: skip


def _is_below(record: Record, names: frozenset[str]) -> bool:
    """True if one of the last folders above a document has one of the names."""
    return any(part.casefold() in names for part in record.path.parts[-4:-1])


def _plain(name: str) -> str:
    """The name of a party in small letters, without its legal form."""
    return _LEGAL_FORM.sub("", name.casefold()).strip(" ,.")


def _series(record: Record) -> str:
    """The letters before the number of a document: 'LSS' of 'LSS-04'."""
    letters = re.match(r"[A-Za-z]{2,}(?=\W?\d)", record.number)
    return letters[0] if letters is not None else ""


def own_issuers(records: Sequence[Record]) -> set[str]:
    """The parties, in small letters, that the folder belongs to.

    The only one that both sends such documents and gets some of others, or those that alone wrote to several others.
    """
    written_to: dict[str, set[str]] = {}
    for record in records:
        if record.party and record.recipients:
            written_to.setdefault(_plain(record.party), set()).add(_plain(record.recipients))
    gets = {party for party in written_to for other, names in written_to.items()
            if other != party and any(content_stems(party) <= content_stems(name) for name in names)}  # fmt: skip
    if len(gets) == 1:
        return gets
    return {party for party, names in written_to.items()
            if len(names) > 1 and not set.intersection(*map(content_stems, names))  # not two spellings of one name
            and not any(names & others for other, others in written_to.items() if other != party)}  # fmt: skip


def _is_paid_as_asked(record: Record, request: Request, selection: Selection) -> bool:
    is_paid, _, _ = record.paid
    if request.paid is None:
        is_unpaid = request.is_payment and is_paid is False
        selection.unpaid += [record] if is_unpaid else []
        return not is_unpaid
    if is_paid is None:
        selection.undecided.append(record)
    return is_paid is request.paid


def _has_amount(record: Record, request: Request, selection: Selection) -> bool:
    """False for a document whose amount is needed and unknown, or not as the question wants it; notes the amount."""
    if not needs_amount(request) and request.kind.name not in CLAIMS:
        return True
    amount = record.amount(request.measure)
    if isinstance(amount, NoAmount):
        if needs_amount(request):
            selection.without_amount.append((record, amount.reason))
        return not needs_amount(request)
    limit = request.limit
    if limit is not None and not in_order(amount.value, limit.number, limit.number, limit.order):
        return False
    selection.amounts[len(selection.chosen)] = amount
    return True


def needs_amount(request: Request) -> bool:
    """True if a document without an amount cannot be decided or added."""
    return request.limit is not None or request.task in (Task.TOTAL, Task.AVERAGE, Task.LARGEST, Task.SMALLEST)


def _of_topic(records: Sequence[Record], request: Request, selection: Selection) -> list[Record] | None:
    topic = content_stems(request.topic)
    if not topic:
        return list(records)
    if request.who:
        mails = [record for record in records if record.header is not None and request.who.are(record.header)]
        topic -= content_stems(request.who.names)
        mails = [record for record in mails if topic <= content_stems(f"{record.text} {record.issuers}")]
        return mails or None
    in_text = [record for record in records if topic <= content_stems(f"{record.text} {record.issuers}")]
    if request.role is Role.MENTION:
        selection.by_words = True
        return in_text or None
    numbered = [record for record in records if record.number and content_stems(record.number) <= topic
                and any(word.lower() == record.number.lower() for word in request.topic.split())]  # fmt: skip
    if numbered:
        return numbered
    of_party = [record for record in records if topic <= _party_stems(record)]
    if not of_party:
        of_party = _of_several(records, topic)
    if not of_party:
        names = content_stems(
            " ".join(word for word in request.topic.split() if word[0].isupper() or word[0].isdigit())
        )
        of_party = [record for record in in_text if names and names < topic and names <= _party_stems(record)]
    if of_party:
        paths = {record.path for record in of_party}
        selection.only_mention = [record for record in in_text if record.path not in paths]
        return of_party
    if request.is_implied or request.kind.name not in _WITH_WORDS or not request.is_all:
        return None
    selection.by_words = True
    return in_text or None


def _of_several(records: Sequence[Record], topic: set[str]) -> list[Record]:
    """The documents of several parties whose names make up the topic: 'Kessler and Bright Paper'."""
    parties = {record.party: content_stems(record.party) for record in records if record.party}
    named = [name for name, stems in parties.items() if stems & topic]
    if len(named) < 2 or not topic <= {stem for name in named for stem in parties[name]}:
        return []
    return [record for record in records if any(parties[name] & topic <= _party_stems(record) for name in named)]


def _party_stems(record: Record) -> set[str]:
    return content_stems(f"{record.issuers} {record.recipients} {_salutation(record)}")


def _salutation(record: Record) -> str:
    """Return the person whom a letter greets: 'Dear Ms Hollis,'."""
    begin = record.text.find("Dear ")
    return record.text[begin : begin + _LETTERS_OF_SALUTATION].partition("\n")[0] if begin >= 0 else ""


def _in_period(records: Sequence[Record], request: Request, selection: Selection) -> list[Record]:
    if request.period is None:
        return list(records)
    inside = []
    for record in records:
        holds = request.period.holds(record.date)
        if holds is None:
            selection.vague.append(record)
        elif holds:
            inside.append(record)
    return inside


def _same(one: Record, other: Record) -> bool:
    """True if both are the same numbered document: a copy, or a reply that repeats it."""
    return bool(one.number) and one.number == other.number and one.kind == other.kind


def nearly(topic: str, records: Sequence[Record]) -> str:
    """The party whose name is spelled nearly like the topic; '' if none is."""
    parties = {record.party.casefold(): record.party for record in records if record.party}
    near = difflib.get_close_matches(topic.casefold(), parties, n=1, cutoff=_NEAR)
    return parties[near[0]] if near else ""
