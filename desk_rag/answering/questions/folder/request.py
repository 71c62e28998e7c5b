"""Read a question about documents as a whole: what is computed, of which kind, whose, of which time."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import Enum

from desk_rag.answering.questions.conditions import Order, order_of
from desk_rag.answering.questions.folder.reading.kinds import CLAIMS, Kind, kind_in
from desk_rag.answering.questions.folder.reading.money import Measure, measure_of, parsed
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.requirements.correspondence import Correspondents, correspondents
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.answering.requirements.titles import without_titles


class Task(Enum):
    """A result that is wanted of the documents."""

    TOTAL = "total"
    AVERAGE = "average"
    COUNT = "count"
    LIST = "list"
    LATEST = "latest"
    OLDEST = "oldest"
    LARGEST = "largest"
    SMALLEST = "smallest"
    WHETHER_PAID = "whether paid"


class Role(Enum):
    """A relation between documents and the names of a question."""

    PARTY = "of"
    """The party to whom or from whom the document is: sender, supplier, customer."""
    MENTION = "mentioning"


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition on the amount: 'over 1,000 euros'."""

    words: str
    order: Order
    number: Decimal


@dataclass(frozen=True, slots=True)
class Request:
    """A question about the documents of one kind."""

    task: Task
    kind: Kind
    topic: str
    """Its remaining words: names and things."""
    topic_as_asked: str
    """The same with the small words between them: 'Friends of Bethel'."""
    role: Role
    period: Period | None
    limit: Limit | None
    paid: bool | None
    measure: Measure
    is_implied: bool
    """True if the question does not name the kind: 'How much did we pay Kessler?'"""
    is_one: bool
    """True if the question speaks of one document: 'the invoice'."""
    is_all: bool
    """True if the question asks for all of them, or for the plural: 'all invoices', 'which invoices'."""
    folder: str
    """The folder that the question names; '' for none."""
    group: str
    """The column by which results are grouped: 'year', 'month' or 'party'; '' for none."""
    who: Correspondents
    """Sender and recipient of mails."""
    is_payment: bool
    """True if it asks what was paid: documents that say they are not paid are named."""
    not_understood: str
    """Words of a condition that no rule reads; '' for none."""
    is_expense: bool
    """True if it asks what 'I' or 'we' paid, owe or were charged: invoices to others are none of its documents."""
    is_own: bool = False
    """True if it asks for the invoices that the own firm sent: 'our own invoices'."""
    most: int = 1
    """Number of the latest, oldest, largest or smallest that are wanted."""


