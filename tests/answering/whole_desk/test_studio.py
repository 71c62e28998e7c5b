"""Questions about a desk with titles, reminders, hours, events and dialogues, asked as `desk-rag ask` does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.engine import AnswerEngine
from tests.answering.whole_desk.studio import write_desk
from tests.answering.whole_desk.test_questions import check, engine_over, questions_in


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over(tmp_path_factory.mktemp("studio"), write_desk)
    yield opened
    opened.close()


@pytest.mark.parametrize("question", questions_in("studio.jsonl"), ids=lambda question: question["question"])
def test_the_printed_answer(engine: AnswerEngine, question: dict[str, list[str]]) -> None:
    check(engine, question)
