"""Notice that another document answers the question differently: one of two leases, a mail that corrects minutes.

Documents much like the quoted one are compared by their words, passages that were read for the answer by the span
scorer, which must find another value there that would itself be shown as the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import (
    DOUBTFUL,
    Answer,
    AnswerEvent,
    AnswerText,
    Evidence,
    Finished,
    Retrieved,
    Source,
)
from desk_rag.answering.evidence.quote_matching import QuoteFinder
from desk_rag.answering.evidence.verification import verify_answer
from desk_rag.answering.questions.disagreement.amendments import amending
from desk_rag.answering.questions.disagreement.corrections import correction_of
from desk_rag.answering.questions.disagreement.newest import (
    amends_document,
    asks_at_last,
    asks_in_present,
    asks_then,
    days_of,
    is_newer,
    newest,
    newest_first,
    said_by,
    writing_of,
    writing_of_passage,
)
from desk_rag.answering.questions.disagreement.values import (
    PERSON,
    VALUE,
    WORD,
    denies,
    differ,
    differ_in_words,
    log_odds,
    of_other_event,
    says_same,
    value_in,
)
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import indexed
from desk_rag.answering.questions.one_fact.holders import newer_holder
from desk_rag.answering.questions.one_fact.rewriting import doubted
from desk_rag.answering.questions.whole_folder import show
from desk_rag.answering.requirements.answer_kinds import AnswerKind, asks_whether, is_of_kind, kind_asked
from desk_rag.answering.requirements.correspondence import header_of, is_header
from desk_rag.answering.requirements.places import place_of_passage, place_of_source
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.answering.requirements.statements.drafts import asks_of_draft, is_draft
from desk_rag.answering.requirements.statements.prices import asks_price, is_event
from desk_rag.answering.requirements.stems import content_stems, has_stem
from desk_rag.documents.sentences import quotable

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow, Passage

_MOST_COMPARED = 60
"""Documents of a folder that are compared; more are a collection, in which each says something else."""
_MOST_SHOWN = 3
_LEAST_LOG_ODDS = 0.0
"""Span score from which another value counts, if it would be shown as the answer without a doubt."""
_FEWEST_WORDS = 2
"""Words of the question that both sentences must be about."""
_LIGHT = content_stems("number date day time name amount")
"""Words of a question that a sentence need not have: a phone number is one without the word."""
_MEASURES = content_stems("much many")
_OPPOSITES = content_stems("included excluded covered insured allowed permitted forbidden prohibited needed required")
"""Words of a question for yes or no in whose place the answer may say the opposite."""
_COSTS = content_stems("cost costs charge charged price paid pay bill")
"""Words for what is to be paid, of which one document has this and another that."""
_CURRENCY = re.compile(r"[€$£]|\b(?:euros?|pounds?|dollars?|francs?|crowns?|EUR|GBP|USD|CHF)\b", re.I)
_RATE = re.compile(r"\d(?:\s?[^\W\d]+)?\s+(?:an?|per|each)\s+(?P<per>[a-z]{3,})", re.I)
_ASKS_HOLDER = re.compile(r"^who(?:['’]s|\s+(?:is|are))\s+(?:the|our|my)\b", re.I)
"""Asks who has an office or a task, which passes from one person to the next."""
_NAMED_AS_HOLDER = 0.75
"""Least support of an answer that the newest of several documents gives in so many words."""
_SETTINGS = frozenset({".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".properties"})
_LONGEST_VALUE = 3
"""Words of a short answer that is a value; more, if they are nearly all of a quote, are a statement."""
_OF_LATER = 0.6
"""Share of a quote's words of the question that the sentence of a later document must have."""
_OF_FRAME, _OF_QUESTION = 0.75, 0.5
"""Shares of the words of the quote, without the answer, and of the question that the other sentence must have."""


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
        successor = newer_holder(store, done, question, under)
        if successor is not None and successor.is_of_body:
            done = replace(done, support=max(done.support or 0.0, _NAMED_AS_HOLDER), unmet=())
            event = Finished(done)
        rows = _amending(store, done, question, under) or _others(store, done, question, under)
        others = _other_values(store, done, question, embedder, span_scorer)
        corrected = _correction(store, done, question, under, span_scorer)
        corrected = (successor.row, successor.name) if successor is not None else corrected
        rows += [row for row in others if row.passage.path not in {known.passage.path for known in rows}]
        if not asks_of_draft(question):
            rows = [row for row in rows if not is_draft(place_of_passage(row.passage))]
        rows = [row for row in rows if corrected is None or row.passage != corrected[0].passage]
        if corrected is not None and not corrected[1]:
            rows, corrected = [corrected[0], *rows], None
        if not rows and corrected is None:
            yield from text
            yield event
            continue
        rows = [*([corrected[0]] if corrected is not None else []), *newest_first(store, rows)]
        shown = show(store, rows[:_MOST_SHOWN])
        first = max((source.number for source in done.sources), default=0)
        sources = tuple(replace(source, number=source.number + first) for source in shown.sources)
        citations = tuple(replace(one, source_number=one.source_number + first) for one in shown.citations)
        yield Retrieved((*done.sources, *sources))
        both = replace(done, sources=(*done.sources, *sources), citations=(*done.citations, *citations))
        if corrected is not None:
            first_quote, correction, *rest = both.citations
            both = replace(both, text=corrected[1], citations=(correction, first_quote, *rest))
        else:
            both = _at_time_asked(both, store, question, rows, span_scorer)
        both = both if both.text == done.text else _without_agreeing(both)
        yield from (Evidence(citation) for citation in citations if citation in both.citations)
        yield from text if both.text == done.text else [AnswerText(both.text)]
        if len(both.citations) == 1:  # the one that it replaced said the same
            yield Finished(both)
            continue
        comparison = said_by(store, both.citations[0], both.citations[1:])
        more = f"; so do {len(rows) - _MOST_SHOWN:,} further files" if len(rows) > _MOST_SHOWN else ""
        is_settled = (both.text != done.text or asks_in_present(question)) and not both.doubtful
        advice = "" if is_settled else ". Name the one that is meant"
        yield Finished(replace(both, notices=(*both.notices, f"{comparison}{more}{advice}")))


