"""Notice that another document answers the question differently: one of two leases, a mail that corrects minutes.

Documents much like the quoted one are compared by their words, passages that were read for the answer by the span
scorer, which must find another value there that would itself be shown as the answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import (
    DOUBTFUL,
    Answer,
    AnswerEvent,
    AnswerText,
    Citation,
    Evidence,
    Finished,
    Retrieved,
    Source,
)
from desk_rag.answering.evidence.quote_matching import QuoteFinder
from desk_rag.answering.evidence.short_answers import ShortAnswers
from desk_rag.answering.evidence.verification import verify_answer
from desk_rag.answering.questions.folder.reading.fields import Field, fields_of
from desk_rag.answering.questions.folder.reading.kinds import Kind
from desk_rag.answering.questions.folder.reading.periods import written
from desk_rag.answering.questions.folder.reading.records import records_of
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import indexed
from desk_rag.answering.questions.whole_folder import finish, listed, show
from desk_rag.answering.requirements.answer_kinds import is_of_kind, kind_asked
from desk_rag.answering.requirements.dates import MONTHS, Date
from desk_rag.answering.requirements.objections import asks_whether
from desk_rag.answering.requirements.places import place_of_passage, place_of_source
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.sentences import quotable
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike, SpanScores
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow, Passage

_LABEL_ASKED = re.compile(
    r"^(?:what|who|when|how\s+(?:much|high))\s+(?:is|are|was|were)\s+(?:the|my|our)\s+(?P<label>[\w\s-]{3,40})$",
    re.I,
)
_MOST_COMPARED = 60
"""Documents of a folder that are compared; more are a collection, in which each says something else."""
_MOST_SHOWN = 3
_LEAST_LOG_ODDS = 0.0
"""Span score from which another value counts, if it would be shown as the answer without a doubt."""
_FEWEST_WORDS = 2
"""Words of the question that both sentences must be about."""
_LIGHT = content_stems("number date day time name amount")
"""Words of a question that a sentence need not have: a phone number is one without the word."""
_SPANS = 12
_WORD_NUMBERS = "two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
_VALUE = re.compile(rf"\d|\b(?:{'|'.join(_WORD_NUMBERS)})\b", re.I)
_ASKS_HOLDER = re.compile(r"^who(?:['’]s|\s+(?:is|are))\s+(?:the|our|my)\b", re.I)
"""Asks who has an office or a task, which passes from one person to the next."""
_PERSON = re.compile(r"\b[^\W\d_a-z][^\W\d_]+")
_ASKS_NOW = re.compile(
    r"\b(?:now|nowadays|current(?:ly)?|today|latest|newest|at\s+present|at\s+the\s+moment|these\s+days)\b", re.I
)
_ASKS_THEN = re.compile(
    r"\b(?:when|before|until)\s+(?:I|we|you|he|she|they)\b|\b(?:at\s+(?:first|the\s+(?:beginning|start)|that\s+time)|back\s+then"
    r"|original(?:ly)?|initial(?:ly)?|former(?:ly)?|previous(?:ly)?|used\s+to)\b",
    re.I,
)
"""Asks for the value of another time, which no document says in these words."""
_MOST_SUPPORT = 0.3
"""Most support of an answer where the documents do not say which value holds at the time that is asked for."""
_TITLES = frozenset({"Mr", "Mrs", "Ms", "Dr", "The", "Our", "New"})
_NUMBER = re.compile(r"\d[\d.,:/-]*(?<![.,:/-])")
_CORRECTS = re.compile(
    r"\b(?:not|no\s+longer|instead|rather\s+than|correct\w*|wrong\w*|from\s+\S+\s+to|t(?:akes?|ook)\s+over|succe(?:ed|ss)\w*)\b",
    re.I,
)
_UNIT = re.compile(r"[€$£%]|[^\W\d_]{2,}")
_NO_UNITS = frozenset(MONTHS) | frozenset(
    """
    at on in by from to of the and or about only now is was most least per each every until since am pm
    mon tue wed thu fri sat sun monday tuesday wednesday thursday friday saturday sunday
    """.split()  # noqa: SIM905
)
_SETTINGS = frozenset({".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".properties"})
_ANY = Kind("file", "files")
_OF_FRAME, _OF_QUESTION = 0.75, 0.5
"""Shares of the words of the quote, without the answer, and of the question that the other sentence must have."""


def by_label(store: Store, question: str, under: Sequence[Path], today: date) -> Iterator[AnswerEvent]:
    """Yield the values that documents much alike have under the label that is asked for; nothing if one has it."""
    match = _LABEL_ASKED.match(" ".join(question.split()).rstrip("?!. "))
    wanted = content_stems(match["label"]) if match is not None else set()
    if not wanted:
        return
    began = time.perf_counter()
    passages = (store.passage(hit.chunk_id, under) for hit in store.search_words(question, _MOST_COMPARED, under))
    paths = list(dict.fromkeys(passage.path for passage in passages if passage is not None))
    having: list[tuple[DocumentRow, Field]] = []
    for row in filter(None, map(store.document, paths)):
        fields = (
            field for field in fields_of(store.passages_of(row.path)) if not field.around and field.quote != row.title
        )
        field = next((field for field in fields if content_stems(field.label) == wanted), None)
        having += [(row, field)] if field is not None else []
    if not 2 <= len(having) <= _MOST_SHOWN or not all(_are_alike(having[0][0], row) for row, _ in having[1:]):
        return
    if len({field.value.casefold() for _, field in having}) < len(having):
        return
    shown = show(store, [Row(field.passage, field.quote) for _, field in having])
    roots, of_fields = store.volumes.roots(), zip(shown.citations, having, strict=True)
    lines = [
        listed(citation, " ".join(field.quote.split()), row.path, roots, with_place=True)
        for citation, (row, field) in of_fields
    ]
    text = "\n".join([*lines, f"{len(having)} documents say something different; name the one that is meant."])
    yield from finish(store, question, text, shown, under, (began, len(paths), len(paths)))


def with_others(
    events: Iterator[AnswerEvent],
    store: Store,
    question: str,
    under: Sequence[Path],
    *,
    embedder: EmbedderLike,
    span_scorer: SpanScorerLike,
) -> Iterator[AnswerEvent]:
    """Pass an answer on; add what other documents say instead, and which of them is the newest.

    The short answer waits for the end, so that all quotes come before it.
    """
    text: list[AnswerEvent] = []
    for event in events:
        if isinstance(event, AnswerText):
            text.append(event)
            continue
        if not isinstance(event, Finished):
            yield event
            continue
        done = event.answer
        rows = _others(store, done, question, under)
        others = _other_values(store, done, question, embedder, span_scorer)
        rows += [row for row in others if row.passage.path not in {known.passage.path for known in rows}]
        if not rows:
            yield from text
            yield event
            continue
        rows = _newest_first(store, rows)
        shown = show(store, rows[:_MOST_SHOWN])
        first = max((source.number for source in done.sources), default=0)
        sources = tuple(replace(source, number=source.number + first) for source in shown.sources)
        citations = tuple(replace(one, source_number=one.source_number + first) for one in shown.citations)
        yield Retrieved((*done.sources, *sources))
        for citation in citations:
            yield Evidence(citation)
        both = replace(done, sources=(*done.sources, *sources), citations=(*done.citations, *citations))
        both = _at_time_asked(both, store, question, rows, span_scorer)
        yield from text if both.text == done.text else [AnswerText(both.text)]
        comparison = _said_by(store, both.citations[0], both.citations[1:])
        more = f"; so do {len(rows) - _MOST_SHOWN:,} further files" if len(rows) > _MOST_SHOWN else ""
        advice = "" if _ASKS_NOW.search(question) and not both.doubtful else ". Name the one that is meant"
        yield Finished(replace(both, notices=(*both.notices, f"{comparison}{more}{advice}")))


def _newest_first(store: Store, rows: Sequence[Row]) -> list[Row]:
    days = {row.passage.path: _day(store, row.passage.path) for row in rows}
    dated = {path: (day.year, day.month, day.day) if day is not None else (0, 0, 0) for path, day in days.items()}
    return sorted(rows, key=lambda row: dated[row.passage.path], reverse=True)


def _at_time_asked(
    done: Answer, store: Store, question: str, rows: Sequence[Row], span_scorer: SpanScorerLike
) -> Answer:
    """The value of the newest document for a question about now; doubt if the documents do not say which is right."""
    if _ASKS_NOW.search(question):
        newest = _newest({one.path: _day(store, one.path) for one in done.citations})
        if newest == done.citations[0].path:
            return done
        row = next((row for row in rows if row.passage.path == newest), None)
        value = ""
        if row is not None:
            (scores,) = span_scorer.read(question, [place_of_passage(row.passage)])
            value = _value(question, scores, row.passage.chunk.text, row.text, _VALUE)
        if value:
            in_order = sorted(done.citations, key=lambda one: one.path != newest)
            return replace(done, text=value, citations=tuple(in_order))
    elif not _ASKS_THEN.search(question):
        return done
    support = _MOST_SUPPORT if done.support is None else min(done.support, _MOST_SUPPORT)
    return replace(done, support=support)


def _day(store: Store, path: Path) -> Date | None:
    """The date of a document, as far as it says one."""
    row = store.document(path)
    records = records_of(_ANY, row, tuple(store.passages_of(path))) if row is not None else iter(())
    return next((record.date for record in records), None)


def _dated_name(path: Path, day: Date | None) -> str:
    return f"{clean_name(path.name)} of {written(day)}" if day is not None else clean_name(path.name)


def _said_by(store: Store, quoted: Citation, others: Sequence[Citation]) -> str:
    """A sentence part that says which documents say something else, of which day, and which is the newest."""
    days = {citation.path: _day(store, citation.path) for citation in (quoted, *others)}
    names = ", ".join(_dated_name(citation.path, days[citation.path]) for citation in others)
    numbers = ", ".join(f"[{citation.source_number}]" for citation in others)
    notice = f"{names} {'says' if len(others) == 1 else 'say'} something else, see {numbers}"
    newest = _newest(days)
    if newest is None:
        return notice
    if len(others) > 1:
        return f"{notice}; the newest is {_dated_name(newest, days[newest])}"
    age = "older" if newest == quoted.path else "newer"
    return f"{notice}, and is {age} than {_dated_name(quoted.path, days[quoted.path])}"


def _newest(days: Mapping[Path, Date | None]) -> Path | None:
    """The document with the latest date; None unless all say theirs, and one is surely later than the others."""
    known = {path: (day.year, day.month, day.day) for path, day in days.items() if day is not None and day.year}
    if len(known) < len(days):
        return None
    newest, latest = max(known.items(), key=lambda item: item[1])
    for path, day in known.items():
        of_same_length = [(mine, other) for mine, other in zip(day, latest, strict=True) if mine and other]
        if path != newest and all(mine == other for mine, other in of_same_length):
            return None
    return newest


def _other_values(
    store: Store, done: Answer, question: str, embedder: EmbedderLike, span_scorer: SpanScorerLike
) -> Iterator[Row]:
    """The sentences of other documents, among the passages that were read, that give another value for the same."""
    pattern = _PERSON if _ASKS_HOLDER.match(question) else _VALUE
    if not _asks_plainly(done, question) or not pattern.search(done.text) or asks_whether(question):
        return
    citation = done.citations[0]
    by_number = {source.number: source for source in done.sources}
    own = _context(by_number[citation.source_number], citation.quote) & (content_stems(question) - _LIGHT)
    if len(own) < (1 if pattern is _PERSON else _FEWEST_WORDS):
        return
    seen = {citation.path}
    for source in done.sources:
        if source.path in seen:
            continue
        (scores,) = span_scorer.read(question, [place_of_source(source)])
        units = [unit for unit in quotable(source.text) if pattern.search(unit)]
        ranked = sorted(units, key=lambda unit: -_log_odds(scores, source.text, unit))
        unit = ranked[0] if ranked else ""
        if not unit or _log_odds(scores, source.text, unit) < _LEAST_LOG_ODDS:
            continue
        stems = _context(source, unit)
        if not all(has_stem(stem, stems) for stem in own) or not own & content_stems(unit):
            continue
        value = _value(question, scores, source.text, unit, pattern)
        passage = store.passage(source.chunk_id, [source.path])
        if passage is None or not _differ((done.text, citation.quote), (value, unit)):
            continue
        cited = QuoteFinder([source]).find(unit)
        verdict = verify_answer(
            question, [cited] if cited else [], [], [source], embedder=embedder, span_scorer=span_scorer
        )
        if cited is not None and not verdict.unmet and verdict.probability >= DOUBTFUL:
            seen.add(source.path)
            yield Row(passage, unit)


def _context(source: Source, sentence: str) -> set[str]:
    """The stems of a sentence and of what it stands under."""
    place = place_of_source(source)
    section = place.sections_before(source.text.find(sentence))[:1]
    return content_stems("\n".join([sentence, place.labels, source.title, *section]))


def _log_odds(scores: SpanScores, text: str, unit: str) -> float:
    begin = text.find(unit)
    return scores.log_odds(begin, begin + len(unit))


def _value(question: str, scores: SpanScores, text: str, unit: str, pattern: re.Pattern[str]) -> str:
    """The best short answer in a sentence, of the kind that is asked for."""
    begin, kind, shorts = text.find(unit), kind_asked(question), ShortAnswers(question, unit)
    for span in scores.best(begin, begin + len(unit), _SPANS):
        offsets = shorts.whole(span.begin - begin, span.end - begin)
        value = unit[slice(*offsets)] if offsets is not None else ""
        if pattern.search(value) and (kind is None or is_of_kind(kind, value)):
            return value
    return ""


def _differ(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """True if two values, each with its sentence, have other numbers or names, in one unit as far as both name one."""
    numbers = _marks(one[0]), _marks(other[0])
    if not all(numbers) or numbers[0] <= numbers[1] or numbers[1] <= numbers[0]:
        return False
    for of_value, (_, sentence) in zip(numbers, (other, one), strict=True):
        if of_value <= _marks(sentence) and not _CORRECTS.search(sentence):
            return False
    if not any(map(_VALUE.search, (one[0], other[0]))):
        return True
    units = [set(_UNIT.findall(value.lower())) - _NO_UNITS for value, _ in (one, other)]
    return not all(units) or bool(units[0] & units[1])


def _marks(text: str) -> set[str]:
    """The numbers of a text; of one without any, its words with a capital letter."""
    return _numbers(text) or {word for word in _PERSON.findall(text) if word not in _TITLES}


def _numbers(text: str) -> set[str]:
    """The numbers of a text: '1,150' as '1150', '40.0' as '40', 'two' as '2'."""
    plain = (re.sub(r",(?=\d{3}\b)", "", number) for number in _NUMBER.findall(text))
    in_words = {
        str(_WORD_NUMBERS.index(word) + 2) for word in re.findall(r"[a-z]+", text.lower()) if word in _WORD_NUMBERS
    }
    return in_words | {re.sub(r"\.0+$", "", number) for number in plain}


def _others(store: Store, done: Answer, question: str, under: Sequence[Path]) -> list[Row]:
    """The sentences of documents much like the quoted one that answer differently, one of each."""
    if not _asks_plainly(done, question):
        return []
    citation, question_stems = done.citations[0], content_stems(question)
    own = store.document(citation.path)
    if own is None:
        return []
    beside = indexed(store, [citation.path.parent])
    alike = [row for row in beside if _are_alike(own, row) and row.path != own.path and _is_below(row.path, under)]
    if not 0 < len(alike) <= _MOST_COMPARED:
        return []
    of_value = {stem for stem in content_stems(done.text) if any(map(str.isdigit, stem))}
    frame = content_stems(citation.quote) - (of_value or content_stems(done.text))
    of_question = question_stems & content_stems(citation.quote)
    if len(frame) < 2 or len(of_question) < max(1.0, _OF_QUESTION * len(question_stems)):
        return []
    own_stems = _stems(own, store.passages_of(own.path))
    others = []
    for row in alike:
        passages = store.passages_of(row.path)
        if question_stems & (own_stems - _stems(row, passages)):
            continue  # a word of the question stands only in the quoted document
        sentence = _answering(passages, frame, of_question, done.text)
        others += [sentence] if sentence is not None else []
    return others


def _asks_plainly(done: Answer, question: str) -> bool:
    """True for an answer with one quote and no doubt, to a question that names no year, date or number."""
    single = done.found and len(done.citations) == 1 and not done.doubtful and not done.stopped and not done.sentences
    return single and bool(done.text) and not Requirements(question).has_values


def _answering(passages: Sequence[Passage], frame: set[str], of_question: set[str], answer: str) -> Row | None:
    """The sentence with the words around the answer and without the answer; None if none has them."""
    for passage in passages:
        for unit in quotable(passage.chunk.text):
            stems = content_stems(unit)
            if len(frame & stems) < _OF_FRAME * len(frame) or not of_question <= stems:
                continue
            return Row(passage, unit) if answer.casefold().strip(". ") not in unit.casefold() else None
    return None


def _are_alike(one: DocumentRow, other: DocumentRow) -> bool:
    """True if two files of a folder share a word of their names, and their ending; files of settings need not."""
    suffixes = {path.suffix.lower() for path in (one.path, other.path)}
    same_place = one.path.parent == other.path.parent and (len(suffixes) == 1 or suffixes <= _SETTINGS)
    common = content_stems(one.path.stem) & content_stems(other.path.stem)
    return same_place and any(not stem.isdigit() for stem in common)


def _is_below(path: Path, under: Sequence[Path]) -> bool:
    return not under or any(path.is_relative_to(base) for base in under)


def _stems(row: DocumentRow, passages: Sequence[Passage]) -> set[str]:
    """The stems of a document, its name and its title."""
    return content_stems("\n".join([row.path.stem, row.title, *(passage.chunk.text for passage in passages)]))
