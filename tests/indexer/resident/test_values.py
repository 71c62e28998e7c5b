"""Events of an answer survive the way through JSON unchanged, whatever they hold."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from desk_rag.answering.events import (
    Absence,
    Answer,
    AnswerEvent,
    AnswerMode,
    AnswerText,
    Citation,
    Evidence,
    FilesWaiting,
    Finished,
    FirstToken,
    Missing,
    Retrieved,
    Source,
    Stage,
    Timings,
)
from desk_rag.documents.chunking import Chunk, ChunkId, Location
from desk_rag.documents.formats import PlaceUnits
from desk_rag.indexer.resident import values
from desk_rag.ingest.freshness import Backlog
from desk_rag.ingest.unread import UnreadFiles
from desk_rag.retrieval.search import RetrievedChunk
from desk_rag.store.types import FileStamp, Passage

ODD = Path(os.fsdecode(b"/home/ada/\xff\xfe odd\n\x1b[2J\xc3\xa9.md"))
SLIDES = Location("Budget › Q2", 4, 5, None, None, PlaceUnits("slide", "slides"))
LINES = Location(line_start=3, line_end=9)
TIMINGS = Timings((Stage("look", 0.1 + 0.2), Stage("retrieve", 1e-9)), 1060, 2**40, 0.25, 12, 0.0)
SOURCE = Source(
    1,
    ChunkId("ab" * 16),
    ODD,
    "Tïtle\udcff",
    SLIDES,
    "text\r\n\x00 “quoted”",
    0.97,
    True,
    False,
    "c",
    (1, 2**63, 3),
    5.5,
)
AWAY = Source(2, ChunkId("cd" * 16), ODD, "", LINES, "", 0.0, False, True, absence=Absence(Missing.FOLDER_AWAY, 1.5))
CITATION = Citation(2, ODD, LINES, "a quote", 12.0)
ANSWER = Answer(
    "question?", "text", True, (CITATION,), ("dropped",), (SOURCE, AWAY), TIMINGS, 1, 1, AnswerMode.FULL, "model",
    "raw", notices=("notice",), not_read=UnreadFiles(3, (("images", 2), ("of tools", 1))),
    backlog=Backlog(1, (ODD,), (), False),
)  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        FilesWaiting(Backlog(12, (ODD,), (ODD, Path("/b")), complete=False)),
        Retrieved((SOURCE, AWAY)),
        Retrieved(()),
        FirstToken(TIMINGS),
        Evidence(CITATION),
        AnswerText("pieces “of” text\n"),
        Finished(ANSWER),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_comes_back_as_it_was(event: AnswerEvent) -> None:
    assert values.to_event(json.loads(json.dumps(values.of_event(event)))) == event


def test_a_search_result_comes_back_as_it_was() -> None:
    chunk = Chunk(ChunkId("ab" * 16), 3, "text", 12, SLIDES)
    passage = Passage(chunk, ODD, "Title", FileStamp(1, 2, 2**64 - 1, "p/3"), "digest", 1.5)
    result = RetrievedChunk(passage, 0.5, None, 3, -0.25)
    assert values.built(RetrievedChunk, json.loads(json.dumps(values.plain(result)))) == result


@pytest.mark.parametrize("message", [{}, {"kind": "Answer", "event": {}}, {"kind": "AnswerText", "event": {"text": 5}}])
def test_what_is_no_event_is_refused(message: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        values.to_event(message)
