"""Final documents answer before drafts, newer ones for what holds now, and a value with the question's negation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.engine import AnswerEngine
from tests.answering.whole_desk.test_questions import engine_over_texts, printed

DOUBT = "read it before you rely on it"
FILES = {
    "terms/hire terms 2023 FINAL.md": (
        "# Terms of hire, from 1 January 2023\n\nThe deposit for the hall is 60 crowns.\n\nDogs are allowed in the"
        " hall on a lead only.\n\nA late return of the keys costs 5 crowns.\n"
    ),
    "terms/hire terms 2023 draft v2.md": (
        "# Terms of hire, for discussion\n\nThe deposit for the hall is 90 crowns.\n\nDogs are not allowed in the"
        " hall.\n\nA late return of the keys costs 12 crowns.\n"
    ),
    "plans/draft layout.md": "# Layout\n\nThe stage is 6.5 metres wide.\n",
    "staff/contract Jorun.md": (
        "# Contract of employment\n\n3 May 2022. Jorun Vik is employed as caretaker. Pay is 10.20 crowns an hour.\n"
    ),
    "staff/2024-03-11 pay.eml": (
        "From: Edda Holm <edda@hall.example>\nTo: Nils Rask <nils@hall.example>\n"
        "Date: Mon, 11 Mar 2024 20:05:00 +0100\nSubject: Jorun from April\n\nNils,\n\nplease pay Jorun 12.40 an hour"
        " from 1 April 2024.\n\nEdda\n"
    ),
    "notes/keys.txt": "Keys\n\nPeder drives the mower, Jorun may not.\nThe fuel store is locked.\n",
    "notes/letters.txt": "Course\n\nWe pay half of the fee of 780 crowns for Jorun's course in Tarn.\n",
    "mails/2024-07-01 visit.eml": (
        "From: Edda Holm <edda@hall.example>\nTo: Freda Lunn <freda@hall.example>\n"
        "Date: Mon, 1 Jul 2024 08:45:00 +0200\nSubject: The choir in August\n\nDear Freda,\n\nthat is no problem.\n"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("hall"), FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the deposit for the hall?", "60 crowns"),
        ("How much does a late return of the keys cost?", "5 crowns"),
        ("Are dogs allowed in the hall?", "on a lead only"),
    ],
)
def test_the_final_text_answers_and_not_its_draft(engine: AnswerEngine, question: str, answer: str) -> None:
    text = printed(engine, question)
    assert answer in text and "draft v2.md" not in text and DOUBT not in text


def test_a_draft_answers_where_it_is_asked_for(engine: AnswerEngine) -> None:
    text = printed(engine, "What deposit for the hall does the draft say?")
    assert "90 crowns" in text and "is a draft, a copy or superseded" not in text


def test_an_answer_that_only_a_draft_gives_is_marked(engine: AnswerEngine) -> None:
    text = printed(engine, "How wide is the stage?")
    assert "6.5 metres" in text and DOUBT in text
    assert "By its name or title, draft layout.md is a draft, a copy or superseded" in text


def test_a_newer_mail_answers_for_the_rate_that_holds_now(engine: AnswerEngine) -> None:
    text = printed(engine, "How much does Jorun earn an hour?")
    assert any(line.startswith("12.40") for line in text.splitlines())
    assert "contract Jorun.md of 3 May 2022 says something else" in text


@pytest.mark.parametrize(
    ("question", "answer"),
    [("Who may not drive the mower?", "Jorun"), ("Who drives the mower?", "Peder")],
)
def test_the_answer_has_the_negation_of_the_question(engine: AnswerEngine, question: str, answer: str) -> None:
    assert answer in printed(engine, question).splitlines()


def test_half_of_a_fee_is_said_with_its_half(engine: AnswerEngine) -> None:
    assert "half of the fee of 780 crowns" in printed(engine, "How much do we pay for Jorun's course?").splitlines()


def test_the_date_of_a_mail_does_not_say_when_somebody_comes(engine: AnswerEngine) -> None:
    text = printed(engine, "When does the choir come in August 2024?")
    assert "I could not find that in the documents." in text or DOUBT in text
