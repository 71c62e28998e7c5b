"""Compare days: find the last, first or next time of something, and the calendar entries of a day."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.events import Event, day_of, events
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.questions.folder.reading.records import all_dates
from desk_rag.answering.questions.forms import first_match
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed, some_of
from desk_rag.answering.questions.whole_folder import FolderQuestion, Shown, listed, show
from desk_rag.answering.requirements.dates import Date, dates, in_words
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.statements.dated_lines import dated_heading, day_in_name
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.answering.requirements.titles import without_titles
from desk_rag.documents.formats import Format, format_of_name
from desk_rag.documents.sentences import quotable
from desk_rag.store.catalog.words import name_words

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import Passage

_ORDER = r"(?P<order>last|latest|most\s+recent|first|earliest|next)"
_WHEN = r"^(?:when|(?:on\s+)?(?:which|what)\s+(?:day|date))\s+"
_TIMES = (
    re.compile(rf"{_WHEN}(?P<verb>is|was|will)\s+(?:the|our|my)\s+{_ORDER}\s+(?P<subject>.+)", re.I),
    re.compile(
        rf"{_WHEN}(?P<verb>is|was|does|did|do|will)\s+(?:(?:the|our|my)\s+)?(?P<subject>.+?)\s+(?:for\s+)?the\s+{_ORDER}\s+time$",
        re.I,
    ),
)
_ON_DAY = re.compile(
    r"^(?:what|which)\b.*\b(?:(?:have|got)\s+to\s+do|(?:must|should|shall|will|can)\s+(?:I|we)\s+do|(?:am|are)\s+(?:I|we)\s+doing"
    r"|appointments?|events?|(?:is|are)\s+(?:planned|scheduled|on|due|happening|in\s+(?:the|my|our)\s+(?:calendar|diary))"
    r"|do\s+(?:I|we)\s+have\b|takes?\s+place|happen(?:s|ed)?)",
    re.I,
)
_LIGHT = content_stems(
    "take takes taking place happen happens happened held hold be been meet meets start starts begin begins come comes"
    " have has do done doing must should will can appointment appointments event events planned scheduled due calendar"
    " diary list show day date time on in at there got get"
)
_HAPPENED = re.compile(r"\bhappen", re.I)
_MOST_NAMED, _MOST_LINES = 6, 100
_LONGEST_LINE, _DATE_LENGTH = 240, 20
"""Characters of a line that is shown whole, and of the date that begins an entry."""


@dataclass(frozen=True, slots=True)
class _Time:
    day: date
    row: Row
    event: Event | None = None


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield the answer with the lines that name the days; nothing for other questions, or if no line matches."""
    plain = without_titles(question.text)
    if (match := first_match(_TIMES, plain)) is not None:
        yield from _time_of(question, match)
    elif on_day := first_match([_ON_DAY], plain):
        rest, period = take_period(on_day.string, question.today)
        if period is not None:
            yield from _on_day(question, rest, period)


def _time_of(question: FolderQuestion, match: re.Match[str]) -> Iterator[AnswerEvent]:
    """Yield the last, first or next of all days on which the documents say that something was or is."""
    names = content_stems(" ".join(re.findall(r"[A-Z][\w'’&-]*|\S*\d\S*", match["subject"])))
    others = content_stems(match["subject"]) - names - _LIGHT
    if not others:
        return
    passages, files = _passages(question.store, question.under)
    order = " ".join(match["order"].lower().split())
    times = [one for passage in passages for one in _times(passage, names, others, in_text=order == "next")]
    if order not in ("first", "earliest", "next") and match["verb"].lower() in ("was", "did"):
        times = [one for one in times if one.day <= question.today] or times
    days = sorted({one.day for one in times})
    if order == "next" and days and days[-1] <= question.today:
        text = f"No day after {in_words(question.today)} was found; the last one is {in_words(days[-1])}."
        latest = [one.row for one in times if one.day == days[-1]]
        yield from question.answered(text, latest, len(passages), files, support=0.0)
        return
    if order == "next":
        times = [one for one in times if one.day > question.today]
        days = [day for day in days if day > question.today]
    if not days or (len(days) < 2 and order != "next"):
        return
    chosen = days[-1] if order in ("last", "latest", "most recent") else days[0]
    rows = [one for one in times if one.day == chosen]
    event = next((one.event for one in rows if one.event is not None and one.event.repeats), None)
    if event is not None and chosen == days[-1] and order != "next" and event.is_endless:
        return
    if event is not None and len(event.days) == len(days):
        first = event.at(event.days[0])
        text = f"{event.at(chosen)} (computed: the {order} of {len(days):,}, {event.repeats} from {first})"
    else:
        others_named = [in_words(day) for day in days if day != chosen]
        named = some_of(others_named, _MOST_NAMED)
        text = in_words(chosen)
        text += f" (the {order} of {len(days):,} days; the others: {named})" if others_named else ""
    distinct_rows = list({one.row.text: one.row for one in rows}.values())
    yield from question.answered(text, distinct_rows, len(passages), files)


