"""Tests of questions about the whole folder, two things, or one thing by way of another."""

from __future__ import annotations

import pytest

from desk_rag.answering.questions.forms import Form, whole_folder
from desk_rag.answering.questions.parts import by_way_of, comparison, two_questions
from desk_rag.answering.requirements.dates import Date, dates, without_dates


@pytest.mark.parametrize(
    ("question", "form", "subject"),
    [
        ("Which files mention Otto Winkel?", Form.FILES, "Otto Winkel"),
        ("In which documents is the lease", None, ""),
        ("Where is the red key mentioned?", Form.FILES, "the red key"),
        ("List all errors in the turbine log", Form.LIST, "errors in the turbine log"),
        ("Show me every letter from Ana.", Form.LIST, "letter from Ana"),
        ("How many invoices went to Hotel Linden?", Form.COUNT, "invoices went to Hotel Linden"),
        ("How much did we spend at Pettersen in total?", Form.TOTAL, "did we spend at Pettersen"),
        ("What is the total of the payments to Winkel?", Form.TOTAL, "the payments to Winkel"),
        ("Summarise notes/avalanche.md", Form.SUMMARY, "notes/avalanche.md"),
        ("Could you please summarise notes/avalanche.md?", Form.SUMMARY, "notes/avalanche.md"),
        ("Tell me about the lease", Form.ABOUT, "the lease"),
        ("What does lease.md say about pets?", Form.ABOUT, "pets"),
        ("When was the boiler bought?", None, ""),
        ("What is the largest file size that is read?", None, ""),
        ("How many messages are sent per day at most?", None, ""),
    ],
)
def test_questions_about_the_whole_folder(question: str, form: Form | None, subject: str) -> None:
    request = whole_folder(question)
    assert (request.form, request.subject) == (form, subject) if request else form is None


def test_two_questions_in_one() -> None:
    both = ("When was the boiler bought?", "Who changed the belt in 2019?")
    assert two_questions("When was the boiler bought, and who changed the belt in 2019?") == both
    assert two_questions("When was the boiler bought? And who changed the belt in 2019?") == both
    second = two_questions("How long is it baked, and at what time is check-in?")
    assert second == ("How long is it baked?", "At what time is check-in?")


@pytest.mark.parametrize(
    ("question", "first", "second"),
    [
        ("When and where did they meet?", "When did they meet?", "Where did they meet?"),
        ("Who repaired the roof and what did it cost?", "Who repaired the roof?", "What did it cost?"),
        ("How many children come and when?", "How many children come?", "When children come?"),
        (
            "What are the costs of heating and water in 2023?",
            "What is the cost of heating in 2023?",
            "What is the cost of water in 2023?",
        ),
        ("What is the name and address of Ana?", "What is the name of Ana?", "What is the address of Ana?"),
    ],
)
def test_parts_that_share_words_become_whole_questions(question: str, first: str, second: str) -> None:
    assert two_questions(question) == (first, second)


@pytest.mark.parametrize(
    "question",
    [
        "What did the man who came and who fixed it say?",
        "What is the price of bread and butter?",
        "Who are Ana and Bruno?",
        "When did Ana, who baked, and Bruno meet?",
        "Why and how?",
    ],
)
def test_one_question_stays_one(question: str) -> None:
    assert two_questions(question) is None


def test_a_question_by_way_of_another() -> None:
    steps = by_way_of("What is the phone number of the man who changed the belt in 2024?")
    assert steps is not None
    assert steps.first == "Who changed the belt in 2024?"
    assert steps.then("Otto Winkel.") == "What is the phone number of Otto Winkel?"
    company = by_way_of("Where does the company that repaired the roof come from?")
    assert company is not None
    assert company.first == "Which company repaired the roof?"
    assert company.then("Vrel") == "Where does Vrel come from?"
    leader = by_way_of("Which office does the leader of the Lantern project work from?")
    assert leader is not None
    assert leader.first == "Who is the leader of the Lantern project?"
    assert leader.then("Sunniva Oake") == "Which office does Sunniva Oake work from?"
    teacher = by_way_of("What is the phone number of the viola teacher?")
    assert teacher is not None
    assert teacher.first == "Who is the viola teacher?"
    assert teacher.then("Ana Ruiz") == "What is the phone number of Ana Ruiz?"
    assert by_way_of("What is the phone number of Ana Ruiz?") is None
    assert by_way_of("Who is the leader of the Lantern project?") is None
    assert by_way_of("Who repaired the roof?") is None


def test_dates_in_questions_and_names() -> None:
    assert dates("Who was in the chair on 10 June 2025?") == [Date(2025, 6, 10)]
    assert dates("mails from Ana in May") == [Date(0, 5, 0)]
    assert dates("What may he do?") == []
    assert Date(2025, 6, 10).stands_in("2025-06-10-minutes")
    assert Date(0, 6, 0).stands_in("2025-06-10")
    assert not Date(2025, 6, 10).stands_in("turbine-2025-06"), "a month is not that day"
    assert not Date(2024, 6, 0).stands_in("2025-06-10")
    assert without_dates("errors in the log of June 2025").split() == "errors in the log".split()  # noqa: SIM905


