"""Answer when something was done, or was done last, by dated entries, whose text need not say the day again.

The span scorer reads an entry of a diary with its day in front: '10 November 2023: Library annex. Completed.' Of
several entries that answer, 'last' means the latest and 'first' the earliest, in whichever document they stand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer, AnswerEvent, AnswerText, Evidence, Finished, Retrieved
from desk_rag.answering.questions.disagreement.newest import day_of, writing_of, writing_of_passage
from desk_rag.answering.questions.disagreement.values import WORD, value_in
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import some_of
from desk_rag.answering.questions.one_fact.rewriting import DOUBTED, numbered_after
from desk_rag.answering.questions.whole_folder import show
from desk_rag.answering.requirements.answer_kinds import asks_whether
from desk_rag.answering.requirements.correspondence import is_header
from desk_rag.answering.requirements.dates import Date, dates, in_words, relative_note
from desk_rag.answering.requirements.places import Place, place_of_passage
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.answering.requirements.statements.dated_lines import dated_heading, day_in_name
from desk_rag.answering.requirements.statements.standing import asks_when_done, only_planned
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.sentences import quotable
from desk_rag.retrieval.search import retrieve
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store
    from desk_rag.store.types import Passage

_ASKS_ORDER = re.compile(
    r"^(?:when\s+(?:was|were|did|has|have|had)|(?:on\s+)?(?:what|which)\s+(?:day|date)\s+(?:was|were|did|has|have|had)"
    r"|what(?:['’]s|\s+(?:is|was))\s+the\s+date\s+of)\b"
    r".*\b(?:(?P<last>last|latest|most\s+recent(?:ly)?|newest)|first|earliest)\b(?!\s+(?:year|month|week|night|name|\w+\s+(?:years|months)))",
    re.I,
)
_ASKS_OF_LAST = re.compile(
    r"^(?:who|whom|what|which|where|how\s+(?:much|many|long))\b(?!.*\b(?:is|are|do|does|must|may|can|should|will)\b)"
    r".*\b(?P<last>last(?!\s+(?:year|month|week|night|name|\w+\s+(?:years|months)))|latest|most\s+recent(?:ly)?)\b",
    re.I,
)
"""'Who did the last inspection?', which the latest entry answers."""
_ORDER_WORDS = content_stems("last latest most recent recently newest first earliest date day time")
_DEPTH, _MOST_READ = 24, 48
"""Passages in which entries are looked for, and entries that are read where those of one order are wanted."""
_LONGEST_LINE = 240
"""Characters of a line that is quoted whole; of a longer one, each sentence is looked at by itself."""
_LEAST_IF_ALL_SAID, _LEAST_LOG_ODDS, _CONVINCING = -3.0, 0.0, 1.5
"""Span score from which an entry with all words of the question may answer, any other, and one without a doubt."""
_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class _Entry:
    row: Row
    day: date
    stands: str
    """Place of the day if the line does not say it: 'in the name of', 'above the entry in'; empty if it does."""
    log_odds: float = 0.0
    says_all: bool = False
    """True if the line, with what it stands under, has all words of the question."""
    value: str = ""
    """The short answer in it, where no day is asked for."""

    @property
    def answers(self) -> bool:
        """True if it may be one of the entries of which the last or first is wanted."""
        return self.log_odds >= (_LEAST_IF_ALL_SAID if self.says_all else _CONVINCING)

    @property
    def text(self) -> str:
        """The words to read, with the day."""
        return f"{in_words(self.day)}: {self.row.text}" if self.stands else self.row.text


def by_entries(
    events: Iterator[AnswerEvent],
    store: Store,
    question: str,
    under: Sequence[Path],
    *,
    embedder: EmbedderLike,
    span_scorer: SpanScorerLike,
) -> Iterator[AnswerEvent]:
    """Pass an answer on; one that is missing, doubtful or of a plan gives way to an entry of a diary that answers.

    So does one of another day than the last or first, where the question asks for that.
    """
    order = _ASKS_ORDER.match(question.strip()) or _ASKS_OF_LAST.match(question.strip())
    if order is None and not asks_when_done(question):
        yield from events
        return
    held_back: list[AnswerEvent] = []
    for event in events:
        if not isinstance(event, Finished):
            held_back.append(event)
            continue
        done = event.answer
        is_plan = done.found and bool(done.citations) and only_planned(done.citations[0].quote)
        is_sure = done.found and not done.doubtful and not is_plan and _says_day(done, question)
        entries = [] if done.stopped or (is_sure and order is None) else _entries(
            store, question, under, embedder, span_scorer, with_own=order is not None
        )  # fmt: skip
        in_words_asked = [entry for entry in entries if entry.says_all]
        if order is not None and len({entry.day for entry in in_words_asked}) > 1:
            entries = in_words_asked
        days = sorted({entry.day for entry in entries if entry.answers})
        if order is not None and len(days) > 1:
            yield from _answered(store, replace(done, citations=()), *_of_order(entries, days, order), planned=False)
        elif not is_sure and (of_files := [one for one in entries if one.stands]):
            best = max(of_files, key=lambda one: one.log_odds)
            yield from _answered(store, done, best, in_words(best.day), planned=is_plan)
        else:
            yield from (*held_back, event)


def _says_day(done: Answer, question: str) -> bool:
    """True unless a question asks for a day, and the only quote has none, as an entry of a diary."""
    asks_whether_done = asks_whether(question) or len(done.citations) != 1
    return asks_whether_done or bool(dates(done.citations[0].quote))


def _of_order(entries: Sequence[_Entry], days: Sequence[date], order: re.Match[str]) -> tuple[_Entry, str]:
    """The last or first of several entries, and the words about its day and the others."""
    is_last = order.groupdict().get("last") is not None
    day = days[-1] if is_last else days[0]
    others = some_of([in_words(one) for one in days if one != day], _MOST_NAMED)
    of_order = f"the {'last' if is_last else 'first'} of {len(days):,} days; the others: {others})"
    entry = max((one for one in entries if one.day == day and one.answers), key=lambda one: one.log_odds)
    if not entry.says_all and any(one.says_all for one in entries):
        entry = replace(entry, log_odds=_LEAST_LOG_ODDS)  # what happened then may be something else
    elif entry.says_all:
        entry = replace(entry, log_odds=max(entry.log_odds, _CONVINCING))
    return entry, f"{entry.value} ({in_words(day)}, {of_order}" if entry.value else f"{in_words(day)} ({of_order}"


def _answered(store: Store, done: Answer, entry: _Entry, text: str, *, planned: bool) -> Iterator[AnswerEvent]:
    """The day of an entry, with its quote; the quote of a plan stays beside it."""
    shown = show(store, [entry.row])
    sources, citations = numbered_after(done, shown.sources, shown.citations)
    name = clean_name(entry.row.passage.path.name)
    notices = [f"The day is {entry.stands} {name}"] if entry.stands else []
    if planned:
        citations = (*citations, done.citations[0])
        plan = done.citations[0]
        notices.append(f"{clean_name(plan.path.name)} says what was planned, see [{plan.source_number}]")
    support = 1 / (1 + math.exp(-entry.log_odds))
    support = support if entry.log_odds >= _CONVINCING else min(support, DOUBTED)
    yield Retrieved(sources)
    for citation in citations:
        yield Evidence(citation, support)
    yield AnswerText(text)
    yield Finished(
        replace(
            done, found=True, text=text, sources=sources, citations=citations, support=support,
            unmet=(), notices=tuple(notices),
        )
    )  # fmt: skip


def day_meant(store: Store, done: Answer) -> str:
    """A sentence about the day that 'today' is in the document that is quoted; empty if the answer has no such word."""
    quoted = done.citations[0]
    day = day_of(store, writing_of(quoted))
    with suppress(ValueError):  # a month or year alone, or 31 February
        return relative_note(done.text, date(day.year, day.month, day.day), quoted.path.name) if day is not None else ""
    return ""


def _entries(
    store: Store, question: str, under: Sequence[Path], embedder: EmbedderLike, span_scorer: SpanScorerLike,
    *, with_own: bool,
) -> list[_Entry]:  # fmt: skip
    """The lines with a day that answer; `with_own` includes those that say it, and those under a date of a diary."""
    requirements, wanted = Requirements(question), content_stems(question) - _ORDER_WORDS
    asks_day = asks_when_done(question) or _ASKS_ORDER.match(question.strip()) is not None
    shared_words: dict[_Entry, int] = {}
    for chunk in retrieve(store, embedder, question, _DEPTH, under):
        place = place_of_passage(chunk.passage)
        if requirements.unmet(place, place.body, len(place.text)):
            continue
        for entry in _of_passage(store, chunk.passage, place, with_own=with_own):
            shared = sum(has_stem(stem, content_stems(entry.row.text)) for stem in wanted)
            if shared or day_in_name(place):
                shared_words.setdefault(entry, shared)
    chosen = sorted(shared_words, key=lambda entry: -shared_words[entry])[:_MOST_READ]
    places = [Place(entry.text, "", 0, name=place_of_passage(entry.row.passage).name) for entry in chosen]
    scores = span_scorer.read(question, places) if chosen else []
    scored = []
    for entry, of_entry in zip(chosen, scores, strict=True):
        known = content_stems(f"{entry.row.text}\n{place_of_passage(entry.row.passage).labels}")
        value = "" if asks_day else value_in(question, of_entry, entry.text, entry.row.text, WORD)
        entry = replace(
            entry, log_odds=of_entry.log_odds(0, len(entry.text)), value=value,
            says_all=bool(wanted) and all(has_stem(stem, known) for stem in wanted),
        )  # fmt: skip
        least = _LEAST_IF_ALL_SAID if with_own and entry.says_all else _LEAST_LOG_ODDS
        scored += [entry] if entry.log_odds >= least and (asks_day or value) else []
    return scored


def _of_passage(store: Store, passage: Passage, place: Place, *, with_own: bool) -> Iterator[_Entry]:
    of_file = _whole(dates(day_in_name(place)))
    today, written = datetime.now(UTC).astimezone().date(), None
    for line in _lines(place.text[place.body :]):
        if is_header(line) or (with_own and only_planned(line)):
            continue
        own = dates(line) if with_own else []
        if any(one.day and not one.year for one in own):
            written = written or day_of(store, writing_of_passage(passage))
            own = [one if one.year else replace(one, year=_year_before(one, written)) for one in own]
        above = None if own else _whole(dates(dated_heading(place, line)))
        stands = "" if own else "above the entry in" if above else "in the name of"
        days = map(_whole, ([one] for one in own[: 1 if "; " in line else None])) if own else [above or of_file]
        yield from (_Entry(Row(passage, line), day, stands) for day in days if day and day <= today)


def _year_before(day: Date, written: Date | None) -> int:
    """The year in which a day came last before a document was written; 0 if that is not known."""
    if written is None or not written.year:
        return 0
    return written.year - ((day.month, day.day) > (written.month or 12, written.day or 31))


def _whole(days: Sequence[Date]) -> date | None:
    """The first of some dates, if it has a year and a day."""
    with suppress(IndexError, ValueError):  # none, a month or a year alone, or 31 February
        return date(days[0].year, days[0].month, days[0].day)
    return None


def _lines(text: str) -> Iterator[str]:
    """The lines; of one with several dates its sentences, and of such a sentence the clauses."""
    for line in filter(str.strip, text.split("\n")):
        is_one = len(line) <= _LONGEST_LINE and ("; " in line or len(dates(line)) < 2)
        for unit in [line] if is_one else quotable(line):
            yield from [unit] if is_one or len(dates(unit)) < 2 else re.split(r",\s+(?!\d{4})", unit)