def _on_day(question: FolderQuestion, rest: str, period: Period) -> Iterator[AnswerEvent]:
    """Yield the calendar entries in a period; for what happened on a day, all lines of that day."""
    wanted = content_stems(rest) - _LIGHT
    all_formats = _HAPPENED.search(question.text) is not None and any(day.day for day in dates(question.text))
    passages, files = _passages(question.store, question.under, only=None if all_formats else Format.CALENDAR)
    times = [
        _Time(day, Row(event.passage, event.line), event)
        for passage in passages
        for event in events([passage])
        if wanted <= content_stems(event.line)
        for day in event.days
        if period.holds(Date(day.year, day.month, day.day))
    ]
    times.sort(key=lambda one: (one.day, one.event.when[-5:] if one.event else ""))
    if all_formats:
        times += [one for passage in passages for one in lines_of_day(passage, wanted, period)]
    if not times:
        return
    shown = show(question.store, [one.row for one in times[:_MOST_LINES]])
    lines = [
        one.row.text if one.event is None else f"{one.event.at(one.day)}: {one.event.name}"
        for one in times[:_MOST_LINES]
    ]
    if len(lines) > 1:
        roots = question.store.volumes.roots()
        of_lines = zip(shown.citations, lines, times, strict=False)
        lines = [listed(citation, line, one.row.passage.path, roots) for citation, line, one in of_lines]
    shown = Shown(shown.sources, tuple(dict.fromkeys(shown.citations)))
    if len(times) > _MOST_LINES:
        lines.append(f"and {len(times) - _MOST_LINES:,} more")
    yield from question.answered("\n".join(lines), shown, len(passages), files)


def lines_of_day(passage: Passage, wanted: set[str], period: Period) -> Iterator[_Time]:
    """The lines with a day of the period, those below it in a diary, and those of a file with the day as its name."""
    if format_of_name(passage.path.name) is Format.CALENDAR:
        return
    place = place_of_passage(passage)
    day = day_in_name(place)
    for line in filter(str.strip, place.text[place.body :].split("\n")):
        day = dated_heading(place, line) or day
        is_short = len(line) <= _LONGEST_LINE
        for part in [line.strip()] if is_short else quotable(line):
            day = day if is_short or not all_dates(part[:_DATE_LENGTH]) else part[:_DATE_LENGTH]  # as in a diary
            known = [one for one in all_dates(part) or all_dates(day) if one.day]
            if any(period.holds(one) for one in known) and wanted <= content_stems(f"{part} {place.labels}"):
                yield _Time(date.min, Row(passage, part))


def _passages(store: Store, under: Sequence[Path], only: Format | None = None) -> tuple[list[Passage], int]:
    documents = [row.path for row in distinct(indexed(store, under))
                 if only is None or format_of_name(row.path.name) is only]  # fmt: skip
    return [passage for path in documents for passage in store.passages_of(path)], len(documents)


def _times(passage: Passage, names: set[str], others: set[str], *, in_text: bool) -> Iterator[_Time]:
    """The days of a calendar's entries with all words of the question; of lines of other documents `in_text`."""
    around = content_stems(f"{name_words(passage.path)} {passage.title} {passage.chunk.location.heading}")
    entries = list(events([passage]))
    for event in entries:
        if names | others <= content_stems(event.line):
            yield from (_Time(day, Row(passage, event.line), event) for day in event.days)
    if entries or not in_text:
        return
    for unit in quotable(passage.chunk.text):
        stems = content_stems(unit)
        if (
            not names | others <= stems | around
            or not others & stems
            or unit.startswith("From: ")
        ):
            continue
        day = day_of(all_dates(unit))
        if day is not None:
            yield _Time(day, Row(passage, unit))
