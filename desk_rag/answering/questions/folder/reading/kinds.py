"""Tell kinds of documents: invoices, leases, minutes, mails, by folder, name, title or the labels of their lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.questions.folder.reading.fields import cells_of
from desk_rag.documents.formats import Format, format_of_name

if TYPE_CHECKING:
    from desk_rag.store.types import DocumentRow, Passage

_WORDS = {
    "invoice": "invoices?",
    "bill": "bills?",
    "receipt": "receipts?",
    "mail": r"(?:e-?)?mails?",
    "lease": r"leases?|rental\s+agreements?|tenancy\s+agreements?",
    "contract": "contracts?|agreements?",
    "letter": "letters?",
    "minutes": "minutes|protocols?",
    "report": "reports?",
    "offer": "offers?|quotations?|quotes|estimates?",
    "statement": r"(?:bank\s+)?statements?",
    "payslip": r"pay\s?slips?|salary\s+slips?",
    "order": "orders?",
    "recipe": "recipes?",
    "note": "notes?",
    "certificate": "certificates?",
    "policy": r"(?:insurance\s+)?polic(?:y|ies)",
    "PDF file": r"pdfs?(?:\s+files?)?",
    "Word file": r"word\s+(?:files?|documents?)",
    "spreadsheet": r"spreadsheets?|excel\s+(?:files?|sheets?)|workbooks?",
    "presentation": r"presentations?|slide\s+decks?|powerpoints?",
    "file": "files?|documents?|texts?",
}
_ALSO = {
    "invoice": r"rechnung(?:en)?(?:s(?=nummer|nr|datum))?|factures?",
    "receipt": "quittung(?:en)?|kassenbon",
    "lease": "mietvertrag|bail",
    "contract": "vertrag",
    "offer": "angebot|devis",
    "minutes": "protokoll",
}
"""Words for the same kinds in documents of other languages."""
MAIL_FORMATS = frozenset({Format.MAIL, Format.MAILBOX, Format.OUTLOOK})
_FORMATS = {
    "mail": MAIL_FORMATS,
    "PDF file": frozenset({Format.PDF}),
    "Word file": frozenset({Format.DOCX}),
    "spreadsheet": frozenset({Format.SHEETS, Format.TABLE}),
    "presentation": frozenset({Format.SLIDES, Format.OPEN_SLIDES}),
}
_NUMBERED = frozenset({"invoice", "bill", "receipt", "order", "offer", "policy"})
"""Kinds whose documents have a number of their own, behind the name of the kind."""
_PATTERNS = {kind: re.compile(rf"\b(?:{words})\b", re.I) for kind, words in _WORDS.items()}
_IN_DOCUMENTS = {
    kind: re.compile(rf"\b(?:{'|'.join(filter(None, (words, _ALSO.get(kind))))})\b", re.I)
    for kind, words in _WORDS.items()
}
_ABOUT_ANOTHER = re.compile(
    r"\b(?:letters?|complaints?|reminders?|repl(?:y|ies)|answers?|notes?|lists?|overviews?|summar(?:y|ies)|drafts?"
    r"|handover|templates?|payments?)\b",
    re.I,
)
"""Words in the name of a file that is about a document of another kind."""
_ABOUT_A_CLAIM = re.compile(
    r"\b(?:remind(?:ers?|ing)?|(?:order\s+)?confirmations?|delivery\s+notes?|mahnung(?:en)?|zahlungserinnerung)\b",
    re.I,
)
"""Words in the name or heading of a paper about an invoice or an order, which may repeat its number."""
_FIRST_NAME = re.compile(r"\bBill(?=\s+[A-Z][a-z])")
_IN_A_SENTENCE = re.compile(r"\b(?:[a-z]+|Mr|Dr)\.?\s+$")
"""Words before a person's name in a file name; 'Bill Trotter.txt' alone may be a bill of Trotter's."""
_NUMBER = r"(?P<number>(?=[\w./-]*\d)[A-Za-z0-9][\w./-]*[A-Za-z0-9]|\d)"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?\.?\s+[^\W\d_]+\.?\s+(?:19|20)\d\d|\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./](?:19|20)\d\d"
"""The date that may stand behind a number: 'Invoice 2214, 10 June 2022'."""
_YEAR = re.compile(r"(?:19|20)\d\d")
CLAIMS = frozenset({"invoice", "bill", "receipt"})
"""Kinds whose documents say what is to be paid or was paid."""
_ALIKE = {"invoice": "bill", "bill": "invoice"}
_AMOUNT_LINE = re.compile(
    r"^\W*(?:[\w ]{0,20}\b)?(?:total|amount|sum|due|betrag|summe)\b[^.?!\n]{0,30}?\d[\d.,]*\W*(?:\w{3,6})?$",
    re.I | re.M,
)
"""A line of an invoice that is written as a letter: 'Amount due: 936.00 pounds'."""
_MOST_HEADINGS, _LONGEST_HEADING = 4, 8
_SALUTATION = re.compile(r"^(?:Dear|Sehr\s+geehrte|Hello|Hi)\b[^\n]{0,60}[,!]?\s*$", re.M)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of document that a question names."""

    name: str
    words: str
    """The words of the question: 'bills'."""

    @property
    def alike(self) -> Kind | None:
        """A kind that people call by either name, to look for where there is no document of this one."""
        name = _ALIKE.get(self.name)
        return None if name is None else Kind(name, f"{name}s")

    @property
    def is_any(self) -> bool:
        """True for 'files' and 'documents'."""
        return self.name == "file"

    @property
    def is_format(self) -> bool:
        """True for kinds that the name of a file decides."""
        return self.name in _FORMATS

    def plural(self, count: int) -> str:
        """Return a count with the kind's noun: '1 invoice', '13 invoices'."""
        noun = self.name
        if noun == "minutes":
            noun = "file" if count == 1 else "files"
            return f"{count:,} {noun} of minutes"
        if count != 1:
            noun = f"{noun[:-1]}ies" if noun.endswith("cy") else f"{noun}s"
        return f"{count:,} {noun}"


