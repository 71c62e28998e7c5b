"""The year, the time and the thing of a question: the right document of several answers, or the answer is doubted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.engine import AnswerEngine
from tests.answering.whole_desk.test_questions import engine_over_texts, printed


def _policy(year: int, premium: str) -> str:
    return (
        f"KESTREL DIRECT - MOTOR INSURANCE SCHEDULE Policy number KD-77-90312, renewal {year}\nVehicle: Skoda Octavia,"
        f" registration WN19 KPR Cover from 14 June {year} to 13 June {year + 1}, comprehensive"
        f" Total premium: {premium}\n"
        "Compulsory excess: £300.\n"
    )


FILES = {
    "insurance/car-kestrel-2024.txt": _policy(2024, "£512.40"),
    "insurance/car-kestrel-2025.txt": _policy(2025, "£548.10"),
    "insurance/travel-wayfarer.md": "# Wayfarer Travel Cover\n\nThe annual premium is £94.20.\n",
    "letters/rent-2024.txt": (
        "Noor Rahimi\n10 July 2024\n\nDear tenants,\n\nIn accordance with clause 4 of the tenancy, the rent of Flat 3,"
        " 27 Redland Grove will rise to £1,430 per month from 1 September 2024.\n"
    ),
    "letters/rent-2025.txt": (
        "Noor Rahimi\n15 August 2025\n\nDear tenants,\n\nFrom 1 October 2025 the rent of Flat 3, 27 Redland Grove will"
        " be £1,465 per month.\n"
    ),
    "meetings/meeting-2025-01-16.md": (
        "# Meeting of 16 January 2025\n\n- The pond gets a fence of 1.10 m.\n- Next meeting: 13 February 2025.\n"
    ),
    "family/people.vcf": (
        "BEGIN:VCARD\nVERSION:3.0\nFN:Helen Farrow\nN:Farrow;Helen;;;\nTEL;TYPE=CELL:07700 900345\nBDAY:1975-10-30\n"
        "NOTE:Marcus' sister, vet\nEND:VCARD\n"
    ),
    "music/piano.md": "# Piano\n\nThe upright piano was tuned by Mr Okafor on 9 June 2026 for £70.\n",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("home"), FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize(("year", "premium"), [(2024, "£512.40"), (2025, "£548.10")])
def test_the_policy_of_a_year_answers_not_the_one_that_ends_in_it(
    engine: AnswerEngine, year: int, premium: str
) -> None:
    text = printed(engine, f"What was the car insurance premium in {year}?")
    assert f"Total premium: {premium}" in text and f"car-kestrel-{year}.txt" in text
    assert "read it before you rely on it" not in text


def test_the_last_policy_does_not_answer_for_the_year_in_which_it_ends(engine: AnswerEngine) -> None:
    text = printed(engine, "What was the car insurance premium in 2026?")
    assert "could not find" in text or "nothing about “2026”" in text


@pytest.mark.parametrize("when", ["now", "at present", "currently"])
def test_of_two_letters_the_newest_says_what_holds_now(engine: AnswerEngine, when: str) -> None:
    text = printed(engine, f"How much rent do we pay {when} for Redland Grove?")
    lines = text.splitlines()
    assert any(line.startswith("£1,465") for line in lines) and not any(line.startswith("£1,430") for line in lines)
    assert "rent-2024.txt of 10 July 2024 says something else" in text
    assert "is older than rent-2025.txt of 15 August 2025" in text


def test_which_letter_held_at_another_time_is_left_open(engine: AnswerEngine) -> None:
    text = printed(engine, "What was the rent in Redland Grove when we moved in?")
    assert "£1,430" in text and "£1,465" in text
    assert "may not answer" in text


def test_a_next_meeting_that_is_over_is_said_to_be_past(engine: AnswerEngine) -> None:
    text = printed(engine, "When is the next meeting?")
    assert "“13 February 2025” is past, today is " in text


@pytest.mark.parametrize(
    ("question", "thing"),
    [
        ("When is Marcus's birthday?", "Marcus"),
        ("Who tuned the harpsichord?", "harpsichord"),
        ("What is the premium of our life insurance?", "life insurance"),
    ],
)
def test_another_person_or_thing_of_the_kind_is_doubted(engine: AnswerEngine, question: str, thing: str) -> None:
    text = printed(engine, question)
    assert "could not find" in text or f"The quote says nothing about “{thing}”" in text


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("When is Helen's birthday?", "30 October 1975"),
        ("Who tuned the piano?", "Mr Okafor"),
        ("What is the premium of our travel insurance?", "£94.20"),
    ],
)
def test_the_person_or_thing_itself_is_not(engine: AnswerEngine, question: str, answer: str) -> None:
    text = printed(engine, question)
    assert answer in text and "The quote says nothing about" not in text
