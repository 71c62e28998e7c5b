"""Retrieve chunks and prefer those that have the names, numbers and dates of the question.

Words and vectors rank the minutes of 2023 and those of 2024 alike. Comparing what the question names with a few more
chunks than are read takes about two milliseconds. A question in plain words prefers text to code, and code to tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.requirements.objections import definition_asked, names_code
from desk_rag.answering.requirements.places import place_of_passage
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.answering.requirements.statements.prices import asks_price, is_event
from desk_rag.documents.formats import Format, format_of_name
from desk_rag.retrieval.search import RetrievedChunk, ranked

if TYPE_CHECKING:
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.store.store import Store

DEPTH = 24
"""Chunks among which the right one nearly always is."""
_COMPARED = 16
"""Chunks whose texts are compared before the first token."""
_FACTORS = {Fit.STATED: 1.0, Fit.NEARBY: 1.0, Fit.MISSING: 0.5, Fit.OTHER: 0.35}
"""Share of its fused score that a chunk keeps for each requirement; see bench/LOG.md, "Requirements of a question"."""
_OF_CODE, _OF_TESTS = 0.6, 0.4
"""The same for code and tests where the question is in plain words; tests count as code where it names code.

See "A repository as a folder" in bench/LOG.md."""
_OF_EVENTS = 0.35
"""The same for rows of bookings and payments, where the question asks what something costs."""
_DEFINES_AMONG = 60
"""Chunks among which one with a definition is looked for, where the question asks what something is."""
_NO_DEFINITION = 0.35
"""Share of its score that a chunk keeps that does not say what the thing is."""
_ASKS_TESTS = re.compile(r"\b(?:tests?|tested|specs?)\b|test_", re.I)
_TESTS = frozenset({"test", "tests", "spec", "specs", "testing"})


def nearest(
    store: Store, embedder: EmbedderLike | None, question: str, limit: int, under: Sequence[Path] = ()
) -> list[RetrievedChunk]:
    """Return at most `limit` chunks, best first, see `ranked`."""
    requirements = Requirements(question)
    compared = _COMPARED if definition_asked(question) is None else _DEFINES_AMONG
    best = ranked(store, embedder, question, max(compared, limit), under)
    chunks = list(islice(best, limit))
    if not requirements and compared == _COMPARED and all(of_form(question, chunk) == 1 for chunk in chunks):
        return chunks
    chunks += islice(best, max(0, compared - limit))
    shares = {id(chunk): factor(requirements, chunk) * of_form(question, chunk) for chunk in chunks}
    return sorted(chunks, key=lambda chunk: -chunk.score * shares[id(chunk)])[:limit]


def factor(requirements: Requirements, chunk: RetrievedChunk) -> float:
    """The share of its score that a chunk keeps by what the question names."""
    share = 1.0
    for fit in requirements.chunk_fits(place_of_passage(chunk.passage)):
        share *= _FACTORS[fit]
    return share


def of_form(question: str, chunk: RetrievedChunk) -> float:
    """The share of its score that a chunk keeps by the kind of its file, and by the form of its sentences."""
    definition = definition_asked(question)
    defines = definition is None or definition.search(chunk.passage.chunk.text) is not None
    return _of_origin(question, chunk) * (1.0 if defines else _NO_DEFINITION)


def _of_origin(question: str, chunk: RetrievedChunk) -> float:
    path = chunk.passage.path
    if asks_price(question) and all(is_event(line) for line in chunk.passage.chunk.text.split("\n")[1:]):
        return _OF_EVENTS
    if format_of_name(path.name) is not Format.CODE:
        return 1.0
    words = {word for part in path.parts[-3:] for word in re.split(r"[\W_]+", part.lower())}
    is_test = bool(words & _TESTS)
    if names_code(question):
        return _OF_CODE if is_test and not _ASKS_TESTS.search(question) else 1.0
    return _OF_TESTS if is_test else _OF_CODE
