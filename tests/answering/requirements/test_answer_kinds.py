"""The kind of answer that a question asks for, and what is said of an answer of another kind."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.answer_kinds import AnswerKind, is_of_kind, kind_asked, misfit, only_proposed


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Who painted the shutters?", AnswerKind.NAME),
        ("From whom did we buy the bed?", AnswerKind.NAME),
        ("Which supplier delivered the clay?", AnswerKind.NAME),
        ("When was the boiler repaired?", AnswerKind.TIME),
        ("By what time do guests leave?", AnswerKind.TIME),
        ("On which day is the market?", AnswerKind.TIME),
        ("How many rooms are there?", AnswerKind.AMOUNT),
        ("How long is it?", AnswerKind.NUMBER),
        ("What is the phone number of Ana?", AnswerKind.PHONE),
        ("What colour is the stair?", AnswerKind.COLOUR),
        ("Which number do I ring?", AnswerKind.PHONE),
        ("What is the email address of Ana?", AnswerKind.ADDRESS),
        ("In which year was it built?", AnswerKind.YEAR),
        ("How often is it cleaned?", AnswerKind.FREQUENCY),
        ("In which language is the letter?", AnswerKind.LANGUAGE),
        ("What is Ana's address?", AnswerKind.POSTAL),
        ("Where does Ana live?", AnswerKind.POSTAL),
        ("What is the IP address of the printer?", None),
        ("What is the monthly rent of the flat?", AnswerKind.NUMBER),
        ("What is the reason for the rent?", None),
        ("What is the price list called?", None),
        ("Why is it closed?", None),
        ("Which rooms are free?", None),
        ("What happens when it rains?", None),
    ],
)
def test_the_question_says_what_kind_of_answer_it_wants(question: str, kind: AnswerKind | None) -> None:
    assert kind_asked(question) is kind


@pytest.mark.parametrize(
    ("kind", "answer", "fits"),
    [
        (AnswerKind.NAME, "Berg & Sons", True),
        (AnswerKind.NAME, "DE89 3704 0044 0532 0130 00", False),
        (AnswerKind.NAME, "NM-88213-K", False),
        (AnswerKind.TIME, "in the spring", True),
        (AnswerKind.TIME, "half past seven", True),
        (AnswerKind.TIME, "if the damper is not fully open", False),
        (AnswerKind.TIME, "GBP 1,000", False),
        (AnswerKind.TIME, "INV-2024-003", False),
        (AnswerKind.TIME, "on 3.5.2024", True),
        (AnswerKind.COLOUR, "galvanised steel", False),
        (AnswerKind.COLOUR, "RAL 6009", True),
        (AnswerKind.PHONE, "room 12", False),
        (AnswerKind.PHONE, "+46 (555) 04-46", True),
        (AnswerKind.ADDRESS, "4 Abbey Street", False),
        (AnswerKind.YEAR, "in the holidays", False),
        (AnswerKind.YEAR, "in 1998", True),
        (AnswerKind.FREQUENCY, "every second week", True),
        (AnswerKind.FREQUENCY, "with the blue tin", False),
        (AnswerKind.LANGUAGE, "English only", True),
        (AnswerKind.LANGUAGE, "the pointer", False),
        (AnswerKind.AMOUNT, "a megabyte", False),
        (AnswerKind.AMOUNT, "half a megabyte", True),
        (AnswerKind.NUMBER, "a week", True),
        (AnswerKind.NUMBER, "two cats", True),
        (AnswerKind.NUMBER, "eighteen months", True),
        (AnswerKind.NUMBER, "the blue tin", False),
    ],
)
def test_an_answer_is_or_is_not_of_a_kind(kind: AnswerKind, answer: str, fits: bool) -> None:
    assert is_of_kind(kind, answer) is fits


def test_a_misfit_says_what_was_asked_for() -> None:
    assert misfit("Which supplier sent it?", "NM-88213-K", "Reference NM-88213-K") == (
        "The question asks for a name, and “NM-88213-K” is none"
    )
    assert misfit("Which supplier sent it?", "Sommer", "Sommer sent it.") == ""


@pytest.mark.parametrize(
    ("question", "answer", "quote", "fits"),
    [
        ("Where does Ben work?", "Ana", "Present: Ben, Ana", False),
        ("Where does Ben work?", "Hagen's garage", "Ben works at Hagen's garage.", True),
        ("Where is the key?", "on the hook", "The key hangs on the hook.", True),
        ("Who borrowed the drill?", "the school", "The drill was borrowed from the school.", False),
        ("Who borrowed the drill?", "Ana", "Ana borrowed the drill from the school.", True),
        ("Where is the market?", "Chapel meadow", "Market: 4 October; Place: Chapel meadow", True),
        ("Where will the concert be?", "May", "A concert with the Oxbury choir in May?", False),
        ("In which hospital was Ben?", "Shenandoah", "His song of Shenandoah, written in hospital", False),
        ("In which pub did we sing?", "the Swan", "Singing carols at the Swan", True),
        ("What is the address of the officer?", "Ana Marsh, 01777 224402", "It is Ana Marsh, 01777 224402.", False),
        ("What is the address of Ana?", "Alto", "Name: Ana; Voice: Alto; Joined: 2009", False),
        ("What is the address of Ana?", "8 Elm Close", "Ana, Address: 8 Elm Close", True),
        ("What does Judith do?", "5 January", "Judith 5 January", False),
        ("What does Judith do?", "office manager", "Judith is the office manager.", True),
    ],
)
def test_the_part_that_an_answer_plays_in_its_quote(question: str, answer: str, quote: str, fits: bool) -> None:
    assert (misfit(question, answer, quote) == "") is fits


@pytest.mark.parametrize(
    ("question", "answer", "quote", "fits"),
    [
        ("Who was chair before Oswin?", "Oswin Hale", "Chair: Oswin Hale.", False),
        ("Who was chair before Oswin?", "Marjorie Teague", "Chair: Marjorie Teague.", True),
        ("Who is Oswin?", "Oswin Hale", "The chair is Oswin Hale.", True),
    ],
)
def test_a_name_that_the_question_has_is_no_answer(question: str, answer: str, quote: str, fits: bool) -> None:
    assert (misfit(question, answer, quote) == "") is fits


def test_a_cell_with_digits_is_a_phone_number_only_under_such_a_name() -> None:
    assert not is_of_kind(AnswerKind.PHONE, "name: Bruno; number: 618350114; issued: 2023-08-04")
    assert is_of_kind(AnswerKind.PHONE, "name: Lucy; phone: 01632 960 290; joined: 2024")


@pytest.mark.parametrize(
    ("sentence", "proposed"),
    [
        ("I would like to see it, they open on 4 October.", False),
        ("I would like to open on 4 October.", True),
        ("They open on 4 October.", False),
    ],
)
def test_a_wish_counts_in_the_clause_with_the_time(sentence: str, proposed: bool) -> None:
    assert only_proposed("When is it open?", sentence) is proposed


@pytest.mark.parametrize("day", ["17.10.2023", "2023-10-17", "17 October 2023", "on 17 October"])
def test_a_day_counts_nothing(day: str) -> None:
    assert not is_of_kind(AnswerKind.AMOUNT, day)
    assert is_of_kind(AnswerKind.AMOUNT, f"four, the last on {day}")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is Nora's phone number?", "2025 15"),
        ("When do the leaflets have to be ready?", "0.16"),
        ("Who is my contact now?", "d.voss@brook.example"),
        ("Who made the window?", "He"),
        ("Who is Nora going to stay with?", "23 February 2026"),
    ],
)
def test_an_answer_of_another_kind_is_said_to_be_none(question: str, answer: str) -> None:
    assert answer in misfit(question, answer, f"It says {answer}.")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is Ana's phone number?", "2012 45 678"),
        ("When does it begin?", "7.30"),
        ("Who is my contact now?", "Daniela Voss, d.voss@brook.example"),
    ],
)
def test_an_answer_much_like_another_kind_stands(question: str, answer: str) -> None:
    assert not misfit(question, answer, answer)
