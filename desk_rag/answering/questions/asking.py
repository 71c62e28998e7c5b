"""Answer a question in as many steps as it needs, as one stream of events.

Most questions ask for one fact and take one reading of the best passages. If that finds nothing convincing, the pointer
looks at more passages and the best of these are read (`second_look`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from desk_rag.answering.events import (
    Answer,
    AnswerEvent,
    AnswerText,
    Basis,
    Evidence,
    Finished,
    FirstToken,
    Stage,
)
from desk_rag.answering.questions import mails, parts, summary
from desk_rag.answering.questions.disagreement import drafts, look_alikes
from desk_rag.answering.questions.disagreement.newest import is_too_late
from desk_rag.answering.questions.folder import written_by
from desk_rag.answering.questions.folder.asking import answer as folder_answer
from desk_rag.answering.questions.forms import Form, WholeFolderQuestion, whole_folder
from desk_rag.answering.questions.joining import Joined
from desk_rag.answering.questions.narrowing import named_files, narrow, within_files, without_file_names
from desk_rag.answering.questions.nearest import nearest
from desk_rag.answering.questions.one_fact import doubts
from desk_rag.answering.questions.one_fact.entries import by_entries, day_meant
from desk_rag.answering.questions.one_fact.rewriting import doubted, source_quoted
from desk_rag.answering.questions.one_fact.stated_count import stated_first
from desk_rag.answering.questions.second_look import SecondLook, convincing, finished
from desk_rag.answering.questions.whole_folder import answer as whole_folder_answer
from desk_rag.answering.questions.whole_folder import not_readable
from desk_rag.answering.requirements.amounts import not_the_sum
from desk_rag.answering.requirements.answer_kinds import misfit
from desk_rag.answering.requirements.correspondence import correspondents
from desk_rag.answering.requirements.dates import days_until, past_note, when_asked, without_dates
from desk_rag.answering.requirements.places import place_of_source
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.rows import rows_alike
from desk_rag.answering.requirements.statements.languages import foreign_language
from desk_rag.answering.requirements.statements.prices import asks_price, is_event
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.retrieval.capitals import as_in_documents
from desk_rag.retrieval.search import RetrievedChunk
from desk_rag.retrieval.spelling import Spelled, spelled_as_documents
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store

_ANY_TEXT = content_stems(
    "note notes document documents file files paper papers text texts folder anybody anyone people book"
)
"""What may be asked to say something without being called so in it."""

ChooseChunks = Callable[["EmbedderLike", str], Sequence[RetrievedChunk]]
"""Function that returns the chunks to read, best first, for an embedder and a question cut to the model's limit."""


class AskOnce(Protocol):
    """Function that has the model read some chunks once."""

    def __call__(self, question: str, choose: ChooseChunks, under: Sequence[Path]) -> Iterator[AnswerEvent]:
        """Yield the events of an answer from the chosen chunks; `Finished` comes last."""
        ...


@dataclass(frozen=True, slots=True)
class Reader:
    """The parts of an engine that answering uses."""

    store: Store
    embedder: EmbedderLike
    span_scorer: SpanScorerLike | None
    """None if no quotes are selected for the model; a second look is then impossible."""
    top_k: int
    stop: Callable[[], bool]
    ask_once: AskOnce


def answer(reader: Reader, question: str, under: Sequence[Path]) -> Iterator[AnswerEvent]:
    """Yield the events of the answer to `question`; `Finished` comes last, once."""
    began, first_text = time.perf_counter(), None
    typed, question = question, as_in_documents(reader.store, question)
    spelled = spelled_as_documents(reader.store, question, in_english=not foreign_language(question))
    read_as = question if spelled is None else spelled.question
    when = when_asked(read_as)
    for event in _answer(reader, when or read_as, under):
        if first_text is None and isinstance(event, Evidence | AnswerText):
            first_text = time.perf_counter() - began
        if isinstance(event, Finished):
            timed = replace(event.answer.timings, first_text=first_text)
            event = _with_unmet(_with_basis(Finished(replace(event.answer, timings=timed)), reader.store, under))
            event = event if spelled is None else _with_spelling(event, spelled)
            event = _with_days_until(event) if when else event
            event = Finished(replace(event.answer, question=typed))
        yield event


def _with_days_until(event: Finished) -> Finished:
    """Say how far off the day is that was asked for."""
    note = days_until(event.answer.text, datetime.now(UTC).astimezone().date()) if event.answer.found else ""
    return Finished(replace(event.answer, notices=(*event.answer.notices, note))) if note else event


