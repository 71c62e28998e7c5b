"""A file that a question names limits counting and adding to it, with and without '@', with blanks in its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.conversation import asking
from desk_rag.answering.conversation.turns import Request, Turn
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, Finished
from tests.answering.whole_desk.test_questions import engine_over

_HEAD = "Berth,Boat,From,Until,Fee EUR\n"
FILES = {
    "harbour/berths 2024.csv": f"{_HEAD}A1,Gull,2024-03-01,2024-05-01,40\nA2,Tern,2024-12-01,2025-02-01,70\n",
    "harbour/berths 2025.csv": (
        f"{_HEAD}A1,Heron,2025-03-01,2025-05-01,50\nA2,Tern,2025-04-01,2025-06-01,60\nA3,Smew,2025-05-01,2025-06-01,30\n"
    ),
    "notes/quay.txt": "Jonas Weil mends the quay.\nHe asks 300 euros for it.\n",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    def write(desk: Path) -> Path:
        for name, text in FILES.items():
            (desk / name).parent.mkdir(parents=True, exist_ok=True)
            (desk / name).write_text(text, encoding="utf-8")
        return desk

    opened = engine_over(tmp_path_factory.mktemp("named"), write)
    yield opened
    opened.close()


def asked(engine: AnswerEngine, question: str, earlier: tuple[Turn, ...] = ()) -> Answer:
    (last,) = (one for one in asking.ask(engine, Request(question, earlier)) if isinstance(one, Finished))
    return last.answer


@pytest.mark.parametrize(
    ("question", "beginning"),
    [
        ("What is the total of the column Fee EUR in berths 2025.csv?", "140"),
        ("What is the total of the column Fee EUR in berths 2024.csv?", "110"),
        ("How many rows has berths 2025.csv?", "3 (counted"),
        ("How many lines does berths 2024.csv have?", "berths 2024.csv has 3 lines"),
        ("How many entries are in berths 2025.csv?", "3 (counted"),
        ('How many rows are in @"berths 2025.csv"?', "3 (counted"),
        ('@"berths 2024.csv" how many berths are there?', "2 (counted"),
        ('@"berths 2025.csv" how many entries does it have?', "3 (counted"),
    ],
)
def test_a_named_file_limits_what_is_counted_and_added(engine: AnswerEngine, question: str, beginning: str) -> None:
    answer = asked(engine, question)
    assert answer.text.startswith(beginning)
    assert len({citation.path for citation in answer.citations}) == 1


def test_he_is_looked_for_in_the_file_that_is_named(engine: AnswerEngine) -> None:
    question = "Who owns the Heron?"
    earlier = (Turn(question, question, "Piet Lund", found=True),)
    there = asked(engine, "@notes/quay.txt how much does he ask?", earlier)
    assert (there.asked_as, "300 euros" in there.text) == ("", True)
    known = (Turn(question, question, "Jonas Weil", found=True),)
    assert asked(engine, "@notes/quay.txt how much does he ask?", known).asked_as == "How much does Jonas Weil ask?"


def test_an_answer_says_that_the_chat_leaves_open_who_is_meant(engine: AnswerEngine) -> None:
    refused = Turn("Who painted the quay in 2022?", "Who painted the quay in 2022?", "", found=False)
    answer = asked(engine, "How many euros does she ask?", (refused,))
    assert answer.asked_as == "How many euros does she ask (painted the quay in 2022)?"
    assert any("leaves open whom" in notice for notice in answer.notices)
    weil = Turn("Who mends the quay?", "Who mends the quay?", "Jonas Weil", found=True)
    named = asked(engine, "How many euros does he ask?", (weil,))
    assert named.asked_as == "How many euros does Jonas Weil ask?"
    assert not any("leaves open whom" in notice for notice in named.notices)