def kind_in(text: str) -> tuple[Kind, re.Match[str]] | None:
    """The kind that a text names first, and where; a more special kind before 'files'."""
    plain = _FIRST_NAME.sub("____", text)
    matches = [(match.start(), kind == "file", kind, match)
               for kind, pattern in _PATTERNS.items() if (match := pattern.search(plain))]  # fmt: skip
    if not matches:
        return None
    special = [item for item in matches if not item[1]] or matches
    _, _, kind, match = min(special, key=lambda item: (item[0], -len(item[3].group())))
    return Kind(kind, match.group()), match


def is_of_kind(kind: Kind, row: DocumentRow, passages: Sequence[Passage], bases: Sequence[Path]) -> bool:
    """True if a document is of this kind."""
    if kind.is_any:
        return True
    formats = _FORMATS.get(kind.name)
    if formats is not None:
        return format_of_name(row.path.name) in formats
    pattern, text = _IN_DOCUMENTS[kind.name], passages[0].chunk.text if passages else ""
    is_named = any(word in passage.chunk.text.lower() for passage in passages for word in _beginnings(kind))
    numbers = numbers_of(kind, passages) if kind.name in _NUMBERED and is_named else []
    if is_ledger(passages) and len(numbers) != 1:
        return False
    head = text.lstrip().partition("\n")[0]
    name = re.sub(r"[_-]+", " ", row.path.stem)
    if kind.name in CLAIMS and any(_ABOUT_A_CLAIM.search(words) for words in (name, row.title, *_headings(text))):
        return False
    if kind.name == "letter" and _SALUTATION.search(text) and format_of_name(row.path.name) not in MAIL_FORMATS:
        return True
    if numbers:
        return True
    if format_of_name(row.path.name) in MAIL_FORMATS:
        return False
    if any(pattern.fullmatch(part.replace("_", " ")) for part in _folders(row.path, bases)):
        is_about = _SALUTATION.search(text) or _ABOUT_ANOTHER.search(pattern.sub(" ", name))
        return kind.name not in CLAIMS or not is_about or bool(_AMOUNT_LINE.search(text))
    if _ABOUT_ANOTHER.search(pattern.sub(" ", name)) or _SALUTATION.search(text):
        return False
    return bool(pattern.search(_without_first_names(name)) or pattern.match(row.title or head))