def _with_spelling(event: Finished, spelled: Spelled) -> Finished:
    """Say which words of the question were read otherwise; an answer about another name is doubtful."""
    done = replace(event.answer, notices=(*event.answer.notices, spelled.notice))
    if done.found and spelled.names:
        done = replace(doubted(done), unmet=(*done.unmet, *spelled.names))
    return Finished(done)


def _answer(reader: Reader, question: str, under: Sequence[Path]) -> Iterator[AnswerEvent]:
    named = named_files(reader.store, question, under)
    if named.faults and not named.indexed:
        yield from not_readable(question, named.faults)
        return
    within = within_files(question, named.indexed)
    if (yield from _passing(folder_answer(reader.store, question, under, within, named.indexed))):
        return
    inside = whole_folder(within) if within else None
    if inside is not None and (yield from _of_whole_folder(reader, within, inside, named.indexed)):
        return
    request = None if inside is not None else whole_folder(question)
    if request is not None and (yield from _of_whole_folder(reader, question, request, under)):
        return
    if reader.span_scorer is None:
        yield from reader.ask_once(question, partial(_nearest, reader, under), under)
        return
    look = SecondLook(reader.store, reader.span_scorer, reader.top_k, under)
    if two := parts.two_questions(question):
        yield from _two_parts(reader, question, two, look)
    elif compared := parts.comparison(question):
        yield from _compared(reader, question, compared, look)
    elif steps := parts.by_way_of(question):
        yield from _by_way_of(reader, question, steps, look)
    else:
        one_fact = drafts.finals_first(
            lambda files: _one_fact(reader, question, replace(look, under=files)), reader.store, question, under
        )
        events = mails.name_correspondent(one_fact, question)
        yield from drafts.marked(_with_doubt(_with_others(events, reader, question, look), question), question)


def _of_whole_folder(
    reader: Reader, question: str, request: WholeFolderQuestion, under: Sequence[Path]
) -> Generator[AnswerEvent, None, bool]:
    """Answer from all passages; return False if there was nothing to show, count or add up."""
    if request.form is Form.ABOUT:
        author = correspondents(question).sender
        if author and author[0].isupper():
            store, embedder, subject = reader.store, reader.embedder, request.subject
            return (yield from _passing(written_by.about(store, embedder, question, subject, author, under)))
        folder = summary.folder_of(reader.store, request.subject, under) if not request.author else ""
        if folder:
            summarised = summary.answer(reader.store, reader.embedder, question, f"the folder {folder}", under)
            return (yield from _passing(summarised))
        topic, below = _about(reader, question, request.subject, under)
        stems = content_stems(without_file_names(request.author)) - _ANY_TEXT
        events = summary.about(reader.store, reader.embedder, topic, request.subject, below, stems)
    elif request.form is Form.SUMMARY:
        events = summary.answer(reader.store, reader.embedder, question, request.subject, under)
    else:
        under = named_files(reader.store, question, under).indexed or under
        events = whole_folder_answer(reader.store, question, request, under)
        if request.form is Form.COUNT and reader.span_scorer is not None:
            look = SecondLook(reader.store, reader.span_scorer, reader.top_k, under)
            events = stated_first(events, partial(_one_fact, reader, question, look), reader.store, question, under)
    return (yield from _passing(events))


def _about(reader: Reader, question: str, subject: str, under: Sequence[Path]) -> tuple[str, Sequence[Path]]:
    """The question to search for, and the files that it names or else `under`."""
    named = named_files(reader.store, question, under)
    return (without_file_names(question, named.indexed), named.indexed) if named.indexed else (question, under)


def _passing(events: Iterator[AnswerEvent]) -> Generator[AnswerEvent, None, bool]:
    """Pass the events on; return False if they hold no answer."""
    answered = False
    for event in events:
        answered = answered or isinstance(event, Finished)
        yield event
    return answered


def _two_parts(reader: Reader, question: str, two: Sequence[str], look: SecondLook) -> Iterator[AnswerEvent]:
    """Answer each part with its own quote; words of the whole question help to find what a part leaves unsaid."""
    joined = Joined(question)
    alone = not content_stems(two[1]) <= content_stems(two[0])
    for number, part in enumerate(two):
        context = "" if number == 0 else two[0]
        events = list(_with_doubt(_one_fact(reader, part, replace(look, context=context)), part))
        done = finished(events)
        if number and not alone and done.found:
            events[-1] = Finished(doubted(done, "The other half of the question was not found"))
        alone = alone or done.found
        yield from joined.add(iter(events), part)
        if joined.stopped:
            break
    yield joined.finished()


