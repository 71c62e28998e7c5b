"""Tell who wrote to whom: in questions such as 'What did Ana write to Ben?', and in the headings of mails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile

from desk_rag.answering.requirements.mentions import is_time
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.answering.requirements.titles import without_titles
from desk_rag.store.catalog.words import STOP_WORDS

_PERSON = r"[^\W\d_][\w’-]*(?:\s+(?-i:[A-Z])[\w’-]*)*"
_SAY = (
    r"(?:writ(?:e|ten|es)|wrote|say|says|said|tell|tells|told|sen[dt]s?|repl(?:y|ies|ied)|answer(?:ed|s)?"
    r"|e?-?mail(?:ed|s)?|asks?|asked|promise[sd]?|suggest(?:ed|s)?|offer(?:ed|s)?|propose[sd]?|report(?:ed|s)?"
    r"|inform(?:ed|s)?|complain(?:ed|s)?|announce[sd]?|mention(?:ed|s)?|order(?:ed|s)?)"
)
_MAILS = r"(?:e-?mails?|mails?|messages?|letters?)"
_SENDER = (
    re.compile(rf"\b(?:did|has|does|had|do)\s+(?P<name>{_PERSON})\s+(?:\w+ly\s+)?{_SAY}\b", re.I),
    re.compile(
        rf"\b{_MAILS}\s+(?:that\s+)?(?:is\s+|are\s+|was\s+|were\s+|sent\s+|written\s+)*(?:of|from|by)\s+(?P<name>{_PERSON})",
        re.I,
    ),
    re.compile(rf"\b(?:sent|written)\s+by\s+(?P<name>{_PERSON})", re.I),
    re.compile(rf"\b(?P<name>{_PERSON})['’]s\s+{_MAILS}\b", re.I),
    re.compile(rf"\b{_MAILS}\s+(?:did|has|does)\s+(?P<name>{_PERSON})\s+{_SAY}\b", re.I),
    re.compile(rf"\b(?:get|got|receive[d]?|hear|heard)\b.*?\bfrom\s+(?P<name>{_PERSON})", re.I),
    re.compile(rf"\bin\s+(?:his|her|their)\s+{_MAILS}.*?\bdid\s+(?P<name>{_PERSON})", re.I),
)
_RECIPIENT = (
    re.compile(
        rf"\b(?:did|has|does)\s+{_PERSON}\s+(?:tell|ask|promise|offer|e?-?mail|send|answer|inform)\s+(?P<name>{_PERSON})",
        re.I,
    ),
    re.compile(rf"\b{_SAY}\b(?:[^?]*?\b)?\s+(?:back\s+)?to\s+(?P<name>{_PERSON})", re.I),
    re.compile(rf"\b{_MAILS}\s+(?:[^?]*?\s)?to\s+(?P<name>{_PERSON})", re.I),
)
_HEADER = re.compile(
    r"^From: (?P<sender>(?:(?!\sTo: )[^;\n])*)(?:; To: (?P<to>[^;\n]*))?(?:; Cc: (?P<cc>[^;\n]*))?(?:;.*)?$", re.M
)
"""The line of a mail's header; 'From: Kessler To: Bright Paper' is a paragraph of another document."""
_SUBJECT_AND_SENDER = re.compile(r"[^\n]+ › [^\n,]{2,60}, \d{1,2} [A-Z][a-z]+ \d{4}: ")
_HEADER_LINE = re.compile(r"From: [^;\n]*; (?:To|Cc|Date|Subject): ")
_HEADING = re.compile(r"(?:^|\n)(?P<sender>[^\n,]{2,60}), \d{1,2} [A-Z][a-z]+ \d{4}: ")
_CAPITALS = r"[^\W\d_a-z][\w.’'-]*(?:\s[^\W\d_a-z][\w.’'-]*){0,3}"
_NAMED_LETTER = re.compile(rf"^(?:[\d\W]*|[^\n]*\bfrom\s)(?P<sender>{_CAPITALS})\s+to\s+(?P<to>{_CAPITALS})\s*$", re.M)
_GREETING = re.compile(rf"^(?:Dear|Dearest|My\s+dear)\s+(?P<to>{_CAPITALS}),", re.M)
_SIGNED = re.compile(rf"\n(?P<sender>{_CAPITALS})\s*\Z")
"""The name below a letter."""
_OF_LETTERS = re.compile(
    r"\b(?:(?:e-?)?mails?|messages?|letters?|subject|senders?|recipients?|sen[dt]|wrote|written|write|repl(?:y|ied)|received)\b",
    re.I,
)
_WHO_IS = re.compile(r"who(?:['’]s|\s+(?:is|was))\s+(?:the|our|my)\b", re.I)
"""Asks for the holder of a part, who may be known by a mail alone: 'Who is the composer of the music?'"""
_SAID = re.compile(rf"\b{_SAY}\b|\b(?:told|notice|invit\w+|contact\w*|resign\w*|agree[sd]?|confirm\w*)\b", re.I)
_NOBODY = frozenset(
    """i we you he she they it us me them him her my our your his their someone somebody anyone anybody everyone the a
    an this that all last first write send mail mails email e-mail order each show list find give""".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Header:
    """Sender and recipients of a mail."""

    sender: str
    recipients: str
    begin: int
    """Character of the passage at which the line of the header begins; -1 if only a heading names the sender."""
    end: int


@dataclass(frozen=True, slots=True)
class Correspondents:
    """The sender and the recipient that a question names; '' for either that it does not."""

    sender: str
    recipient: str

    def __bool__(self) -> bool:
        return bool(self.sender or self.recipient)

    @property
    def names(self) -> str:
        """Both names."""
        return f"{self.sender} {self.recipient}".strip()

    def are(self, header: Header) -> bool:
        """True if the mail with this header is from the sender and to the recipient."""
        is_to = not self.recipient or not header.recipients or _is_person(self.recipient, header.recipients)
        return is_to and (not self.sender or not header.sender or _is_person(self.sender, header.sender))


def correspondents(question: str) -> Correspondents:
    """The sender and the recipient in a question."""
    question = without_titles(question)
    sender = _first(_SENDER, question)
    recipient = _first(_RECIPIENT, question, capital=question[1:] != question[1:].lower())
    return Correspondents(sender, "" if recipient == sender else recipient)


def asks_of_letters(question: str) -> bool:
    """True if a question speaks of mails or letters, so that the heading of one may answer it."""
    return _OF_LETTERS.search(question) is not None


def asks_of_header(question: str) -> bool:
    """True if a question asks who wrote, to whom, when something was written or said, or who somebody is."""
    if asks_of_letters(question) or correspondents(question) or _WHO_IS.match(question.strip()):
        return True
    return _SAID.search(question) is not None


def is_header(line: str) -> bool:
    """True for the line that heads a mail, 'From: …; To: …; Subject: …', or with its subject and sender a passage."""
    return _HEADER_LINE.match(line) is not None or _SUBJECT_AND_SENDER.match(line) is not None


def headers(place: Place) -> Iterator[Header]:
    """The headers of the mails in a passage."""
    for match in _HEADER.finditer(place.text):
        recipients = " ".join(filter(None, (match["to"], match["cc"])))
        yield Header(match["sender"], recipients, *match.span())


def header_of(place: Place, begin: int) -> Header | None:
    """The header of the mail that a sentence at `begin` belongs to; None if it stands in no mail."""
    before = [header for header in headers(place) if header.begin <= begin]
    if before:
        return before[-1]
    heading = _HEADING.search(place.labels)
    return Header(heading["sender"], "", -1, -1) if heading is not None else _of_letter(place)


def _of_letter(place: Place) -> Header | None:
    """Sender and recipient of a letter by its file's name, 'Ruth to Agnes', or its greeting and its last line."""
    named = _NAMED_LETTER.search(place.labels)
    if named is not None:
        return Header(named["sender"], named["to"], -1, -1)
    greeting, signed = _GREETING.search(place.text), _SIGNED.search(place.text)
    if greeting is None or signed is None:
        return None
    return Header(signed["sender"], greeting["to"], -1, -1)


def _first(patterns: tuple[re.Pattern[str], ...], question: str, *, capital: bool = False) -> str:
    """The first name that one of the patterns finds; with `capital`, only one that is written with a capital."""
    for pattern in patterns:
        for match in pattern.finditer(question):
            words = [re.sub(r"['’]s$", "", word) for word in match["name"].split() if not is_time(word)]
            name = " ".join(dropwhile(lambda word: word.lower() in _NOBODY or word.lower() in STOP_WORDS, words))
            if name and (name[0].isupper() or not capital):
                return name
    return ""


def _is_person(name: str, text: str) -> bool:
    stems = content_stems(text)
    return all(has_stem(stem, stems) for stem in content_stems(name))
