"""Documents that give different values for one thing: both are shown, with their days, and which is newer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.questions.disagreement.values import differ
from desk_rag.answering.requirements.statements.numbers import numbers_of
from tests.answering.whole_desk.test_questions import engine_over_texts, printed

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
    "minutes/minutes-2023-01-10.md": (
        "# Minutes of 10 January 2023\n\nThe treasurer is Dominic Vane. The cellar is dry.\n"
    ),
    "mails/2024-02-20-treasurer.eml": (
        "From: Ana Lind <ana@yard.example>\nTo: all@yard.example\nDate: Tue, 20 Feb 2024 08:00:00 +0100\n"
        "Subject: Treasurer\n\nHello all,\n\nthe treasurer is Petra Bolt now. Please send her your receipts.\n\nAna\n"
    ),
    "health/medication-old-2024.md": (
        "# Medication of Mum, 11 March 2024\n\n- Levothyroxine 50 micrograms in the morning.\n"
        "- Ramipril 5 mg at noon.\n"
    ),
    "health/medication.md": (
        "# Medication of Mum, as of 2 September 2026\n\n- Levothyroxine 75 micrograms in the morning.\n"
        "- Ramipril 5 mg at noon.\n"
    ),
    "care/Larkmead 2025.md": (
        "Larkmead House\n4 March 2025\n\nthe weekly fee at Larkmead House is £1,198 from 1 April 2025.\n"
    ),
    "care/Larkmead 2026.md": (
        "Larkmead House\n6 March 2026\n\nthe weekly fee at Larkmead House is £1,265 from 1 April 2026.\n"
    ),
    "cover/Castle renewal 2023.md": "Castle Mutual\n1 April 2023\n\nCover for claims is up to five million crowns.\n",
    "cover/Castle renewal 2024.md": "Castle Mutual\n1 April 2024\n\nCover for claims is up to 10,000,000 crowns.\n",
    "cover/Castle renewal 2025.md": "Castle Mutual\n1 April 2025\n\nCover for claims is up to ten million crowns.\n",
    "grant/award.md": "Arts Trust\n4 October 2023\n\nThe Trust awards the yard 1,200 crowns towards a new slip.\n",
    "grant/treasurer 2024.md": (
        "# Money in 2023, report of 1 March 2024\n\nThe Trust gave 1,200 crowns, which the yard has not spent yet."
        " Without it we would have lost 164 crowns.\n"
    ),
    "trip/plan.md": "# Plan of 18 May 2025\n\nThe coach to Lincoln goes from the market square at half past seven.\n",
    "trip/coach.eml": (
        "From: Hargreaves Coaches <office@hargreaves.example>\nTo: Otto <otto@yard.example>\n"
        "Date: Tue, 21 Jan 2025 08:00:00 +0100\nSubject: Coach to Lincoln\n\nDear Otto,\n\nthe coach to Lincoln goes"
        " from the market square on Saturday 17 May at 7.30 in the morning.\n"
    ),
    "policies/home-policy-2023.md": (
        "Home policy, schedule of 1 September 2023\n\nExcess for escape of water: £200.\n"
    ),
    "policies/home-policy-2025.md": (
        "Home policy, schedule of 1 September 2025\n\nExcess for escape of water: £250.\n"
    ),
    "society/minutes-2026-02-17.md": (
        "# Minutes of 17 February 2026\n\nThe new shed was bought from Garrick Timber for £1,480.\n"
    ),
    "society/minutes-2026-05-12.md": (
        "# Minutes of 12 May 2026\n\nCorrection to the minutes of 17 February: the shed costs £1,620.\n"
    ),
    "flat/Lease 3 Mercer Court.md": (
        "# Tenancy agreement\n\nBetween Greta Dunmore and Priya Raman, 1 July 2022. The rent is £780 a month. The"
        " notice period of the landlord is two months' notice.\n"
    ),
    "flat/Amendment 1 (2024).md": (
        "# Amendment 1\n\nOf 3 June 2024 to the tenancy agreement for 3 Mercer Court. The rent is £825 a month from"
        " 1 July 2024.\n"
    ),
    "flat/Amendment 2 (2026).md": (
        "# Amendment 2\n\nOf 1 June 2026 to the tenancy agreement for 3 Mercer Court. The rent is £860 a month from"
        " 1 July 2026. The notice period of the landlord becomes three months.\n"
    ),
    "notes/plumber.txt": "Plumber\n\nTovey has a new phone number since January 2024: 0555 771 204.\n",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("yard"), FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "question",
    ["What does the new bench for the yard cost?", "How much does the bench cost?", "How much did the new bench cost?"],
)
def test_a_mail_that_corrects_minutes_answers_and_they_are_shown_beside_it(engine: AnswerEngine, question: str) -> None:
    text = printed(engine, question)
    assert "The new bench for the yard costs 280 crowns." in text
    assert "costs 310 crowns, not 280." in text
    assert any(line.startswith("310") for line in text.splitlines())
    assert "minutes-2024-03-05.md of 5 March 2024 says something else, see [" in text
    assert "and is older than 2024-03-12-bench.eml of 12 March 2024" in text


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What dose of levothyroxine does Mum take?", "75 micrograms"),
        ("What is the weekly fee at Larkmead House?", "1,265"),
        ("What is the rent for 3 Mercer Court now?", "860"),
        ("What notice does the landlord have to give?", "three months"),
        ("How much did the new shed cost?", "1,620"),
    ],
)
def test_what_holds_is_what_the_newest_document_says(engine: AnswerEngine, question: str, answer: str) -> None:
    text = printed(engine, question)
    assert any(line.lstrip("£").startswith(answer) for line in text.splitlines())
    assert "says something else, see [" in text and "read it before you rely on it" not in text


def test_what_held_in_a_year_is_what_its_document_says(engine: AnswerEngine) -> None:
    text = printed(engine, "What was the dose of levothyroxine in 2024?")
    assert "50 micrograms" in text and "75 micrograms" not in text


def test_the_newest_of_documents_with_the_label_answers(engine: AnswerEngine) -> None:
    text = printed(engine, "What is the excess for escape of water?")
    assert "£200" in text and "£250" in text
    assert "is older than home-policy-2025.md of 1 September 2025" in text


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


def test_an_office_that_has_passed_to_another_is_shown_with_both_names(engine: AnswerEngine) -> None:
    text = printed(engine, "Who is the treasurer?")
    assert "The treasurer is Dominic Vane." in text and "the treasurer is Petra Bolt now." in text
    assert any(line.startswith("Petra Bolt") for line in text.splitlines())
    assert "older than 2024-02-20-treasurer.eml" in text


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
        "At what time does the coach to Lincoln go?",
        "How much did the Trust award the yard?",
    ],
)
def test_what_one_document_says_or_two_say_alike_stands_alone(engine: AnswerEngine, question: str) -> None:
    assert "something else" not in printed(engine, question)


def test_a_document_that_agrees_with_the_newest_does_not_say_something_else(engine: AnswerEngine) -> None:
    text = printed(engine, "Up to what sum is the cover for claims?")
    assert any(line.startswith(("ten million", "10,000,000")) for line in text.splitlines())
    assert "Castle renewal 2023.md of 1 April 2023 says something else, see [" in text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ten million pounds", "£10,000,000"),
        ("half past seven", "at 7.30 in the morning"),
        ("19:30", "7.30 pm"),
        ("28 June 2025", "2025-06-28"),
        ("one hundred and five pounds", "£105.00"),
        ("twenty-one days", "21 days"),
        ("1.5 million", "1,500,000"),
    ],
)
def test_a_value_is_the_same_in_words_and_in_digits(one: str, other: str) -> None:
    assert numbers_of(one) <= numbers_of(other) and numbers_of(one)
    assert not differ((one, f"It is {one}."), (other, f"It says {other}."))


def test_other_values_in_words_differ() -> None:
    assert differ(("Fourteen days", "Fourteen days' notice is given."), ("twenty-one days", "It is twenty-one days."))
    assert differ(("£38", "The rent is £38."), ("forty-two pounds", "The rent is forty-two pounds."))
    assert numbers_of("one of them, two or three") == {"2", "3"}