def _compared(reader: Reader, question: str, compared: parts.Comparison, look: SecondLook) -> Iterator[AnswerEvent]:
    """Compare the measures of two things; if not both are known, answer the question as it stands, with a doubt."""
    both = [list(_one_fact(reader, one, look)) for one in compared.questions]
    first, second = map(finished, both)
    sure = all(done.found and not done.doubtful for done in (first, second))
    sure = sure and (first.text, first.citations) != (second.text, second.citations)
    verdict = compared.verdict(first.text, second.text) if sure else ""
    if not verdict:
        for event in _one_fact(reader, question, look):
            if isinstance(event, Finished) and event.answer.found:
                done = event.answer
                says = any(compared.word in citation.quote.lower() for citation in done.citations)
                event = event if says else Finished(doubted(done, "What is known of the two could not be compared"))
            yield event
        return
    joined = Joined(question)
    for events, part in zip(both, compared.questions, strict=True):
        yield from joined.add(iter(events), part, silent=True)
    yield from joined.say(verdict)
    yield joined.finished()


def _by_way_of(reader: Reader, question: str, steps: parts.ByWayOf, look: SecondLook) -> Iterator[AnswerEvent]:
    """Answer the question for the name first, then the question about it; both quotes are shown.

    A doubtful name counts only if the question as it stands finds nothing; what comes of it is doubtful too.
    """
    first = list(_with_others(_one_fact(reader, steps.first, look), reader, steps.first, look))
    done = finished(first)
    if not done.found or not parts.names_something(done.text):
        yield from _one_fact(reader, question, look)
    elif not done.doubtful:
        yield from _with_name(reader, question, steps, first, look)
    else:
        plain = list(_one_fact(reader, question, look))
        both = [] if finished(plain).found else list(_with_name(reader, question, steps, first, look))
        yield from both if both and finished(both).found else plain


def _with_name(
    reader: Reader, question: str, steps: parts.ByWayOf, first: Sequence[AnswerEvent], look: SecondLook
) -> Iterator[AnswerEvent]:
    """Pass on the answer to the first step, without its words, and answer the question about what it names."""
    joined = Joined(question)
    yield from joined.add(iter(first), steps.first, silent=True)
    second = steps.then(finished(first).text)
    yield from joined.add(_with_doubt(_one_fact(reader, second, look), second), second)
    yield joined.finished(needs_last=True)


def _one_fact(reader: Reader, question: str, look: SecondLook) -> Iterator[AnswerEvent]:
    """Answer from the nearest chunks or the best of more; an answer of another kind, or of a day past, is doubtful."""
    events = mails.name_first_person(_read(reader, question, look), question)
    of_days = by_entries(
        events, reader.store, question, look.under, embedder=reader.embedder, span_scorer=look.span_scorer
    )
    for event in of_days:
        if isinstance(event, Finished) and event.answer.found and len(event.answer.citations) == 1:
            done = event.answer
            citation, today = done.citations[0], datetime.now(UTC).astimezone().date()
            quote, source = citation.quote, source_quoted(done)
            reason = (
                misfit(question, done.text, quote)
                or not_the_sum(question, done.text, quote)
                or is_too_late(reader.store, question, citation, done.sources)
                or past_note(question, done.text, today)
                or (doubts.reason(question, done.text, quote, place_of_source(source)) if source else "")
                or _one_of_several_rows(reader.store, question, done)
            )
            if reason and not done.doubtful:
                done = doubted(done, reason)
            counted_from = day_meant(reader.store, done)
            of_unit, of_more = doubts.unit_meant(question, done.text, quote), doubts.one_of_several(question, done.text)
            notices = filter(None, (counted_from, of_unit, of_more))
            event = Finished(replace(done, notices=(*done.notices, *notices)))
        yield event


def _with_others(
    events: Iterator[AnswerEvent], reader: Reader, question: str, look: SecondLook
) -> Iterator[AnswerEvent]:
    """Pass an answer on, and say what other documents say instead."""
    return look_alikes.with_others(
        events, reader.store, question, look.under, embedder=reader.embedder, span_scorer=look.span_scorer
    )


