"""Add the day of a diary's entry to an answer that says 'when' by the time of day, or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer, AnswerEvent
from desk_rag.answering.evidence.quote_matching import QuoteFinder
from desk_rag.answering.questions.disagreement.newest import day_of, writing_of
from desk_rag.answering.questions.one_fact.rewriting import rewritten, source_quoted
from desk_rag.answering.requirements.dates import dates, relative_note
from desk_rag.answering.requirements.places import place_of_source
from desk_rag.answering.requirements.statements.dated_lines import dated_heading

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_ASKS_DAY = re.compile(r"^(?:(?:since|until|from|by)\s+)?when\b|^(?:on\s+)?(?:which|what)\s+(?:day|date)\b", re.I)
_CLOCK = re.compile(r"\W*(?:at\s+)?\d{1,2}[.:]\d{2}(?:\s?[ap]\.?m\.?)?\W*", re.I)


def name_day(events: Iterator[AnswerEvent], question: str) -> Iterator[AnswerEvent]:
    """Pass on an answer; where the question asks for a day and its quote says none, name the date above the entry."""
    yield from rewritten(events, _with_day) if _ASKS_DAY.search(question.strip()) else events


def _with_day(done: Answer) -> Answer | None:
    """The answer with the day of its entry; None if its quote says a day, or stands below no date."""
    if not done.found or len(done.citations) != 1 or dates(done.citations[0].quote):
        return None
    source = source_quoted(done)
    heading = dated_heading(place_of_source(source), done.citations[0].quote) if source is not None else ""
    line = QuoteFinder([source]).find(heading) if source is not None and heading else None
    if line is None:
        return None
    day = line.quote if not _CLOCK.fullmatch(done.text) else f"{line.quote}, {done.text.strip(' .')}"
    return replace(done, text=day, citations=(*done.citations, line))


def day_meant(store: Store, done: Answer) -> str:
    """A sentence about the day that 'today' is in the document that is quoted; empty if the answer has no such word."""
    quoted = done.citations[0]
    day = day_of(store, writing_of(quoted))
    with suppress(ValueError):  # a month or year alone, or 31 February
        return relative_note(done.text, date(day.year, day.month, day.day), quoted.path.name) if day is not None else ""
    return ""
