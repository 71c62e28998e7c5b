"""Questions about a desk with titles, reminders, hours, events and dialogues, asked as `desk-rag ask` does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.conversation import asking
from desk_rag.answering.conversation.turns import Request, Turn, turn_of
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, Finished
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


def dialogue(engine: AnswerEngine, *questions: str) -> list[Answer]:
    """The answers to questions that lean on one another."""
    desk, answers, turns = engine.settings.data_dir.parent / "desk", list[Answer](), list[Turn]()
    for question in questions:
        *_, last = asking.ask(engine, Request(question, earlier=tuple(turns), under=(desk,)))
        assert isinstance(last, Finished)
        answers.append(last.answer)
        turns.append(turn_of(last.answer))
    return answers


def test_a_follow_up_keeps_the_conditions_of_a_list(engine: AnswerEngine) -> None:
    _, total, of_year, oldest = dialogue(
        engine, "Which invoices are unpaid?", "What is the total?", "And those of 2024?", "Which of them is the oldest?"
    )
    assert total.asked_as == "What is the total of the invoices that are unpaid?"
    assert total.text.startswith("7,488.00 pounds")
    assert of_year.asked_as == "What is the total of the invoices of 2024 that are unpaid?"
    assert "INV-2024-002, 6 May 2024" in oldest.text and "INV-2024-003" not in oldest.text


def test_there_is_the_project_and_not_what_was_chosen(engine: AnswerEngine) -> None:
    _, electrician, start = dialogue(
        engine, "Which windows did the owners choose?", "And who is the electrician there?", "When can he start?"
    )
    assert electrician.asked_as == "Who is the electrician at Nether Farm?"
    assert electrician.text == "Sanjay Mistry"
    assert start.asked_as == "When can Sanjay Mistry start?"