@pytest.mark.parametrize(
    ("question", "first", "second"),
    [
        (
            "What does Sanjay charge for the wiring with the car charger, and without it?",
            "What does Sanjay charge for the wiring with the car charger?",
            "What does Sanjay charge for the wiring without the car charger?",
        ),
        ("What does it cost without and with tax?", "What does it cost without tax?", "What does it cost with tax?"),
        (
            "How much was the rent in 2022 and in 2024?",
            "How much was the rent in 2022?",
            "How much was the rent in 2024?",
        ),
    ],
)
def test_both_sides_of_one_question(question: str, first: str, second: str) -> None:
    assert two_questions(question) == (first, second)


def test_with_something_and_something_else_is_one_question() -> None:
    assert two_questions("What does the room with a bath and a view cost?") is None


@pytest.mark.parametrize(
    ("question", "first", "second", "verdict"),
    [
        ("Which is cheaper, larch or oak?", "£58", "£92 per m2", "Larch (computed: £58 is less than £92 per m2)"),
        ("Which is more expensive, larch or oak?", "£58", "£92", "Oak (computed: £92 is more than £58)"),
        ("Who is taller, Ana or Ben?", "1.85 m", "1.72 m", "Ana (computed: 1.85 m is more than 1.72 m)"),
        ("Which door is wider: door D3 or door D4?", "885 mm", "885 mm", "Neither (computed: 885 mm and 885 mm)"),
        ("Which is heavier, the bell or the stove?", "212 kg", "0.3 t", ""),  # other units
        ("Which is cheaper, larch or oak?", "£58", "on request", ""),
        ("Which is cheaper, larch or oak?", "£58 to £60", "£92", ""),
    ],
)
def test_two_things_are_compared_by_their_measures(question: str, first: str, second: str, verdict: str) -> None:
    compared = comparison(question)
    assert compared is not None
    assert compared.verdict(first, second) == verdict


def test_the_measures_are_asked_for_one_by_one() -> None:
    compared = comparison("Which is cheaper, larch or oak?")
    assert compared is not None
    assert compared.questions == ("How much does larch cost?", "How much does oak cost?")
    assert comparison("Which room is free on Monday or Tuesday?") is None
    assert comparison("Is it cheaper?") is None


@pytest.mark.parametrize(
    ("question", "both"),
    [
        (
            "Compare the yearly premium of the household policy of 2022 with that of 2024.",
            (
                "What is the yearly premium of the household policy of 2022?",
                "What is the yearly premium of the household policy of 2024?",
            ),
        ),
        (
            "Compare the time of departure in the first letter and in the later mail.",
            ("What is the time of departure in the first letter?", "What is the time of departure in the later mail?"),
        ),
        (
            "How did the price of gas change between the 2022 and the 2023 bill?",
            ("What is the price of gas of the 2022 bill?", "What is the price of gas of the 2023 bill?"),
        ),
        (
            "Within how many days must damage be told, 2022 policy against 2024 policy?",
            (
                "Within how many days must damage be told in the 2022 policy?",
                "Within how many days must damage be told in the 2024 policy?",
            ),
        ),
        ("Compare the two leases", None),
        ("Compare the 2021 lease with the 2024 lease", None),  # of whole documents
        ("How did he go from Rome to Paris?", None),
    ],
)
def test_one_property_of_two_things_is_asked_twice(question: str, both: tuple[str, str] | None) -> None:
    assert two_questions(question) == both


def test_the_second_question_has_the_name_of_the_first() -> None:
    first = "Who is Ana Rao?"
    assert two_questions("Who is Ana Rao and what is her number?") == (first, "What is Ana Rao's number?")
    assert two_questions("Who is Ana Rao, and where does she live?") == (first, "Where does Ana Rao live?")
    assert two_questions("When was Tern launched, and when did I take her out?") == (
        "When was Tern launched?",
        "When did I take Tern out?",
    )
    assert two_questions("When was it bought, and who repaired it?") == ("When was it bought?", "Who repaired it?")


def test_a_difference_is_computed_from_two_answers() -> None:
    more = comparison("How much more is the premium in 2024 than in 2023?")
    assert more is not None
    assert more.questions == ("How much is the premium in 2024?", "How much is the premium in 2023?")
    assert more.verdict("1,264.00 crowns", "1,186.40 crowns") == (
        "77.60 crowns (computed: between 1,264.00 crowns and 1,186.40 crowns)"
    )
    assert more.verdict("12 crowns", "14 days") == ""
    older = comparison("How much older is Otto than Rufus?")
    assert older is not None and older.questions == ("How old is Otto?", "How old is Rufus?")