def _correction(
    store: Store, done: Answer, question: str, under: Sequence[Path], span_scorer: SpanScorerLike
) -> tuple[Row, str] | None:
    """Return what corrects an answer, even a doubtful one; nothing if the question asks what was said at first."""
    if asks_then(question) or asks_whether(question) or not _is_single(replace(done, support=None)):
        return None
    return correction_of(store, done, question, under, span_scorer)


def _without_agreeing(done: Answer) -> Answer:
    """The answer without further quotes that state its value too: they spoke against the one it replaced."""
    first, *others = done.citations
    return replace(done, citations=(first, *(one for one in others if not says_same(done.text, one.quote))))


def _at_time_asked(
    done: Answer, store: Store, question: str, rows: Sequence[Row], span_scorer: SpanScorerLike
) -> Answer:
    """The value of the newest document for a question about now; doubt if the documents do not say which is right."""
    if asks_in_present(question):
        latest = newest(days_of(store, map(writing_of, done.citations)))
        if latest == writing_of(done.citations[0]):
            return done
        row = next((row for row in rows if writing_of_passage(row.passage) == latest), None)
        is_whole = _is_statement(done) or asks_whether(question)
        value = row.text if row is not None and is_whole else ""
        if row is not None and not value:
            (scores,) = span_scorer.read(question, [place_of_passage(row.passage)])
            value = value_in(question, scores, row.passage.chunk.text, row.text, _pattern(question, done))
        value = value.strip(" .")
        if value and row is not None and _differs(question, done, value, row.text):
            in_order = sorted(done.citations, key=lambda one: writing_of(one) != latest)
            return replace(done, text=value, citations=tuple(in_order))
    elif not asks_then(question):
        return done
    return doubted(done)


def _pattern(question: str, done: Answer) -> re.Pattern[str]:
    """The pattern of a value: a name for the holder of an office, a number if the answer has one, else words."""
    if asks_whether(question):
        return WORD
    return PERSON if _ASKS_HOLDER.match(question) else VALUE if VALUE.search(done.text) else WORD


def _differs(question: str, done: Answer, value: str, unit: str) -> bool:
    """True if a sentence says something else than the answer: no for yes, another value, or other words."""
    quote, pattern = done.citations[0].quote, _pattern(question, done)
    if asks_whether(question):
        return _says_other(question, unit, quote)
    return (differ_in_words(question, (done.text, quote), (value, unit)) if pattern is WORD
            else differ((done.text, quote), (value, unit)))  # fmt: skip


