"""An answer rests on the files as they are now, or says what it lacks: real files, store, parsers and reader."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.conversation.turns import Request
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerEvent, AnswerText, FilesWaiting, Finished, FirstToken
from desk_rag.answering.opening import open_engine
from desk_rag.config import AnswerSettings, Settings
from desk_rag.documents.status import IndexStage
from desk_rag.errors import DeskRagError
from desk_rag.indexer import fresh_answer
from desk_rag.ingest import freshness, pipeline
from desk_rag.model.prompt import NO_ANSWER
from desk_rag.store.types import Activity

DOOR = "What colour is the kitchen door?"
PIANO = "When was the piano tuned?"


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose quality gate has run, so that each test need not run it again."""
    root = tmp_path_factory.mktemp("gated")
    open_engine(Settings(data_dir=root), writer=True).close()
    return root / "models"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "door.md").write_text("# Doors\n\nThe kitchen door is painted green. The front door is black.\n")
    return folder


@pytest.fixture
def settings(tmp_path: Path, docs: Path, gated: Path) -> Settings:
    chosen = Settings(data_dir=tmp_path / "data", answer=AnswerSettings(max_new_tokens=40))
    shutil.copytree(gated, chosen.data_dir / "models")
    return chosen


@pytest.fixture
def engine(settings: Settings, docs: Path) -> Iterator[AnswerEngine]:
    opened = open_engine(settings, writer=True)
    index(opened, docs)
    yield opened
    opened.close()


def index(engine: AnswerEngine, docs: Path) -> None:
    prompt = engine.model.prompt
    for _ in pipeline.sync_folder(engine.store, docs, prompt, prompt.chunk_size, engine.settings.index, never):
        pass


def last(events: list[AnswerEvent]) -> Answer:
    assert isinstance(events[-1], Finished)
    return events[-1].answer


def ask(engine: AnswerEngine, question: str, docs: Path) -> Answer:
    return last(list(fresh_answer.ask(engine, Request(question, under=(docs,)), never)))


def many(docs: Path) -> None:
    """More new files than an answer waits for when nobody else reads them."""
    for number in range(20):
        (docs / f"note {number}.md").write_text(f"Note {number}: the garden and the weather in week {number}.\n")


def test_a_file_changed_a_moment_ago_is_answered_from_its_new_text(engine: AnswerEngine, docs: Path) -> None:
    assert "green" in ask(engine, DOOR, docs).text
    (docs / "door.md").write_text("# Doors\n\nThe kitchen door is painted yellow. The front door is black.\n")
    (docs / "piano.md").write_text("# Piano\n\nThe piano was tuned on 3 May 2026 by Mr. Okafor.\n")
    events = list(fresh_answer.ask(engine, Request(DOOR, under=(docs,)), never))
    answer = last(events)
    assert "yellow" in answer.text
    assert (answer.backlog, answer.notices) == (None, ())
    tokens = [event for event in events if isinstance(event, FirstToken)]
    assert answer.timings.stages[0].name == tokens[0].timings.stages[0].name == "look"
    assert not engine.store.chunks_without_vector(engine.embedder.fingerprint, 9), "its meaning is found, too"
    assert "3 May 2026" in ask(engine, PIANO, docs).text


def test_a_refusal_names_the_share_of_files_it_speaks_for(engine: AnswerEngine, docs: Path) -> None:
    many(docs)
    events = list(fresh_answer.ask(engine, Request(PIANO, under=(docs,)), never))
    answer = last(events)
    said = "I could not find that in the documents read so far (1 of 21 files)."
    assert (answer.found, answer.text) == (False, said)
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == said
    assert answer.notices[0] == "From 1 of 21 files; 20 are not read yet"
    assert answer.backlog is not None and len(answer.backlog.new) == 20
    assert "green" in ask(engine, DOOR, docs).text, "what was read still answers"
    index(engine, docs)
    assert ask(engine, PIANO, docs).text == NO_ANSWER