_LIMIT = re.compile(
    r"\b(?:(?:that|which)\s+)?(?:(?:is|are|was|were|cost|costs|worth|of|for|with\s+(?:a\s+total\s+of\s+)?)\s*)*"
    r"(?P<order>over|above|more\s+than|exceeding|at\s+least|under|below|less\s+than|at\s+most|up\s+to)\s+"
    r"(?:[€$£¥]|EUR|USD|GBP|CHF)?\s?(?P<number>\d[\d.,]*\d|\d)(?:\s?(?:[€$£¥]|euros?|EUR|USD|GBP|CHF|dollars?|pounds?|francs?|crowns?))?"
    r"(?![\d.,]*\s*(?:days?|weeks?|months?|years?|pages?)\b)",
    re.I,
)
_NOT_UNDERSTOOD = re.compile(
    r"\b(?:(?:for|since|by)\s+)?(?:(?:more|less|fewer|other|better|worse|[a-z]{3,}er)\s+than|except(?:\s+for)?|without|apart\s+from|unless"
    r"|but\s+not|not|never|neither|nor|at\s+(?:least|most)|exactly)\b.*",
    re.I,
)
"""Words of a condition that may be left when all that is understood has been taken from a question."""
_PAID = re.compile(
    r"\b(?:(?:that|which)\s+)?(?:(?:is|are|was|were|have|has|do|did)\s+)?(?:(?:been|still|already|be|I|we|to)\s+)*"
    r"(?:(?P<no>unpaid|not\s+(?:yet\s+)?(?:been\s+)?(?:paid|settled)|outstanding|overdue|open|unsettled|owe|have\s+to\s+pay)"
    r"|(?P<yes>paid|settled))(?:\s+yet)?(?=\s*$|\s+(?:invoices?|bills?|receipts?)\b|\s+(?:of|from|by|in)\b)",
    re.I,
)
_POLITE = re.compile(
    r"^(?:please,?\s+|and\s+|(?:can|could|would|will)\s+you\s+(?:please\s+)?(?:tell\s+me\s+)?"
    r"|i(?:\s+would|['’]d)\s+like\s+(?:you\s+)?to\s+|do\s+you\s+know\s+|tell\s+me\s+(?=what|how|which))",
    re.I,
)
_ADJECTIVES = {
    Task.LATEST: r"latest|newest|most\s+recent|last",
    Task.OLDEST: r"oldest|earliest|first",
    Task.LARGEST: r"largest|biggest|highest|most\s+expensive|dearest|costliest",
    Task.SMALLEST: r"smallest|lowest|cheapest|least\s+expensive",
}
_IN_TOTAL = r"(?:,?\s+(?:in\s+total|in\s+all|altogether|overall|so\s+far))?"
_AMOUNTS = (
    r"(?:total|sum|grand\s+total|(?:total\s+|overall\s+)?(?:amount|value|cost|sum|VAT|tax)|net\s+(?:amount|total))"
)
_PAY = r"(?:pay|paid|spend|spent|owe|owed)"
_COUNTS = "two three four five six seven eight nine ten".split()  # noqa: SIM905
_COUNT = rf"{'|'.join(_COUNTS)}|[2-9]|[1-9]\d"
_FORMS: tuple[tuple[Task, re.Pattern[str]], ...] = (
    (Task.COUNT, re.compile(r"^how\s+many\s+(?:different\s+)?(?P<subject>.+)", re.I)),
    (Task.COUNT, re.compile(r"^(?:what\s+is\s+the\s+number\s+of|count)\s+(?P<subject>.+)", re.I)),
    (Task.AVERAGE, re.compile(rf"^what\s+(?:is|was)\s+the\s+average\s+(?:{_AMOUNTS}\s+)?(?:of\s+|per\s+)?"
                              r"(?P<subject>.+)", re.I)),
    (Task.TOTAL, re.compile(rf"^(?:what\s+(?:is|was|are|were)|how\s+(?:much|high)\s+(?:is|was|are))\s+the\s+"
                            rf"(?P<measure>{_AMOUNTS})(?:\s+amount)?\s+(?:of|on|for|from|in)\s+(?P<subject>.+)", re.I)),
    (Task.TOTAL, re.compile(r"^(?:what\s+(?:is|was)\s+)?(?:the\s+)?(?:total|sum)(?P<subject>)$", re.I)),
    (Task.TOTAL, re.compile(rf"^(?:add|sum|total)\s+(?:up\s+)?(?!up\b)(?:of\s+)?(?P<subject>.+?){_IN_TOTAL}$", re.I)),
    (Task.TOTAL, re.compile(rf"^(?:what|how\s+much)\s+(?P<measure>(?:VAT|tax|net)\s+)?(?:money\s+)?"
                            rf"(?:did|have|do|had|has)\s+(?:I|we)\s+{_PAY}\s+"
                            rf"(?:(?:to|on|at|for|with)\s+)?(?P<payee>.+?){_IN_TOTAL}$", re.I)),
    (Task.TOTAL, re.compile(rf"^(?:what|how\s+much)\s+(?:did|have|has|do|does)\s+(?P<payee>(?!I\s|we\s).+?)\s+"
                            rf"(?:pay|paid|owe|owed?)\s+(?:me|us)\b(?P<when>.*?){_IN_TOTAL}$", re.I)),
    (Task.TOTAL, re.compile(rf"^(?:what|how\s+much)\s+(?:did|have|has|do|does)\s+(?P<payee>(?!I\s|we\s).+?)\s+"
                            rf"(?:charged?|bill(?:ed)?|invoiced?)(?:\s+(?:me|us))?(?P<when>(?:\s+(?:in|since|until|between)\b.*)?)"
                            rf"{_IN_TOTAL}$", re.I)),
    (Task.TOTAL, re.compile(rf"^(?:what|how\s+much)\s+(?:did|have|had|do)\s+(?:I|we)\s+"
                            r"(?:bill(?:ed)?|invoiced?|charged?)\s+"
                            rf"(?P<invoiced>.+?){_IN_TOTAL}$", re.I)),
    (Task.TOTAL, re.compile(rf"^(?:what|how\s+much)\s+(?:was|were|is|has\s+been|have\s+been)\s+(?:billed|invoiced)\s+"
                            rf"(?P<invoiced>(?:to|by|in|since|until|between)\s+.+?){_IN_TOTAL}$", re.I)),
    (Task.TOTAL, re.compile(r"^(?:what|how\s+much)\s+(?:has|have|did|does|do)\s+(?P<invoiced>(?!I\s|we\s).+?\s+"
                            r"not\s+(?:yet\s+)?paid(?:\s+(?:me|us))?(?:\s+yet)?)$", re.I)),
    (Task.TOTAL, re.compile(rf"^(?:what|how\s+much)\s+(?:is|was|are|were|do|did|does)\s+(?P<subject>.+?)\s+"
                            rf"(?:come\s+to|amount\s+to|add\s+up\s+to|total|sum\s+up\s+to|cost){_IN_TOTAL}$", re.I)),
    (Task.TOTAL, re.compile(r"^how\s+much\s+(?P<measure>VAT|tax|net)\s+(?:is|was|are|were|stands?)\s+(?:there\s+)?"
                            r"(?:in|on)\s+(?P<subject>.+)", re.I)),
    (Task.TOTAL, re.compile(r"^how\s+much\s+(?:is|was|are|were|money\s+is\s+in)\s+(?P<subject>.+?),?\s+"
                            r"(?:in\s+total|altogether|together)$", re.I)),
    (Task.TOTAL, re.compile(r"^how\s+much\s+(?:is|was|are|were)\s+(?P<subject>.+)", re.I)),
    *((task, re.compile(rf"^(?:(?:what|which|when)(?:['’]s|\s+(?:is|was|are|were))\s+(?:the\s+date\s+of\s+)?"
                        rf"|(?:show|give|find|open|list)\s+(?:me\s+)?)?(?:the|my|our)\s+(?:(?:{words})\s+(?:(?P<most>{_COUNT})\s+)?"
                        rf"|(?P<count>{_COUNT})\s+(?:{words})\s+)(?P<subject>.+)", re.I))
      for task, words in _ADJECTIVES.items()),
    *((task, re.compile(rf"^(?:which|what)\s+(?:(?P<most>{_COUNT})\s+)?(?P<subject>.+?)\s+(?:is|was|are|were)\s+"
                        rf"(?:the\s+)?(?:{words})$", re.I))
      for task, words in _ADJECTIVES.items()),
    (Task.LIST, re.compile(r"^(?:list|show|give|find|name|display|print|open)\s+(?:me\s+)?"
                           r"(?P<all>(?:all|every|each)\s+(?:of\s+)?)?(?:(?:the|my|our)\s+)?(?P<subject>.+)", re.I)),
    (Task.LIST, re.compile(r"^(?:what|which)\s+(?:of\s+(?:(?:the|my|our|all)\s+)*)?(?P<subject>.+)", re.I)),
    (Task.LIST, re.compile(r"^(?:all|every)\s+(?P<subject>.+)", re.I)),
    (Task.WHETHER_PAID, re.compile(r"^(?:is|are|was|were|has|have)\s+(?:(?:the|my|our)\s+)?(?P<subject>.+?)\s+"
                                   r"(?:(?:already|now|still|ever|been)\s+)*"
                                   r"(?:paid|settled|unpaid|outstanding|overdue)(?:\s+yet)?$", re.I)),
    (Task.WHETHER_PAID, re.compile(r"^when\s+(?:was|were|has|have)\s+(?:(?:the|my|our)\s+)?"
                                   r"(?P<subject>.*\b(?:invoice|bill)s?\b.*?)\s+(?:been\s+)?(?:paid|settled)$", re.I)),
    (Task.WHETHER_PAID, re.compile(r"^(?:has|have|did)\s+(?P<invoiced>(?!(?:I|we|you|they|he|she|it)\s)[^,]+?)\s+"
                                   r"(?:already\s+)?(?:paid|pay|settled?)(?:\s+(?:me|us"
                                   r"|(?:the|his|her|its|their|our|my)\s+(?:invoices?|bills?)))?(?:\s+yet)?$", re.I)),
    (Task.WHETHER_PAID, re.compile(r"^(?:has|have)\s+(?P<invoiced>(?-i:[A-Z])[^,]*?)\s+(?:already\s+|ever\s+)?been\s+"
                                   r"paid(?:\s+yet)?(?:\s+for\s+.+)?$", re.I)),
    (Task.WHETHER_PAID, re.compile(r"^(?:was|were)\s+(?P<invoiced>(?-i:[A-Z])[^,]*?)\s+paid\s+for\s+.+$", re.I)),
    (Task.LIST, re.compile(r"^(?:(?:the|my|our)\s+)?(?P<subject>(?:(?:e-?)?mails?|invoices|bills|receipts|letters"
                           r"|offers)\s+(?:of|from|by|to|between|in|about)\s+.+)", re.I)),
)  # fmt: skip
_MENTION = re.compile(
    r"\b(?:(?:that|which)\s+)?(?:mention(?:s|ed|ing)?|contain(?:s|ing)?|speaks?\s+of|names?|nam(?:ed|ing)|about|refer(?:s|ring)?\s+to"
    r"|talks?\s+about|concern(?:s|ing)?|with\s+the\s+words?)\b",
    re.I,
)
_LINKS = re.compile(
    r"\b(?:are|is|were|was|there|do|does|did|have|has|had|I|we|you|me|my|our|the|a|an|all|any|every|each|these|those|of|from"
    r"|by|between|to|for|with|in|at|on|that|which|who|sent?|sends?|sending|got|get|gets|received?|issued?|write|wrote|written|come|came"
    r"|exist|exists|here|total|totals|amounts?|paid|pay|folder|altogether|together|my|it|its|be|been|year|month|dated"
    r"|went|go|goes|gone|came|different|so|far|now|currently|makes?|made|creat(?:e|ed)|prepar(?:e|ed)|submit(?:ted)?|left|please)\b|['’]s\b",
    re.I,
)
_POSSIBLE = re.compile(
    r"\b(?:can|could|(?<!\bin )may|must|should|shall|would|will|allowed|needed|at\s+most|at\s+least\s+once)\b(?!\s+\d)"
)
"""Words of a question about what is possible or due, which a text states: 'How many mails can the server send?'"""
_GROUP = re.compile(
    r"\b(?:per|by|for\s+each|for\s+every|each|every|in\s+each|in\s+every|to\s+each)\s+"
    r"(?P<unit>year|month|supplier|customer|client|company|party|vendor|sender|person)\b",
    re.I,
)
_PAYS = re.compile(r"\b(?:pay|paid|spend|spent)\b", re.I)
_OWN_EXPENSE = re.compile(rf"\b(?:I|we)\s+(?:still\s+)?{_PAY}\b|\b(?:charged?|bill(?:ed)?|invoiced?)\b", re.I)
_TO_PAY = re.compile(
    r"\b(?:I|we)\s+(?:still\s+)?(?:owe|(?:have|need)\s+to\s+pay|must\s+pay)\b"
    r"|\b(?:I|we)\s+(?:have\s+|had\s+)?(?:received?|got|get|were\s+sent|been\s+sent)\b|\bsen[dt]\s+(?:to\s+)?(?:us|me)\b",
    re.I,
)
"""Words of a question for what others sent, and what is to be paid."""
_OWN = re.compile(
    r"\b(?:my|our)\s+own\s+(?:(?:un)?paid\s+|open\s+|outstanding\s+)?(?=invoices?\b|bills?\b)"
    r"|\s+(?:(?:that|which)\s+)?(?:I|we)\s+(?:have\s+|had\s+)?(?:sent|issued|wrote|written)(?:\s+out)?\b"
    r"|\s+(?:did|do|have|had)\s+(?:I|we)\s+(?:sen[dt]|issued?|write|written)(?:\s+out)?\b",
    re.I,
)
_WE_INVOICED = re.compile(r"\b(?:did|do|have|had)\s+(?:I|we)\s+(?:invoice|bill|charge)(?:e?d)?\b", re.I)
_OWED = re.compile(r"\bow(?:e[sd]?|ing)\b", re.I)
_FOLDER = re.compile(
    r"\s(?:in|of|from|under|inside|below)\s+(?:(?:the|my|our)\s+)?(?:(?:folder|directory)\s+(?:(?:called|named)\s+)?(?P<behind>\S.*)"
    r"|(?P<before>[\w-]+)\s+(?:folder|directory)|(?P<path>[\w./-]+/))\s*$",
    re.I,
)
_NUMBER_ALONE = re.compile(r"[A-Z]{1,8}[-/. ]?\d[\w/.-]*")
"""'INV-2025-12' in 'Is INV-2025-12 paid?'"""
_SINGULAR = re.compile(
    r"\b(?:the|this|that|an?|which|what)\s+(?:[\w&.'’-]+\s+){0,4}?(?:invoice|bill|receipt|lease|contract|letter|e?-?mail|report|offer|order)\b(?!s)",
    re.I,
)


