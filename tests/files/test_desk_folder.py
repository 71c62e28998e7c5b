"""200 ordinary files: what holds text is read, every format answers with its place, the rest is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.conversation.asking import ask
from desk_rag.answering.conversation.turns import Request
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Finished
from desk_rag.answering.serving_model import prepare
from desk_rag.config import Settings
from desk_rag.documents.status import FileState
from desk_rag.ingest import pipeline
from desk_rag.retrieval.embedding import load_embedder
from tests.answer_world import World, an_engine
from tests.files import desk_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    """The shipped reader and embedder over the folder, without chunk KV."""
    root = tmp_path_factory.mktemp("desk")
    desk_folder.build(root / "docs")
    settings = Settings(data_dir=root / "data")
    world = World(prepare(settings), load_embedder(settings.model), root / "data")
    with an_engine(world, root / "data", max_new_tokens=160) as opened:
        prompt, store = opened.model.prompt, opened.store
        for _ in pipeline.sync_folder(store, root / "docs", prompt, prompt.chunk_size, settings.index, lambda: False):
            pass
        for _ in pipeline.embed_pending(store, opened.embedder, lambda: False):
            pass
        yield opened


def relative(path: Path) -> str:
    return path.as_posix().partition("/docs/")[2]


def test_every_file_is_read_or_explained(engine: AnswerEngine) -> None:
    rows = {relative(row.path): row for row in engine.store.documents()}
    assert len(rows) == desk_folder.NUM_FILES
    expected = {file.name: file.reason for file in desk_folder.unread()}
    not_read = {name: row.reason for name, row in rows.items() if row.state is not FileState.INDEXED}
    assert set(not_read) == set(expected)
    for name, reason in expected.items():
        assert re.search(reason, not_read[name]) or name.endswith((".png", ".zip", ".doc", ".mp3")), not_read[name]


def test_every_format_answers_its_question_with_its_place(engine: AnswerEngine) -> None:
    wrong = []
    for fact in desk_folder.facts():
        for event in ask(engine, Request(fact.question)):
            if isinstance(event, Finished):
                answer = event.answer
        quotes = [
            (relative(answer.sources[citation.source_number - 1].path), citation.quote, str(citation.location))
            for citation in answer.citations
        ]
        right = any(
            name == fact.name and fact.answer in quote and re.match(f"(.*, )?{fact.place}", place)
            for name, quote, place in quotes
        )
        if not right:
            wrong.append((fact.name, fact.question, answer.text, quotes))
    print(*wrong, sep="\n")
    assert len(wrong) <= len(desk_folder.facts()) // 10, wrong


def test_a_question_about_an_unread_file_says_so(engine: AnswerEngine) -> None:
    (finished,) = (
        event for event in ask(engine, Request("What is in the scanned letter?")) if isinstance(event, Finished)
    )
    assert any("scanned-letter.pdf was not read: it has no text layer" in notice for notice in finished.answer.notices)
