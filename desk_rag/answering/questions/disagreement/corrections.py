"""Find the sentence that corrects a quoted one: 'The shed costs 310 crowns, and not 280' in later minutes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer
from desk_rag.answering.questions.disagreement.newest import day_of
from desk_rag.answering.questions.disagreement.values import CORRECTS, VALUE, differ, numbers_of, value_in
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import quotable

if TYPE_CHECKING:
    from desk_rag.answering.evidence.span_scorer import SpanScorerLike
    from desk_rag.store.store import Store

_MOST_PASSAGES = 12
"""Passages with words of the question, and of a correction, that are looked through."""
_ANNOUNCED = re.compile(r"\bcorrect(?:ion|ed|s)\b|\berrat(?:um|a)\b|\bshould\s+(?:read|have\s+(?:been|read))\b", re.I)
_FEWEST_SHARED = 2
"""Words that a sentence which is called a correction shares with the question; one if it names the old value."""


def correction_of(
    store: Store, done: Answer, question: str, under: Sequence[Path], span_scorer: SpanScorerLike
) -> tuple[Row, str] | None:
    """The sentence of another document that corrects the quoted one, and its value; None if there is none."""
    citation = done.citations[0]
    old, about = numbers_of(done.text), content_stems(question)
    if not old or not VALUE.search(done.text):
        return None
    quoted_day = day_of(store, citation.path)
    for hit in store.search_words(f"{question} {done.text} correction corrected", _MOST_PASSAGES, under):
        passage = store.passage(hit.chunk_id, under)
        if passage is None or passage.path == citation.path:
            continue
        for unit in quotable(passage.chunk.text):
            names_old = old <= numbers_of(unit) and CORRECTS.search(unit) is not None
            shared = about & content_stems(unit)
            if not (names_old and shared) and not (_ANNOUNCED.search(unit) and len(shared) >= _FEWEST_SHARED):
                continue
            (scores,) = span_scorer.read(question, [place_of_passage(passage)])
            value = value_in(question, scores, passage.chunk.text, unit, VALUE)
            day = day_of(store, passage.path)
            is_older = (
                day is not None
                and quoted_day is not None
                and (day.year, day.month, day.day) < (quoted_day.year, quoted_day.month, quoted_day.day)
            )
            if not is_older and differ((done.text, citation.quote), (value, unit)):
                return Row(passage, unit), value
    return None
