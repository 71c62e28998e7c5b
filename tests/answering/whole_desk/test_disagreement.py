"""Documents that give different values for one thing: both are shown, with their days, and which is newer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.engine import AnswerEngine
from tests.answering.whole_desk.test_questions import engine_over, printed

FILES = {
    "minutes/minutes-2024-03-05.md": (
        "# Minutes of 5 March 2024\n\nPresent: Ana, Ben, Gus.\n\nThe new bench for the yard costs 280 crowns. Gus"
        " orders it from the joiner in Tarn.\n\nThe hall is heated to 17 degrees.\n"
    ),
    "minutes/minutes-2024-02-06.md": (
        "# Minutes of 6 February 2024\n\nThe roof of the shed is repaired for 1,150 crowns by Tovey.\n"
    ),
    "mails/2024-03-12-bench.eml": (
        "From: Ben Carrow <ben@yard.example>\nTo: Ana Lind <ana@yard.example>\n"
        "Date: Tue, 12 Mar 2024 09:10:00 +0100\nSubject: Minutes of 5 March\n\nDear Ana,\n\none correction to the"
        " minutes: the new bench for the yard costs 310 crowns, not 280. The joiner forgot the varnish.\n\nBen\n"
    ),
    "prices/honey-2022.csv": "article,size,price\nheather honey,500 g,9.50\nlime honey,500 g,8.20\n",
    "prices/honey-2023.csv": "article,size,price\nheather honey,500 g,11.00\nlime honey,500 g,8.20\n",
    "letters/water-company.txt": (
        "Tarn Water\n3 May 2023\n\nDear customer,\n\nThe water rate is 2.40 crowns per cubic metre as of 1 June 2023."
        " The standing charge is 14 crowns a month.\n"
    ),
    "notes/house.txt": (
        "House notes\n\nThe water rate is 2.10 crowns per cubic metre.\nThe boiler stops below 0.8 bar.\n"
        "The plumber is Tovey, phone 0555 190 336.\n"
    ),
    "notes/plumber.txt": "Plumber\n\nTovey has a new phone number since January 2024: 0555 771 204.\n",
}


def write_yard(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over(tmp_path_factory.mktemp("yard"), write_yard)
    yield opened
    opened.close()


@pytest.mark.parametrize("question", ["What does the new bench for the yard cost?", "How much does the bench cost?"])
def test_a_mail_that_corrects_minutes_is_shown_beside_them_as_the_newer_one(
    engine: AnswerEngine, question: str
) -> None:
    text = printed(engine, question)
    assert "The new bench for the yard costs 280 crowns." in text
    assert "costs 310 crowns, not 280." in text
    assert "2024-03-12-bench.eml of 12 March 2024 says something else, see [" in text
    assert "and is newer than minutes-2024-03-05.md of 5 March 2024" in text


def test_of_two_price_lists_the_older_one_is_named(engine: AnswerEngine) -> None:
    text = printed(engine, "What does heather honey cost?")
    assert "11.00" in text and "9.50" in text
    assert "honey-2022.csv of 2022 says something else" in text
    assert "is older than honey-2023.csv of 2023" in text


def test_without_a_date_of_both_no_document_is_called_newer(engine: AnswerEngine) -> None:
    text = printed(engine, "What is the water rate?")
    assert "2.10 crowns per cubic metre" in text and "2.40 crowns per cubic metre" in text
    assert "water-company.txt of 3 May 2023 says something else, see [" in text
    assert "newer" not in text and "newest" not in text


def test_numbers_that_begin_alike_are_two(engine: AnswerEngine) -> None:
    text = printed(engine, "What is Tovey's phone number?")
    assert "0555 771 204" in text and "0555 190 336" in text
    assert "house.txt says something else, see [" in text


@pytest.mark.parametrize(
    "question",
    [
        "What does lime honey cost?",
        "How much is the standing charge?",
        "How warm is the hall?",
        "What did the roof of the shed cost?",
        "Below which pressure does the boiler stop?",
    ],
)
def test_what_one_document_says_or_two_say_alike_stands_alone(engine: AnswerEngine, question: str) -> None:
    assert "something else" not in printed(engine, question)