def request_of(question: str, today: date) -> Request | None:
    """The request for documents in a question; None if it has not that form.

    The form alone does not decide: a caller that finds no such documents goes on as with other questions.
    """
    plain = without_titles(_POLITE.sub("", " ".join(question.split()).rstrip("?!. "))).strip()
    is_own = _OWN.search(plain) is not None and re.search(r"\b(?:invoice|bill)", plain, re.I) is not None
    plain = _OWN.sub(" ", plain) if is_own else plain
    if _POSSIBLE.search(plain):
        return None
    for task, pattern in _FORMS:
        match = pattern.match(plain)
        if match is None:
            continue
        groups = match.groupdict()
        if "invoiced" in groups:
            groups["subject"] = f"invoices of {groups['invoiced']}"
        subject = groups["subject"] if "subject" in groups else f"{groups['payee']} {groups.get('when') or ''}"
        subject = subject or "invoices"  # 'What is the total?' below an '@' name
        if task is Task.WHETHER_PAID and _NUMBER_ALONE.fullmatch(subject):
            subject = f"invoice {subject}"
        request = _of_subject(task, subject, today, groups, plain)
        if request is not None and (task is not Task.WHETHER_PAID or _names_claims(request)):
            return replace(request, is_own=is_own or _WE_INVOICED.search(plain) is not None)
    return None


