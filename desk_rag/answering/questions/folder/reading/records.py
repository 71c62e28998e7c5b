"""Read the documents of one kind as records: number, date, parties, status, and what they are called."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import PassagesRead
from desk_rag.answering.questions.folder.reading.fields import Field, cells_of, fields_of
from desk_rag.answering.questions.folder.reading.kinds import Kind, is_ledger, is_of_kind, numbers_of
from desk_rag.answering.questions.folder.reading.money import Amount, Measure, NoAmount, amount_of
from desk_rag.answering.questions.folder.reading.own_dates import days_made, without_referred
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.requirements.correspondence import Header, headers
from desk_rag.answering.requirements.dates import A_YEAR, Date, dates, numeric_dates
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.store.catalog.words import name_words

if TYPE_CHECKING:
    from desk_rag.answering.questions.folder.reading.periods import Period
    from desk_rag.documents.chunking import ChunkId
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow, Passage

_REPORT_EVERY = 200
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_DATE_LABEL = re.compile(r"\bdate\b|\bdated\b|\bdatum\b|\bissued\b", re.I)
_OTHER_DATE = re.compile(r"\bdue\b|\bpay|\bdeliver|\bbirth|\bservice\b|\bperiod\b|\bfrom\b|\bend\b|\bexpir", re.I)
_ISSUER = re.compile(
    r"^(?:from|supplier|seller|vendor|issuer|issued\s+by|company|contractor|landlord|sender|by)$", re.I
)
_RECIPIENT = re.compile(r"^(?:bill(?:ed)?\s+to|to|customer|client|recipient|buyer|tenant|ship\s+to|attn\.?)$", re.I)
_STATUS = re.compile(r"^(?:status|paid|payment\s+status|settled)$", re.I)
_NOT_PAID = re.compile(
    r"\b(?:un-?paid|not\s+(?:yet\s+)?(?:been\s+)?paid|open|outstanding|overdue|unsettled|no)\b", re.I
)
_PAID = re.compile(r"\b(?:paid|settled|closed|yes|done)\b", re.I)
_PAID_LINE = re.compile(
    r"^\W*(?:(?:yes|no)\b\W*)?(?:(?:was\s+)?(?:already\s+)?paid|payment\s+received)"
    r"(?:\s+(?:on|in\s+full|in\s+cash|cash|by|with|from|via|through|at\s+once)\b.*"
    r"|:?\s+(?P<day>(?=\S*\d|[^\W\d_]+\.?\s+\d).*)|\W*)$",
    re.I,
)
_DATED_LINE = re.compile(r"^\W*(?:dated|date(?:\s+of\s+\w+)?|as\s+of)\b:?(?P<day>(?:\s+\S+){1,6})\s*$", re.I | re.M)
"""'Dated 3 October 2022', by itself in a line near the beginning."""
_DATE_OF_HEADER = re.compile(r"; Date: ([^;]+)")
_BEGINNING = 600
_END_OF_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_SAYS_UNPAID = re.compile(
    r"\bunpaid\b|\bnot\s+(?:yet\s+)?(?:been\s+)?paid\b|^\W*nothing\s+(?:yet|so\s+far|received)\b|^\W*no\s+payment\b",
    re.I,
)
_ADDRESSEE = re.compile(r"^(?:Delivered\s+t|T)o\s+(?P<name>[A-Z][^.:;!?\n]{2,60})$", re.M)
"""'To Dene & Son, Funeral Directors', by itself in a line near the beginning."""
_NAME_WORD = r"(?:[A-ZÀ-ÖØ-Þ&][\w&'’-]*|e\.\s?V|of|and|the|de|van)"
_SIDES = re.compile(
    rf"^(?P<sender>(?=[A-ZÀ-ÖØ-Þ])(?!(?:\w+ed|Sent|Sold|Lent|Given|Paid|Bill|Ship|Dear|Invoice|Attn)\b)(?:{_NAME_WORD}\.?\s+){{1,6}})to\s+(?P<recipient>(?:{_NAME_WORD}(?:\s+|(?=[.,;]|$))){{1,7}})",
    re.M,
)
"""'Pinder Boats to Quayside School, Mr Toll.', at the beginning of a line near the beginning."""
_HEAD_LINES, _HEAD_WORDS, _ADDRESS_PARTS = 3, 8, 4
"""Most lines of a head, most words of such a line or of a part of an address, and the fewest parts of one."""
_LEVELS = " › "
"""Separator of title and headings in the first line of a passage."""


@dataclass(frozen=True)
class Record:
    """A document, or a mail of a mailbox, with what can be read from it."""

    kind: Kind
    row: DocumentRow
    passages: tuple[Passage, ...]
    header: Header | None = None
    """The header, if it is a mail."""
    header_line: str = ""
    """The line of a mail that names sender, recipients, date and subject."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.row.path

    @cached_property
    def fields(self) -> list[Field]:
        """Labels and values."""
        return fields_of(self.passages)

    @cached_property
    def text(self) -> str:
        """All text; of a mail in a mailbox that of its passage."""
        return "\n".join(passage.chunk.text for passage in self.passages)

    @cached_property
    def numbers(self) -> list[tuple[str, str]]:
        """The document's own numbers, each with the words around it."""
        return numbers_of(self.kind, self.passages)

    @property
    def number(self) -> str:
        """The document's own number; '' unless there is exactly one."""
        return self.numbers[0][0] if len(self.numbers) == 1 else ""

    @property
    def _lines_of_number(self) -> list[str]:
        """What follows the number in its line: 'Invoice 2214, 10 June 2022'."""
        behind = (self.text.partition(quote)[2] for _, quote in self.numbers)
        return [text.partition("\n")[0] for text in behind]

    @cached_property
    def date(self) -> Date | None:
        """The document's own date: labelled, of a header, a line, the name, title or signature, or its only one.

        A table, each row of which has a day of its own, has only that of its name.
        """
        if is_ledger(self.passages):
            named = all_dates(f"{self.path.stem.replace('_', ' ')}\n{self.row.title}")
            return next((day for day in named if day.month and day.year), self._year_named)
        labelled = [
            field for field in self.fields if _DATE_LABEL.search(field.label) and not _OTHER_DATE.search(field.label)
        ]
        own = sorted(labelled, key=lambda field: not content_stems(field.label) & content_stems(self.kind.name))
        texts = [field.value for field in own]
        if self.header is not None:
            texts = [*_DATE_OF_HEADER.findall(self.header_line), self.header_line]
        texts += [match["day"] for match in _DATED_LINE.finditer(self.text[:_BEGINNING])]
        texts += self._lines_of_number
        texts += [self.path.stem.replace("_", " "), self.row.title, *self.head]
        texts = [*map(without_referred, texts), *days_made(self.text)]
        for text in texts:
            if of_text := [day for day in all_dates(text) if day.month and day.year]:
                return of_text[0]
        of_text = list(dict.fromkeys(day for day in all_dates(without_referred(self.text)) if day.year))
        if len(of_text) == 1:
            return of_text[0]
        return self._year_named

    @property
    def _year_named(self) -> Date | None:
        """The year in the name of the file or of a folder above it."""
        names = (self.path.stem, *reversed(self.path.parts[-4:-1]))
        years = [year for name in names for year in A_YEAR.findall(name)]
        return Date(int(years[0]), 0, 0) if years else None

    @cached_property
    def head(self) -> list[str]:
        """The short lines before the first label or sentence: a letterhead, a title; cells of a row by themselves."""
        lines: list[str] = []
        for line in filter(str.strip, self.text.split("\n")):
            cells = [value for _, value in cells_of(line)]
            parts = line.split(", ") if line.count(", ") >= _ADDRESS_PARTS - 1 else [line]
            is_long = any(len(re.findall(r"\w\S*", part)) > _HEAD_WORDS for part in parts)
            is_text = is_long or re.search(r":\s|[.!?]$", line)
            if len(lines) >= _HEAD_LINES or (is_text and not (cells and not lines)):
                break
            lines += cells or [line]
        return lines

    @cached_property
    def issuers(self) -> str:
        """The words that may name who issued or sent it: sender, labels, title, head and name of the file."""
        if self.header is not None:
            return self.header.sender
        of_labels = [field.value for field in self.fields if _ISSUER.match(field.label)]
        others = {word for field in self.fields if _RECIPIENT.match(field.label) for word in [field.value]}
        head = [line for line in self.head if not any(other in line for other in others)]
        return " \n ".join([*of_labels, *self._sides[:1], *head, self.row.title, name_words(self.path)])

    @cached_property
    def recipients(self) -> str:
        """The words that name to whom it goes."""
        if self.header is not None:
            return self.header.recipients
        labelled = [field.value for field in self.fields if _RECIPIENT.match(field.label)]
        named = [match["name"] for match in _ADDRESSEE.finditer(self.text[:_BEGINNING])][:1]
        return " \n ".join(labelled or self._sides[1:] or named)

    @cached_property
    def _sides(self) -> list[str]:
        """The names of sender and recipient, if one line gives both; else none."""
        match = _SIDES.search(self.text[:_BEGINNING])
        return [] if match is None else [match["sender"].strip(), match["recipient"].strip()]

    @cached_property
    def party(self) -> str:
        """The issuer by a label, the header of a mail or the first line, without an address; '' if none names one."""
        if self.header is not None:
            return self.header.sender
        labelled = [field.value for field in self.fields if _ISSUER.match(field.label)]
        if labelled or self._sides:
            return [*labelled, *self._sides][0]
        quotes = [quote for _, quote in self.numbers]
        heads = (min((line.partition(quote)[0] for quote in quotes), key=len, default=line) for line in self.head)
        lines = (line.split(_LEVELS)[0].strip(" –—-,") for line in heads)
        lines = (line for line in lines if not _ADDRESSEE.match(line))
        names = (re.split(r",|\s+\d", line)[0] if re.search(r"\d", line) else line for line in lines)
        return next((name for name in names if 1 < len(name.split()) <= 5 and not re.search(r"[:;\d]", name)), "")

    @cached_property
    def paid(self) -> tuple[bool | None, str, Passage | None]:
        """True or False if it says that it is paid or not, None without a word on it; and the words that say so."""
        for field in self.fields:
            if _STATUS.match(field.label):
                answer = False if _NOT_PAID.search(field.value) else True if _PAID.search(field.value) else None
                if answer is not None or any(all_dates(field.value)):
                    return (True if answer is None else answer), field.quote, field.passage
        for passage in self.passages:
            for line in passage.chunk.text.split("\n"):
                for sentence in _END_OF_SENTENCE.split(line):
                    if _SAYS_UNPAID.search(sentence):
                        return False, sentence, passage
                    line_of_payment = _PAID_LINE.match(sentence)
                    if line_of_payment is not None and (
                        not line_of_payment["day"] or any(all_dates(line_of_payment["day"]))
                    ):
                        return True, sentence, passage
        return None, "", None

    def amount(self, measure: Measure = Measure.TOTAL) -> Amount | NoAmount:
        """The amount of the document."""
        return amount_of(self.fields, self.passages, measure)


