"""Every question of the demo is answered rightly from the sample documents."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Finished
from desk_rag.assets import assets_dir
from desk_rag.cli.demo import Question, is_right, read_questions
from tests.answering.whole_desk.test_questions import engine_over

QUESTIONS = read_questions(assets_dir() / "demo_questions.json")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    samples = assets_dir() / "sample_docs"
    opened = engine_over(tmp_path_factory.mktemp("demo"), lambda folder: Path(shutil.copytree(samples, folder)))
    yield opened
    opened.close()


@pytest.mark.parametrize("question", QUESTIONS, ids=[question.text for question in QUESTIONS])
def test_the_demo_answers_its_question(engine: AnswerEngine, question: Question) -> None:
    *_, last = engine.ask(question.text)
    assert isinstance(last, Finished)
    assert is_right(last.answer, question, engine.settings.data_dir.parent / "desk"), last.answer.text
    assert not last.answer.doubtful or not last.answer.found