def _of_subject(task: Task, subject: str, today: date, groups: dict[str, str | None], plain: str) -> Request | None:
    is_payment = groups.get("payee") is not None
    rest, group = _take_group(subject)
    rest, folder = _take_folder(rest)
    rest, limit = _take_limit(rest)
    rest, paid = _take_paid(rest)
    if is_payment and _OWED.search(plain):
        paid = False
    rest, period = take_period(rest, today)
    kind_found = kind_in(rest)
    if kind_found is None:
        if not is_payment:
            return None
        if not content_stems(_topic(rest)) and not group and period is None:
            return None
        kind, before, after = Kind("invoice", "invoices"), rest, ""
    else:
        kind, match = kind_found
        before, after = rest[: match.start()], rest[match.end() :]
        if task in (Task.LIST, Task.COUNT) and not groups.get("all") and not _opens_with_kind(before):
            return None
    unread_words = _NOT_UNDERSTOOD.search(after) or _NOT_UNDERSTOOD.search(before)
    words = unread_words.group().split() if unread_words is not None else []
    if len(words) == 1 and period is not None:  # 'not from 2024'
        words.append(period.words)
    not_understood = " ".join(words).removesuffix(" and")
    role = Role.MENTION if _MENTION.search(f"{before} {after}") else Role.PARTY
    topic = _topic(f"{before} {after}")
    is_between = re.search(r"\bbetween\b", before + after) is not None
    who = correspondents(plain) if kind.name == "mail" and not is_between else Correspondents("", "")
    if kind.is_any and task in (Task.TOTAL, Task.AVERAGE, Task.LARGEST, Task.SMALLEST):
        return None
    measure = measure_of(groups.get("measure") or "") or Measure.TOTAL
    if measure is Measure.PLAIN:
        measure = Measure.TOTAL
    is_one = kind_found is not None and bool(_SINGULAR.search(plain)) and task in (Task.TOTAL, Task.LIST)
    if kind.name == "mail" and task is Task.LIST and re.match(r"(?:show|find|open|the\s|e?-?mail)", plain, re.I):
        is_one = False  # 'Show the mail about the keys': those that fit are shown
        groups = {**groups, "all": "the"}
    is_all = bool(groups.get("all")) or kind.words.lower().endswith("s")
    return Request(
        task, kind, topic, _as_asked(topic, f"{before} {after}"), role, period, limit, paid, measure,
        kind_found is None, is_one, is_all, folder, group, who, is_payment and bool(_PAYS.search(plain)),
        not_understood, bool((is_payment and _OWN_EXPENSE.search(plain)) or _TO_PAY.search(plain)), most=_most(groups),
    )  # fmt: skip