def _with_doubt(events: Iterator[AnswerEvent], question: str) -> Iterator[AnswerEvent]:
    """Pass an answer on; one with one quote is doubtful if that or its passage lacks too much of the question."""
    for event in events:
        if isinstance(event, Finished) and event.answer.found and len(event.answer.citations) == 1:
            done, source = event.answer, source_quoted(event.answer)
            if source is not None and done.support is not None and not done.doubtful:
                quote, place = done.citations[0].quote, place_of_source(source)
                reason = doubts.lacking(question, done.text, quote, place, done.support)
                event = Finished(doubted(done, reason)) if reason else event
        yield event


def _one_of_several_rows(store: Store, question: str, done: Answer) -> str:
    """A sentence about other rows of the quoted table that fit the question as well; empty if there are none."""
    citation = done.citations[0]
    texts = [passage.chunk.text for passage in store.passages_of(citation.path)]
    others = rows_alike(question, citation.quote, done.text, texts)
    name = clean_name(citation.path.name)
    return f"{others + 1:,} rows of {name} fit the question; this is one of them" if others else ""


def _read(reader: Reader, question: str, look: SecondLook) -> Iterator[AnswerEvent]:
    """Answer from the nearest chunks; if they do not convince, from the best of more."""
    narrowed = narrow(reader.store, question, look.under)
    if narrowed is not None and narrowed.strict:
        # All of these files have the date, and few say it again where the answer stands.
        plain = without_file_names(without_dates(question) if narrowed.of_date else question, narrowed.files)
        inside = list(_twice(reader, plain, replace(look, under=narrowed.files), eager=True))
        done = finished(inside)
        if done.found:
            *events, _ = inside
            yield from events
            yield Finished(replace(done, question=question, narrowed_to=len(narrowed.files), narrowed=narrowed.words))
            return
    if narrowed is not None:
        look = replace(look, favoured=narrowed.files)
    yield from _twice(reader, question, look, eager=narrowed is not None or _may_be_paid_once(reader, question, look))


def _may_be_paid_once(reader: Reader, question: str, look: SecondLook) -> bool:
    """True if a price is asked for, and a booking or payment is among the nearest passages."""
    chunks = _nearest(reader, look.under, reader.embedder, question) if asks_price(question) else ()
    return any(is_event(line) for chunk in chunks for line in chunk.passage.chunk.text.split("\n"))


def _twice(reader: Reader, question: str, look: SecondLook, *, eager: bool) -> Iterator[AnswerEvent]:
    """Read the nearest chunks, then, if that does not convince or at once if `eager`, the best of more."""
    if eager or look.context:
        yield from reader.ask_once(question, look, look.under)
        return
    began = time.perf_counter()
    nearest = partial(_nearest, reader, look.under)
    first = yield from convincing(reader.ask_once(question, nearest, look.under))
    if first is None:
        return
    spent = time.perf_counter() - began
    events = list(reader.ask_once(question, look, look.under))
    second = finished(events)
    better = second.found and (second.support or 0.0) >= (first.support or 0.0)
    if first.found and not better:
        events = list(first.events)
    for event in events:
        match event:
            case FirstToken():
                pass
            case Finished(done):
                stages = (Stage("first look", spent), *done.timings.stages)
                yield Finished(replace(done, timings=replace(done.timings, stages=stages)))
            case _:
                yield event


def _nearest(reader: Reader, under: Sequence[Path], embedder: EmbedderLike, question: str) -> Sequence[RetrievedChunk]:
    return nearest(reader.store, embedder, question, reader.top_k, under)


def _with_unmet(event: Finished) -> Finished:
    """Say on a refusal which years, dates and numbers of the question no passage had that was read."""
    done = event.answer
    if done.found or not done.sources:
        return event
    requirements = Requirements(without_file_names(done.question))
    fits = [requirements.chunk_fits(place_of_source(source)) for source in done.sources]
    missing = [asked for asked, *of_all in zip(requirements.asked, *fits, strict=True) if min(of_all) > Fit.NEARBY]
    if not missing:
        return event
    notice = f"None of the passages nearest to the question has “{'”, “'.join(missing)}”"
    return Finished(replace(done, notices=(*done.notices, notice)))


def _with_basis(event: Finished, store: Store, under: Sequence[Path]) -> Finished:
    sources, total = event.answer.sources, store.counts(under=under).chunks
    if not total or event.answer.basis is not None:
        return event
    return Finished(replace(event.answer, basis=Basis(len(sources), total, len({one.path for one in sources}))))