def _other_values(
    store: Store, done: Answer, question: str, embedder: EmbedderLike, span_scorer: SpanScorerLike
) -> Iterator[Row]:
    """The sentences of other documents, among the passages that were read, that give another value for the same."""
    pattern = _pattern(question, done)
    if not _asks_plainly(done, question) or not pattern.search(done.text):
        return
    citation = done.citations[0]
    by_number = {source.number: source for source in done.sources}
    asked = content_stems(question) - _LIGHT
    fewest = 1 if pattern is PERSON else _FEWEST_WORDS
    own_source, whole = by_number[citation.source_number], False
    own = _context(own_source, citation.quote) & asked
    if len(own) < fewest:  # what the sentence is about may stand in another one
        own, whole = _context(own_source, own_source.text) & asked, True
    if len(own) < fewest:
        return
    quoted = writing_of(citation)
    seen = {quoted}
    for source in done.sources:
        later = is_newer(store, writing_of(source), quoted, question)
        if writing_of(source) in seen or (pattern is WORD and not later):
            continue
        amends = later and amends_document(store, source.text, quoted)
        wanted = own & _context(source, source.text) if amends else own
        (scores,) = span_scorer.read(question, [place_of_source(source)])
        speaks = partial(_speaks_of, source=source, least=_OF_LATER if later else 1.0)
        lines = {
            unit: _line_of(source.text, unit) if asks_at_last(question) else unit
            for unit in quotable(source.text)
            if pattern.search(unit) and not is_header(unit) and _is_money_like(done.text, citation.quote, unit)
            and not (asks_price(question) and is_event(unit))
        }
        odds = {
            unit: log_odds(scores, source.text, unit)
            for unit, line in lines.items()
            if speaks(wanted, line, whole=whole or amends)
        }
        unit = max(odds, key=lambda one: odds[one], default="")
        if not unit or odds[unit] < _LEAST_LOG_ODDS:
            continue
        value = value_in(question, scores, source.text, unit, pattern)
        passage = store.passage(source.chunk_id, [source.path])
        if passage is None or not _differs(question, done, value, unit) or of_other_event(question, unit, value):
            continue
        cited = QuoteFinder([source]).find(unit)
        judged = [replace(cited, quote=lines[unit])] if cited else []
        verdict = verify_answer(question, judged, [], [source], embedder=embedder, span_scorer=span_scorer)
        if cited is not None and not verdict.unmet and verdict.probability >= DOUBTFUL:
            seen.add(writing_of(source))
            yield Row(passage, unit)


def _speaks_of(wanted: set[str], line: str, *, source: Source, least: float, whole: bool) -> bool:
    """True if a line, with what it stands under, has that share of a quote's words of the question, and one itself."""
    stems = _context(source, source.text if whole else line)
    needed = wanted - _COSTS if _COSTS & stems else wanted
    shared = sum(has_stem(stem, stems) for stem in needed)
    return shared >= least * len(needed) and bool(wanted & content_stems(line))


def _is_money_like(value: str, quote: str, unit: str) -> bool:
    """True unless a value is money and a sentence speaks of none: by its currency, or as '12.40 an hour' of a rate."""
    if _CURRENCY.search(value) is None or _CURRENCY.search(unit) is not None:
        return True
    rates = [{match["per"].lower() for match in _RATE.finditer(text)} for text in (quote, unit)]
    return bool(rates[0] & rates[1])


def _line_of(text: str, unit: str) -> str:
    """The line in which a sentence stands, such as an item of minutes: what it costs is told apart from what it is."""
    begin = text.find(unit)
    end = text.find("\n", begin)
    return text[text.rfind("\n", 0, begin) + 1 : end if end >= 0 else len(text)]


def _context(source: Source, sentence: str) -> set[str]:
    """The stems of a sentence, or of more of the text, and of what it stands under."""
    place, begin = place_of_source(source), source.text.find(sentence)
    header, section = header_of(place, begin), place.sections_before(begin)[:1]
    names = [header.sender, header.recipients] if header is not None else []
    return content_stems("\n".join([sentence, place.labels, source.title, *section, *names]))