@dataclass(frozen=True, slots=True)
class Reading:
    """The documents of some kinds, and what was read to find them."""

    records: tuple[Record, ...]
    ledgers: tuple[tuple[DocumentRow, tuple[Passage, ...]], ...]
    """Tables whose rows are not documents of their own."""
    passages: int
    files: int
    copies: Mapping[Path, tuple[Path, ...]]
    """Files of the same content as one that was read in their place; none if files are what is asked for."""

    @property
    def parties(self) -> list[str]:
        """The names of senders, recipients and parties, each once."""
        names = [name for record in self.records for name in (record.party, *record.recipients.split("\n"))]
        return list(dict.fromkeys(filter(None, map(str.strip, names))))

    def only(self, kinds: Sequence[Kind]) -> Reading:
        """The documents of some of the kinds."""
        names = {kind.name for kind in kinds}
        return replace(self, records=tuple(record for record in self.records if record.kind.name in names))


def read(store: Store, kinds: Sequence[Kind], under: Sequence[Path]) -> Generator[PassagesRead, None, Reading]:
    """Read every document below the folders `under`; yield progress and return those of the kinds."""
    documents = indexed(store, under)
    copies = {} if all(kind.is_any or kind.is_format for kind in kinds) else distinct(documents)
    rows = list(copies) or list({row.path: row for row in documents}.values())
    total, done = sum(row.num_chunks for row in rows), 0
    records: list[Record] = []
    ledgers: list[tuple[DocumentRow, tuple[Passage, ...]]] = []
    chunks: set[ChunkId] = set()
    for row in rows:
        passages = tuple(store.passages_of(row.path))
        chunks.update(passage.chunk.chunk_id for passage in passages)
        if done // _REPORT_EVERY != (done + len(passages)) // _REPORT_EVERY:
            yield PassagesRead(done + len(passages), total)
        done += len(passages)
        kind = next((kind for kind in kinds if is_of_kind(kind, row, passages, under)), None)
        if kind is not None:
            records += records_of(kind, row, passages)
        elif is_ledger(passages):
            ledgers.append((row, passages))
    of_file = {row.path: others for row, others in copies.items() if others}
    return Reading(tuple(records), tuple(ledgers), len(chunks), len(rows), of_file)


