"""Find what takes a quoted sentence back or replaces it: 'Forget the green. The doors shall be red' in a later mail.

A correction says that something changed, and either names the old value or is about what the question asks for. The new
value stands in the same sentence or in the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer
from desk_rag.answering.questions.disagreement.newest import asks_now, day_of, writing_of, writing_of_passage
from desk_rag.answering.questions.disagreement.values import (
    ANNOUNCES,
    CORRECTS,
    REPLACES,
    VALUE,
    WORD,
    differ,
    differ_in_words,
    log_odds,
    units_of,
    value_in,
)
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.requirements.correspondence import is_header
from desk_rag.answering.requirements.dates import Date
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.answering.requirements.statements.drafts import asks_of_draft, is_draft
from desk_rag.answering.requirements.statements.numbers import numbers_of
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import QUOTED_HEADING, quotable

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike, SpanScores
    from desk_rag.store.store import Store
    from desk_rag.store.types import Passage

_MOST_PASSAGES = 12
"""Passages with words of the question, and of a correction, that are looked through."""
_ASKS_FOR_TEXT = re.compile(r"^(?:why|how)\b(?!\s+(?:much|many|long|high|old|far|often)\b)", re.I)
"""Asks for a reason or a way, which a later one does not replace."""
_MOST_WORDS = 8
"""Words of a value; a longer text is not replaced by another."""
_SUPPOSES = re.compile(r"\b(?:would|could|might)\s+(?:not\s+)?have\b|^without\b", re.I)
"""Says what was not so: 'Without it we would have lost £164.'"""
_OWNS_UP = re.compile(
    r"\b(?:correct\w*|put\s+(?:\w+\s+)?right|wrong\w*|mistake\w*|misread|overlooked|sorry|apologi\w+)\b", re.I
)
"""Says, in a reply, that the message below it is not right."""
_OF_FRAME = 0.5
"""Share of the words around a value that a sentence about a newer one has."""
_FEWEST_SHARED = 2
"""Words that a sentence which announces a change, and what it stands under, share with the question."""
_LEAST_LOG_ODDS = -2.0
"""Span score from which a sentence answers the question where the answer is no number."""


def correction_of(
    store: Store, done: Answer, question: str, under: Sequence[Path], span_scorer: SpanScorerLike
) -> tuple[Row, str] | None:
    """The sentence of another document that corrects the quoted one, and its value; None if there is none.

    The value is '' where a later sentence replaces the old one and its own cannot be read: 'I am taking over from him'.

    For a question about now, the newest document that says the same of another value corrects it as well.
    """
    citation = done.citations[0]
    if _ASKS_FOR_TEXT.match(question.strip()) or len(done.text.split()) > _MOST_WORDS:
        return None
    quoted = writing_of(citation)
    quoted_day = day_of(store, quoted)
    newest: tuple[Date | None, tuple[Row, str]] | None = None
    for hit in store.search_words(f"{question} {done.text} correction corrected", _MOST_PASSAGES, under):
        passage = store.passage(hit.chunk_id, under)
        if passage is None or writing_of_passage(passage) == quoted:
            continue
        units = list(_correcting(passage, question, done.text, citation.quote))
        restating = list(_restating(passage, question, done.text, citation.quote)) if asks_now(question) else []
        if not units + restating or (is_draft(place_of_passage(passage)) and not asks_of_draft(question)):
            continue
        day = day_of(store, writing_of_passage(passage))
        order = _order(day, quoted_day)
        if order is not None and order < 0:
            continue
        if order is None and not VALUE.search(done.text):
            continue  # words differ for many reasons: only a later document takes them back
        (scores,) = span_scorer.read(question, [place_of_passage(passage)])
        for unit in units if order != 1 else [*units, *restating]:
            value = _other_value(question, scores, passage.chunk.text, unit, (done.text, citation.quote))
            if value and unit in units:
                return Row(passage, unit), value
            is_replaced = order == 1 and unit in units and not VALUE.search(done.text) and REPLACES.search(unit)
            if (value or is_replaced) and (newest is None or _order(day, newest[0]) == 1):
                newest = day, (Row(passage, unit), value)
    return newest[1] if newest is not None else None


def _order(one: Date | None, other: Date | None) -> int | None:
    """1 if a day is later than another, -1 if it is earlier, 0 for the same; None if one is not known."""
    if one is None or other is None:
        return None
    mine, others = (one.year, one.month, one.day), (other.year, other.month, other.day)
    return (mine > others) - (mine < others)


def _correcting(passage: Passage, question: str, answer: str, quote: str) -> Iterator[str]:
    """The sentences that take the answer back or announce a change of it; after the former, the next one too."""
    asked, of_answer = content_stems(question), content_stems(answer)
    numbers, words, about = numbers_of(answer), of_answer - asked, asked - of_answer
    is_timed = bool(Requirements(question).timed)  # then what changed later is no correction
    labels = content_stems(f"{place_of_passage(passage).labels} {passage.title}")
    own_text, _, earlier = passage.chunk.text.partition(QUOTED_HEADING)
    if quote in earlier and _OWNS_UP.search(own_text):
        yield from (unit for unit in quotable(own_text) if numbers and units_of(answer) & units_of(unit))
    units = [unit for unit in quotable(passage.chunk.text) if not is_header(unit) and not _SUPPOSES.search(unit)]
    for unit, following in zip(units, [*units[1:], ""], strict=True):
        names_old = numbers <= numbers_of(unit) if numbers else bool(words & content_stems(unit))
        names_old = names_old and not _counts_other(numbers, unit, f"{question} {quote}")
        takes_back = names_old and (_OWNS_UP if is_timed else CORRECTS).search(unit) is not None
        of_next = content_stems(following) - numbers_of(following)
        follows = takes_back and (not numbers or not of_next or of_next & (asked | content_stems(quote) - of_answer))
        shared, of_labels = about & content_stems(unit), about & labels
        if takes_back:
            is_about = bool(shared or of_labels or about & content_stems(following))
        else:
            announces = not is_timed and shared and ANNOUNCES.search(unit)
            is_about = bool(announces) and len(shared | of_labels) >= _FEWEST_SHARED
        if is_about:
            yield from filter(None, [unit, following if follows else ""])


def _restating(passage: Passage, question: str, answer: str, quote: str) -> Iterator[str]:
    """The sentences that say of another amount what the quote says of the answer."""
    frame = {stem for stem in content_stems(quote) - content_stems(answer) if not any(map(str.isdigit, stem))}
    asked = content_stems(question) & frame
    for unit in quotable(passage.chunk.text) if asked and VALUE.search(answer) else ():
        stems = content_stems(unit)
        if asked <= stems and len(frame & stems) >= _OF_FRAME * len(frame) and units_of(answer) <= units_of(unit):
            yield unit


def _other_value(question: str, scores: SpanScores, text: str, unit: str, old: tuple[str, str]) -> str:
    """The value that a sentence gives in place of the old one; '' if it gives none, or none that differs."""
    is_number = VALUE.search(old[0]) is not None
    value = value_in(question, scores, text, unit, VALUE if is_number else WORD)
    if is_number:
        return value if differ(old, (value, unit)) else ""
    if len(value.split()) > _MOST_WORDS:
        return ""
    is_other = differ_in_words(question, old, (value, unit))
    return value if is_other and log_odds(scores, text, unit) >= _LEAST_LOG_ODDS else ""


def _counts_other(numbers: set[str], unit: str, context: str) -> bool:
    """True if a number of the old value counts something of which neither question nor quote speaks: '21 days'."""
    counted = re.findall(r"(?<![\w.,])(\d[\d.,]*)\s+([a-z]{3,}s)\b", unit)
    stems = content_stems(context)
    return any(number in numbers and not content_stems(noun) & stems for number, noun in counted)
