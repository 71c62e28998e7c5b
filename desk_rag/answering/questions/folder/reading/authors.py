"""Tell who wrote a document and to whom, by headers, labels, letterhead, greeting, signature or a speaker's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from desk_rag.answering.questions.folder.reading.fields import fields_of
from desk_rag.answering.requirements.correspondence import header_of, headers
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.sentences import is_quoted

if TYPE_CHECKING:
    from desk_rag.answering.questions.folder.reading.records import Record
    from desk_rag.store.types import Passage

_FROM = re.compile(r"^(?:from|author|by|written\s+by|prepared\s+by|sender|signed)$", re.I)
_GREETING = re.compile(r"^(?:Dear|Sehr\s+geehrte[rsn]?|Liebe[rsn]?|Hello|Hi)\b(?P<name>[^\n,!]{0,60})", re.M)
_TO_LINE = re.compile(r"^(?:to|attn\.?|an|for)\b\s*:?", re.I)
_FROM_NAME = re.compile(r"\b(?:from|by|von)\s+(?P<name>.+)", re.I)
_SAID = re.compile(
    r"\b(?:says?|said|writes?|wrote|thinks?|thought|asks?|asked|proposes?|proposed|tells?|told|finds?|found|agrees?|agreed"
    r"|warns?|warned|suggests?|suggested|reports?|reported|explains?|explained|states?|stated|wants?|wanted)\b",
    re.I,
)
"""Verbs that follow the name of a person whose words are reported."""
_NAME_WORD = r"[^\W\d_a-z][\w.’'-]*"
_NAME = rf"{_NAME_WORD}(?:\s+{_NAME_WORD})*"
_WROTE = re.compile(
    rf"(?P<before>{_NAME}),?\s+who\s+(?:wrote|prepared)\s+this\b|\b(?:written|prepared|compiled)\s+by:?\s+(?P<behind>{_NAME})"
)
_ONLY_NAME = re.compile(rf"{_NAME_WORD}(?:\s+{_NAME_WORD})+")
_SIGNATURE_LINES, _SIGNATURE_WORDS, _HEAD_LINES = 3, 6, 3


def is_by(name: str, passages: Sequence[Passage]) -> bool:
    """True if a document that is no mail says in a label, letterhead, signature or its name that it is by somebody."""
    if not passages or any(True for passage in passages for _ in headers(place_of_passage(passage))):
        return False
    wanted = content_stems(name)
    labels = [field.value for field in fields_of(passages) if _FROM.match(field.label)]
    first = _lines(passages[0].chunk.text)
    named = _FROM_NAME.search(passages[0].path.stem)
    texts = [
        match["before"] or match["behind"] for passage in passages for match in _WROTE.finditer(passage.chunk.text)
    ]
    texts += [*labels, *_signature(passages), named["name"] if named is not None else ""]
    greeting = next((place for place, line in enumerate(first) if _GREETING.match(line)), None)
    if greeting is not None:
        texts += [line for line in first[: min(greeting, _HEAD_LINES)] if not _TO_LINE.match(line)]
    return any(_holds(text, wanted) for text in texts)


def speaks(name: str, passage: Passage, unit: str) -> bool:
    """True if a sentence is of a mail from somebody, or as in minutes begins with 'Name:' or 'Name says'."""
    place = place_of_passage(passage)
    header = header_of(place, max(0, place.text.find(unit)))
    wanted = content_stems(name)
    if header is not None:
        return _holds(header.sender, wanted) and not is_quoted(passage.chunk.text, unit)
    speaker = re.match(r"^\W*(?:\d[\d.]*\s+)?(?P<name>[^\W\d_][^:.;]{0,40}):\s", unit)
    spoken = content_stems(speaker["name"]) if speaker is not None else set()
    if spoken and spoken <= wanted:
        return True
    match = _SAID.search(unit)
    return match is not None and _holds(unit[: match.start()], wanted)


def is_to(name: str, record: Record) -> bool:
    """True if a letter or mail is addressed to somebody."""
    wanted = content_stems(name)
    if record.header is not None:
        return _holds(record.header.recipients, wanted)
    if is_by(name, record.passages):
        return False
    greeting = _GREETING.search(record.text)
    return _holds(f"{record.recipients} {greeting['name'] if greeting else ''} {record.path.stem}", wanted)


def is_from(name: str, record: Record) -> bool:
    """True if a letter or mail is from somebody."""
    if record.header is not None:
        return _holds(record.header.sender, content_stems(name))
    return is_by(name, record.passages)


def writer_of(record: Record) -> str:
    """The sender of a mail, the name below a letter, or that in its head; '' if none names one."""
    if record.header is not None:
        return record.header.sender
    signed = [line for line in _signature(record.passages) if _ONLY_NAME.fullmatch(line)]
    return signed[-1] if signed else record.party


def _signature(passages: Sequence[Passage]) -> list[str]:
    """The short last lines of a document."""
    return [line for line in _lines(passages[-1].chunk.text)[-_SIGNATURE_LINES:]
            if len(line.split()) <= _SIGNATURE_WORDS and ":" not in line and not _GREETING.match(line)]  # fmt: skip


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _holds(text: str, wanted: set[str]) -> bool:
    stems = content_stems(text)
    return bool(wanted) and all(has_stem(stem, stems) for stem in wanted)