def _amending(store: Store, done: Answer, question: str, under: Sequence[Path]) -> list[Row]:
    """The sentences that change the clause from which an answer was quoted."""
    if not _asks_plainly(done, question) or asks_then(question):
        return []
    return list(amending(store, done.citations[0], done.text, question, under))[:1]


def _others(store: Store, done: Answer, question: str, under: Sequence[Path]) -> list[Row]:
    """The sentences of documents much like the quoted one that answer differently, one of each."""
    if not _asks_plainly(done, question):
        return []
    citation, light = done.citations[0], _MEASURES | (_OPPOSITES if asks_whether(question) else set())
    question_stems = content_stems(question) - light
    own = store.document(citation.path)
    if own is None:
        return []
    beside = indexed(store, [citation.path.parent])
    below = [row for row in beside if not under or any(row.path.is_relative_to(base) for base in under)]
    alike = [row for row in below if are_alike(own, row) and row.path != own.path]
    if not 0 < len(alike) <= _MOST_COMPARED:
        return []
    of_value = {stem for stem in content_stems(done.text) if any(map(str.isdigit, stem))}
    frame = content_stems(citation.quote) - (of_value or content_stems(done.text))
    frame = content_stems(citation.quote) - light if _is_statement(done) else frame
    of_question = question_stems & content_stems(citation.quote)
    of_document = question_stems & (of_question | content_stems(f"{own.path.stem} {own.title}"))
    if len(frame) < 2 or not of_question or len(of_document) < _OF_QUESTION * len(question_stems):
        return []
    own_stems = _stems(own, store.passages_of(own.path))
    others = []
    for row in alike:
        passages = store.passages_of(row.path)
        if question_stems & (own_stems - _stems(row, passages)):
            continue  # a word of the question stands only in the quoted document
        sentence = _answering(passages, frame, of_question, done.text, question_stems, kind_asked(question))
        others += [sentence] if sentence is not None and _says_other(question, sentence.text, citation.quote) else []
    return others


def _says_other(question: str, sentence: str, quote: str) -> bool:
    """True unless a question asks for yes or no, and both sentences say the same of these."""
    return not asks_whether(question) or denies(question, sentence) != denies(question, quote)


def _is_statement(done: Answer) -> bool:
    """True if the short answer is nearly all of the quote, as where a question asks for yes or no."""
    words = len(done.text.split())
    return words > _LONGEST_VALUE and words > _OF_FRAME * len(done.citations[0].quote.split())


def _asks_plainly(done: Answer, question: str) -> bool:
    """True for an answer with one quote and no doubt, to a question that names no year or date."""
    return _is_single(done) and not Requirements(question).timed


def _is_single(done: Answer) -> bool:
    single = done.found and len(done.citations) == 1 and not done.doubtful and not done.stopped and not done.sentences
    return single and bool(done.text)


def _answering(
    passages: Sequence[Passage],
    frame: set[str],
    of_question: set[str],
    answer: str,
    question: set[str],
    kind: AnswerKind | None,
) -> Row | None:
    """The sentence with the words around the answer, or all of the question's, and without the answer; or None."""
    for passage in passages:
        for unit in quotable(passage.chunk.text):
            stems = content_stems(unit)
            if is_header(unit) or (kind is not None and not is_of_kind(kind, unit)):
                continue
            is_asked = len(question) > 1 and question <= frame & stems
            if not is_asked and (len(frame & stems) < _OF_FRAME * len(frame) or not of_question <= stems):
                continue
            is_in_words = VALUE.search(answer) is not None and says_same(answer, unit)
            return None if is_in_words or answer.casefold().strip(". ") in unit.casefold() else Row(passage, unit)
    return None


def are_alike(one: DocumentRow, other: DocumentRow) -> bool:
    """True if two files of a folder share a word of their names, and their ending; files of settings need not."""
    suffixes = {path.suffix.lower() for path in (one.path, other.path)}
    same_place = one.path.parent == other.path.parent and (len(suffixes) == 1 or suffixes <= _SETTINGS)
    common = content_stems(one.path.stem) & content_stems(other.path.stem)
    return same_place and any(not stem.isdigit() for stem in common)


def _stems(row: DocumentRow, passages: Sequence[Passage]) -> set[str]:
    """The stems of a document, its name and its title."""
    return content_stems("\n".join([row.path.stem, row.title, *(passage.chunk.text for passage in passages)]))