def records_of(kind: Kind, row: DocumentRow, passages: tuple[Passage, ...]) -> Iterator[Record]:
    """The record of a document; of a mailbox one for each mail, if mails are wanted."""
    mails: dict[str, tuple[Passage, Header]] = {}
    for passage in passages:
        place = place_of_passage(passage)
        for header in headers(place):
            mails.setdefault(place.text[header.begin : header.end], (passage, header))
    if kind.name == "mail" and mails:
        for line, (passage, header) in mails.items():
            yield Record(kind, row, (passage,) if len(mails) > 1 else passages, header, line)
    elif len(mails) == 1:
        ((line, (_, header)),) = mails.items()
        yield Record(kind, row, passages, header, line)
    else:
        yield Record(kind, row, passages)


def all_dates(text: str) -> list[Date]:
    """The dates in a text, also '12.03.2021' and '25/03/2021'; of one that may be read in two ways only the year."""
    numeric = [days[0] if len(days) == 1 else Date(days[0].year, 0, 0) for _, days in numeric_dates(text)]
    return [*dates(text), *numeric]


def is_in(row: str, path: Path, period: Period) -> bool | None:
    """True if the dates of a table's row lie in the period, or without any the year in its file's name; else None."""
    days = [day for day in all_dates(row) if day.year]
    days = days or [Date(int(year), 0, 0) for year in A_YEAR.findall(path.stem)]
    answers = {period.holds(day) for day in days}
    return True if True in answers else False if False in answers else None