def test_a_process_that_cannot_write_says_which_files_changed(
    engine: AnswerEngine, settings: Settings, docs: Path
) -> None:
    (docs / "door.md").write_text("# Doors\n\nThe kitchen door is painted yellow. The front door is black.\n")
    reader = open_engine(settings, writer=False)
    try:
        answer = ask(reader, DOOR, docs)
    finally:
        reader.close()
    assert any(notice.startswith("1 file changed since it was read: ") for notice in answer.notices)
    assert "door.md" in answer.notices[0]


def test_a_question_during_the_first_index_waits_until_all_files_are_read(engine: AnswerEngine, docs: Path) -> None:
    many(docs)
    (docs / "piano.md").write_text("# Piano\n\nThe piano was tuned on 3 May 2026 by Mr. Okafor.\n")
    waits = threading.Event()

    def read() -> None:
        waits.wait(60)
        index(engine, docs)

    reading = threading.Thread(target=read)
    reading.start()
    events = []
    for event in fresh_answer.ask(engine, Request(PIANO, under=(docs,)), never, is_reading=reading.is_alive):
        events.append(event)
        waits.set()
    reading.join()
    assert isinstance(events[0], FilesWaiting) and events[0].backlog.share == "1 of 22 files"
    assert "3 May 2026" in last(events).text and last(events).backlog is None


def test_who_does_not_wait_is_answered_from_what_is_there(engine: AnswerEngine, docs: Path) -> None:
    many(docs)
    wanted = iter([True, True, False])
    events = list(
        fresh_answer.ask(
            engine, Request(DOOR, under=(docs,)), never, is_reading=lambda: True, wait=lambda: next(wanted, False)
        )
    )
    assert sum(isinstance(event, FilesWaiting) for event in events) == 2
    assert "green" in last(events).text and last(events).notices[0].startswith("From 1 of 21 files")


def test_nothing_is_answered_from_no_files_because_there_was_no_time_to_look(
    engine: AnswerEngine, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that has not come to any file makes the question wait; one over a known index does not."""
    new = docs.parent / "new"
    new.mkdir()
    (new / "piano.md").write_text("# Piano\n\nThe piano was tuned on 3 May 2026 by Mr. Okafor.\n")
    real, seconds = freshness.look, iter([0.0, 0.0])
    monkeypatch.setattr(
        freshness, "look", lambda *known, **named: real(*known, **{**named, "seconds": next(seconds, 5.0)})
    )
    reads = iter([True, True])
    events = list(fresh_answer.ask(engine, Request(PIANO, under=(new,)), never, is_reading=lambda: next(reads, False)))
    assert isinstance(events[0], FilesWaiting) and not events[0].backlog.complete
    seconds = iter([0.0, 0.0])
    assert not isinstance(next(fresh_answer.ask(engine, Request(DOOR, under=(docs,)), never)), FilesWaiting)


def test_a_folder_without_a_readable_file_is_named_instead_of_refused(engine: AnswerEngine, docs: Path) -> None:
    empty = docs.parent / "empty"
    empty.mkdir()
    with pytest.raises(DeskRagError, match="nothing indexed under .*empty"):
        list(fresh_answer.ask(engine, Request(DOOR, under=(empty,)), never))


def test_the_activity_of_the_writer_tells_whether_it_reads(engine: AnswerEngine) -> None:
    def does(stage: IndexStage, total: int, waiting: str = "") -> bool:
        activity = Activity(os.getpid(), time.time(), stage, 0, total, "files", 0.0, None, waiting, "")
        engine.store.publish_activity(activity)
        return freshness.is_reading(engine.store)

    assert does(IndexStage.WORDS, 40) and does(IndexStage.SCAN, 40)
    assert not does(IndexStage.SCAN, 0) and not does(IndexStage.WARM, 40)
    assert not does(IndexStage.WORDS, 40, "stopped")
    engine.store.request_pause(time.time() + 60)
    assert not does(IndexStage.WORDS, 40)