def _names_claims(request: Request) -> bool:
    """True if a request names invoices by more than their kind."""
    return request.kind.name in CLAIMS and bool(request.topic)


def _most(groups: dict[str, str | None]) -> int:
    """The number in 'the last three mails'; 1 without one."""
    word = (groups.get("most") or groups.get("count") or "1").lower()
    return _COUNTS.index(word) + 2 if word in _COUNTS else int(word)


def _opens_with_kind(before: str) -> bool:
    """True if only a name or an adjective stands before the kind: 'Kessler invoices', not 'rooms are in the lease'."""
    words = before.split()
    return len(words) <= 4 and not re.search(
        r"\b(?:are|is|were|was|has|have|does|do|did|in|of|on|at|can|per|to)\b", before, re.I
    )


def _topic(text: str) -> str:
    """The words that are left for names and things, in order."""
    plain = re.sub(r"[?!,;:\"“”()]", " ", _LINKS.sub(" ", _MENTION.sub(" ", text)))
    words = [word.strip(".'’") for word in plain.split()]
    content_words = [word for word in words if content_stems(word) or word in ("and", "&")]
    while content_words and not content_stems(content_words[-1]):
        content_words.pop()
    while content_words and not content_stems(content_words[0]):
        content_words.pop(0)
    return " ".join(content_words)


