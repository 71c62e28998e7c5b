"""What was said later answers, also in words and in another mail of the same mailbox; the earlier is shown beside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.questions.disagreement.newest import asks_in_present
from tests.answering.whole_desk.test_questions import engine_over_texts, printed


def _mail(day: str, sender: str, subject: str, body: str) -> str:
    address = f"{sender.split()[0].lower()}@fair.example"
    return (
        f"From {address} {day[:3]} {day[8:11]} {day[5:7]} 09:00:00 {day[12:16]}\nFrom: {sender} <{address}>\n"
        f"To: Olive Marsh <olive@fair.example>\nDate: {day} 09:00:00 +0000\nSubject: {subject}\n\n{body}\n\n"
    )


FILES = {
    "mail/fair.mbox": (
        _mail(
            "Mon, 03 Mar 2025",
            "Petra Holm",
            "Autumn fair",
            "Dear all,\nthe fair brought in 1,900 crowns. We have 1,420 crowns left for the new roof of the hut.\n"
            "Anton has kindly said that he will run the jam stall.",
        )
        + _mail(
            "Thu, 06 Mar 2025",
            "Ruben Dahl",
            "Re: Autumn fair",
            "Sorry, the tent was dearer.\nWhat is left for the roof of the hut is 1,360 crowns.",
        )
        + _mail(
            "Fri, 21 Mar 2025",
            "Olive Marsh",
            "Jam stall",
            "Hello,\nAnton has to be in Leeds that weekend, therefore I am taking over the jam stall.",
        )
        + _mail(
            "Tue, 02 Sep 2025",
            "Rhona Pell",
            "Leaflets for Zelda",
            "Dear Olive,\ncould you print the leaflets for Zelda? Our purchase order is PO 77-3141.",
        )
        + _mail(
            "Fri, 05 Sep 2025",
            "Rhona Pell",
            "Re: Leaflets for Zelda",
            "Please put the new order number on the invoice, PO 77-3207; the old one has been cancelled.",
        )
    ),
    "cover/house cover 2022.md": (
        "House cover\n1 October 2022\n\nDamage by water is covered, damage by frost to outside pipes is not.\n"
    ),
    "cover/house cover 2024.md": (
        "House cover\n1 October 2024\n\nNew: frost damage to outside pipes is now covered as well.\n"
    ),
    "cover/liability 2021.md": "Liability\n1 April 2021\n\nMedical texts are excluded.\n",
    "cover/liability change 2022.md": (
        "Liability\n20 June 2022\n\nWith effect from 1 July 2022 medical and chemical texts are included.\n"
    ),
    "trip/booking.md": "# Booking of 18 January 2025, hotel in Porto\n\nTwo rooms. Breakfast is not included.\n",
    "mail/2025-03-04 hotel.eml": (
        "From: Joana Prata <joana@hotel.example>\nTo: Olive Marsh <olive@fair.example>\n"
        "Date: Tue, 04 Mar 2025 11:00:00 +0000\nSubject: Your rooms in Porto\n\nDear Mrs Marsh,\n"
        "we moved you to our other house. As an apology breakfast is now included.\n"
    ),
    "club/minutes 2021-09-04.md": (
        "# Minutes of 4 September 2021\n\nPresent: Mara Finch (chair), Dora Pask (treasurer), Ruth Amsel (secretary).\n"
    ),
    "club/minutes 2022-03-12.md": (
        "# Minutes of 12 March 2022\n\nMara Finch and Ruth Amsel were re-elected as chair and secretary. Otto Hale was"
        " elected treasurer.\n"
    ),
    "club/minutes 2024-06-08.md": "# Minutes of 8 June 2024\n\nPresent: Peter Oakes (chair), Otto Hale (treasurer).\n",
    "contract/brook amendment.md": (
        "# Amendment of 29 January 2024\n\nThe hourly fee for later corrections is raised to 44 crowns.\n"
    ),
    "school/exchange.md": (
        "# Exchange, 3 October 2025\n\nNora will stay with the Moutinho family from 9 to 23 February 2026; their"
        " daughter Beatriz comes to you in the last two weeks of April.\n"
    ),
    "house/window.md": "# The window\n\nThe window in the kitchen is by Aled Rees. He made it of larch.\n",
    "school/reading 2023.md": (
        "# Reading, 7 November 2023\n\nFinn goes to Mrs Pruett every Tuesday and Thursday before lessons.\n"
    ),
    "school/reading 2024.md": (
        "# Reading, 22 March 2024\n\nFinn has made such progress that he goes to Mrs Pruett only on Thursdays now.\n"
    ),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("later"), FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "answer", "earlier"),
    [
        ("How much money is left for the roof of the hut?", "1,360", "1,420"),
        ("Which purchase order belongs on the invoice for the Zelda leaflets?", "PO 77-3207", "PO 77-3141"),
        ("Is frost damage to outside pipes covered?", "now covered as well", "outside pipes is not"),
        ("Are medical texts excluded?", "are included", "are excluded"),
        ("Is breakfast included in Porto?", "breakfast is now included", "Breakfast is not included"),
        ("How often does Finn go to Mrs Pruett?", "only on Thursdays", "every Tuesday and Thursday"),
    ],
)
def test_what_was_said_later_answers_and_the_earlier_is_quoted(
    engine: AnswerEngine, question: str, answer: str, earlier: str
) -> None:
    lines = printed(engine, question).splitlines()
    quotes = [line for line in lines if line.startswith("[")]
    text = next(line for line in lines if not line.startswith(("[", "(")))
    assert answer in text
    assert any(earlier in quote for quote in quotes)
    assert any("is older than" in line for line in lines)
    assert not any("Name the one that is meant" in line for line in lines)


def test_a_mail_has_the_day_of_its_own_header_and_not_of_the_first_in_the_mailbox(engine: AnswerEngine) -> None:
    text = printed(engine, "How much money is left for the roof of the hut?")
    assert "fair.mbox of 3 March 2025 says something else" in text
    assert "older than fair.mbox of 6 March 2025" in text


def test_a_later_mail_that_takes_back_without_a_value_is_shown_and_the_answer_doubted(engine: AnswerEngine) -> None:
    text = printed(engine, "Who runs the jam stall?")
    assert "I am taking over the jam stall" in text
    assert "may not answer the question" in text


@pytest.mark.parametrize(
    ("question", "holder"),
    [
        ("Who was chair before Peter Oakes?", "Mara Finch"),
        ("Who was treasurer before Otto Hale?", "Dora Pask"),
        ("Who chaired the club before Peter Oakes?", "Mara Finch"),
    ],
)
def test_somebody_else_than_the_holder_before_is_not_named_without_doubt(
    engine: AnswerEngine, question: str, holder: str
) -> None:
    text = printed(engine, question)
    assert holder in text.splitlines() or "could not find" in text or "read it before" in text, text


@pytest.mark.parametrize(
    ("question", "is_doubted"),
    [
        ("What was the hourly fee for later corrections before 2024?", True),
        ("What is the hourly fee for later corrections?", False),
    ],
)
def test_a_document_of_a_later_year_does_not_say_what_held_before(
    engine: AnswerEngine, question: str, is_doubted: bool
) -> None:
    text = printed(engine, question)
    assert ("asks for the time before 2024, and the quote is of 29 January 2024" in text) is is_doubted
    assert ("may not answer" in text) is is_doubted


def test_what_was_before_is_doubted_if_the_quote_may_be_of_a_later_time(engine: AnswerEngine) -> None:
    text = printed(engine, "What was the hourly fee for later corrections before the amendment?")
    assert "44 crowns" in text and "what was before, and the quote may be of a later time" in text


def test_a_heading_with_subject_and_day_is_no_later_value(engine: AnswerEngine) -> None:
    text = printed(engine, "How many crowns are left for the roof of the hut?")
    assert "1,360 crowns" in text.splitlines() and "Autumn fair ›" not in text


def test_nobody_is_named_where_no_document_is_earlier(engine: AnswerEngine) -> None:
    text = printed(engine, "Who was treasurer before Dora Pask?")
    assert "may not answer the question" in text or "could not find" in text


@pytest.mark.parametrize(
    ("question", "wrong"),
    [
        ("Who made the kitchen window?", "He"),
        ("When does Beatriz come to us?", "23 February 2026"),
        ("Who is Nora going to stay with?", "23 February 2026"),
    ],
)
def test_an_answer_of_another_kind_or_clause_is_doubted(engine: AnswerEngine, question: str, wrong: str) -> None:
    text = printed(engine, question)
    assert wrong not in text.splitlines() or "may not answer the question" in text


@pytest.mark.parametrize(
    ("question", "is_present"),
    [
        ("Who runs the jam stall?", True),
        ("Which number belongs on the invoice?", True),
        ("Who ran the jam stall?", False),
        ("Who repaired the tent?", False),
        ("What did the tent cost?", False),
    ],
)
def test_a_question_without_an_auxiliary_asks_for_now_by_its_verb(question: str, is_present: bool) -> None:
    assert asks_in_present(question) is is_present