def _without_first_names(name: str) -> str:
    """The name of a file without 'Bill' where it is a person's: 'found by the postman Bill Trotter'."""
    return _FIRST_NAME.sub(lambda match: "" if _IN_A_SENTENCE.search(name[: match.start()]) else match[0], name)


def _headings(text: str) -> list[str]:
    """The short lines above the greeting of a letter, or at the beginning of another text."""
    lines = [line for line in text.split("\n") if line.strip()][:_MOST_HEADINGS]
    greeting = next((place for place, line in enumerate(lines) if _SALUTATION.match(line)), len(lines))
    return [line for line in lines[:greeting] if len(line.split()) <= _LONGEST_HEADING and not line.endswith(".")]


def _beginnings(kind: Kind) -> tuple[str, ...]:
    """The beginnings of the words for a numbered kind, for a quick look before the patterns."""
    return (
        (kind.name, "rechnung", "facture")
        if kind.name == "invoice"
        else (kind.name, _ALSO.get(kind.name, kind.name)[:5])
    )


def numbers_of(kind: Kind, passages: Sequence[Passage]) -> list[tuple[str, str]]:
    """The distinct numbers behind 'Invoice number' or 'Invoice' where a line or cell begins, with their words."""
    words = "|".join(filter(None, (_WORDS.get(kind.name, kind.name), _ALSO.get(kind.name))))
    called = r"\s*(?:number|nummer|no\.?|nr\.?|#|id)\s*"
    label = re.compile(
        rf"(?:^|;\s|(?<=:\s))(?P<quote>(?:{words}){called}[;:#]?\s*(?:\w+:\s)?{_NUMBER})", re.I | re.M
    )
    end = rf"(?=\s*(?:$|;)|[\s,–—-]+(?:{_DAY})\s*$)"
    plain = re.compile(rf"(?:^|;\s)(?P<quote>(?:tax\s+)?(?:{words})\s+{_NUMBER}){end}", re.I | re.M)
    name = r"(?-i:[A-ZÀ-ÖØ-Þ&])[\w&.'’-]*,?(?:\s+[–—-])?\s+"  # the line of the number may begin with the sender
    below_name = re.compile(
        rf"^(?:{name}){{1,6}}(?P<quote>(?:(?=(?-i:[A-Z]))|(?<=[–—-]\s))(?:{words})(?:{called}:?)?\s+{_NUMBER}){end}",
        re.I | re.M,
    )
    quotes: dict[str, str] = {}
    for pattern in (label, plain, below_name):
        for passage in passages:
            for match in pattern.finditer(passage.chunk.text):
                if not _YEAR.fullmatch(match["number"]):
                    quotes.setdefault(match["number"], match["quote"])
        if quotes:
            break
    return list(quotes.items())


def _folders(path: Path, bases: Sequence[Path]) -> list[str]:
    """The names of the folders above a file, below the bases; of the last two without a base."""
    for base in bases:
        if path.is_relative_to(base):
            return [base.name, *path.relative_to(base).parts[:-1]]
    return list(path.parts[-3:-1])


def is_ledger(passages: Sequence[Passage]) -> bool:
    """True for a table whose rows are the things themselves: at least two rows of three or more named columns."""
    if not passages or format_of_name(passages[0].path.name) not in _FORMATS["spreadsheet"]:
        return False
    lines = [line for passage in passages for line in passage.chunk.text.split("\n")]
    rows = [cells for line in lines if len(cells := cells_of(line)) >= 3]
    return sum(all(key for key, _ in cells) for cells in rows) >= 2
