"""Notice that a document much like the quoted one answers the question differently, as one of two leases does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer, AnswerEvent, AnswerText, Evidence, Finished, Retrieved
from desk_rag.answering.questions.folder.reading.fields import Field, fields_of
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import indexed
from desk_rag.answering.questions.whole_folder import finish, listed, show
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import quotable
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow, Passage

_LABEL_ASKED = re.compile(
    r"^(?:what|who|when|how\s+(?:much|high))\s+(?:is|are|was|were)\s+(?:the|my|our)\s+(?P<label>[\w\s-]{3,40})$",
    re.I,
)
_MOST_COMPARED = 60
"""Documents of a folder that are compared; more are a collection, in which each says something else."""
_MOST_SHOWN = 3
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
    events: Iterator[AnswerEvent], store: Store, question: str, under: Sequence[Path]
) -> Iterator[AnswerEvent]:
    """Pass an answer on; add what documents much like the quoted one say instead.

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
        if not rows:
            yield from text
            yield event
            continue
        shown = show(store, rows[:_MOST_SHOWN])
        first = max((source.number for source in done.sources), default=0)
        sources = tuple(replace(source, number=source.number + first) for source in shown.sources)
        citations = tuple(replace(one, source_number=one.source_number + first) for one in shown.citations)
        yield Retrieved((*done.sources, *sources))
        for citation in citations:
            yield Evidence(citation)
        yield from text
        numbers = ", ".join(f"[{citation.source_number}]" for citation in citations)
        names = ", ".join(clean_name(citation.path.name) for citation in citations)
        verb = "says" if len(citations) == 1 else "say"
        more = f"; so do {len(rows) - _MOST_SHOWN:,} further files" if len(rows) > _MOST_SHOWN else ""
        notice = f"{names} {verb} something else, see {numbers}{more}. Name the one that is meant"
        yield Finished(
            replace(
                done,
                sources=(*done.sources, *sources),
                citations=(*done.citations, *citations),
                notices=(*done.notices, notice),
            )
        )


def _others(store: Store, done: Answer, question: str, under: Sequence[Path]) -> list[Row]:
    """The sentences of documents much like the quoted one that answer differently, one of each."""
    is_plain = done.found and len(done.citations) == 1 and not done.doubtful and not done.stopped and not done.sentences
    if not is_plain or Requirements(question).has_values or not done.text:
        return []
    citation, question_stems = done.citations[0], content_stems(question)
    own = store.document(citation.path)
    if own is None:
        return []
    beside = indexed(store, [citation.path.parent])
    alike = [row for row in beside if _are_alike(own, row) and row.path != own.path and _is_below(row.path, under)]
    if not 0 < len(alike) <= _MOST_COMPARED:
        return []
    frame = content_stems(citation.quote) - content_stems(done.text)
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
    """True if two files of a folder have the same ending and a word of their names in common."""
    same_place = one.path.parent == other.path.parent and one.path.suffix.lower() == other.path.suffix.lower()
    common = content_stems(one.path.stem) & content_stems(other.path.stem)
    return same_place and any(not stem.isdigit() for stem in common)


def _is_below(path: Path, under: Sequence[Path]) -> bool:
    return not under or any(path.is_relative_to(base) for base in under)


def _stems(row: DocumentRow, passages: Sequence[Passage]) -> set[str]:
    """The stems of a document, its name and its title."""
    return content_stems("\n".join([row.path.stem, row.title, *(passage.chunk.text for passage in passages)]))