def _as_asked(topic: str, text: str) -> str:
    """The topic with the small words that stand between its words in the text; the topic if others stand there."""
    between = r"[\s'’]+(?:(?:of|the|at|in|on|for|and|from|s)\s+){0,3}"
    match = re.search(between.join(map(re.escape, topic.split())), text) if topic else None
    return match.group() if match is not None else topic


def _take_group(text: str) -> tuple[str, str]:
    match = _GROUP.search(text)
    if match is None:
        return text, ""
    unit = match["unit"].lower()
    rest = f"{text[: match.start()]} {text[match.end() :]}"
    return " ".join(rest.split()), unit if unit in ("year", "month") else "party"


def _take_folder(text: str) -> tuple[str, str]:
    match = _FOLDER.search(text)
    if match is None:
        return text, ""
    rest = f"{text[: match.start()]} {text[match.end() :]}"
    return " ".join(rest.split()), (match["behind"] or match["before"] or match["path"]).strip("\"'“”/ ")


def _take_limit(text: str) -> tuple[str, Limit | None]:
    match = _LIMIT.search(text)
    if match is None or re.fullmatch(r"(?:19|20)\d\d", match["number"]):
        return text, None
    rest = f"{text[: match.start()]} {text[match.end() :]}"
    words = match.group()[match.start("order") - match.start() :].strip()
    return " ".join(rest.split()), Limit(words, order_of(match), parsed(match["number"]))


def _take_paid(text: str) -> tuple[str, bool | None]:
    match = _PAID.search(text)
    if match is None:
        return text, None
    rest = f"{text[: match.start()]} {text[match.end() :]}"
    return " ".join(rest.split()), match["yes"] is not None
