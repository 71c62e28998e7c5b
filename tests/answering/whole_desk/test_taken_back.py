"""Later mails, minutes and supplements that take back or replace what an earlier document says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.engine import AnswerEngine
from tests.answering.whole_desk.test_questions import engine_over, printed

_MAIL = (
    "From: {0} <{1}@yard.example>\nTo: Otto Brand <otto@yard.example>\nDate: {2}\nSubject: {3}\n\nDear Otto,\n\n{4}\n"
)
_FILES = {
    "mails/gates.eml": _MAIL.format(
        "Nora Pell", "nora", "Thu, 02 Nov 2023 09:12:00 +0000", "Paint for the gates",
        "I have decided on dark green for the yard gates, RAL 6009. Please tell the painter.",
    ),
    "mails/gates again.eml": _MAIL.format(
        "Nora Pell", "nora", "Wed, 15 Nov 2023 18:40:00 +0000", "Paint for the gates, second thoughts",
        "Forget the green. The gates shall be oxide red, RAL 3009. I saw it on a mill near Tarn.",
    ),
    "mails/hinges.eml": _MAIL.format(
        "Rolf Amsel", "rolf", "Mon, 20 Nov 2023 08:00:00 +0000", "Hinges",
        "the hinges for the yard gates come from Bruton on Friday.",
    ),
    "mails/mooring.eml": _MAIL.format(
        "Una Hask", "una", "Mon, 03 Jun 2024 08:00:00 +0000", "Your enquiry",
        "A visitor's mooring costs £42 a night, water included.",
    ),
    "mails/Re mooring.eml": _MAIL.format(
        "Una Hask", "una", "Mon, 10 Jun 2024 08:00:00 +0000", "Re: Your enquiry",
        "I must put right what I wrote last week: for you it is £38 a night.\n\nUna\n\n"
        "> A visitor's mooring costs £42 a night, water included.",
    ),
    "post/2024-03-04 venue.txt": "4 March 2024\n\nThe summer fair will be held in the Corn Exchange.\n",
    "post/2024-04-19 venue again.txt": (
        "19 April 2024\n\nThe Corn Exchange is no longer possible. We shall hold the summer fair in the old tannery"
        " instead.\n"
    ),
    "minutes/2024-02-01.txt": (
        "Minutes of 1 February 2024\n\nSpeaker for the annual dinner: Dr Helen Voss was chosen.\n"
        "The curtains for the hall are to be navy blue.\nThe caretaker is Bert Sime.\n"
    ),
    "minutes/2024-05-02.txt": (
        "Minutes of 2 May 2024\n\nDr Voss cannot come to the annual dinner. Captain Ruddock will speak instead.\n"
        "It was decided to scrap the navy blue; the curtains for the hall will be cream.\n"
    ),
    "contacts/araby.vcf": (
        "BEGIN:VCARD\nVERSION:3.0\nFN:Tom Araby\nORG:Araby Rigging\nTEL:01632 960402\nEND:VCARD\n"
    ),
    "post/araby 2022-09-30.txt": (
        "Tom Araby\nQuay Street, Tarn\n\n30 September 2022\n\nwe have moved the loft. Our telephone number has changed:"
        " it is now 01632 960417.\n\nTom Araby\n"
    ),
    "agreements/2021-023 Berth lease.txt": (
        "Lease of berth 12\nDated 2 April 2021\nThe rent is 310 pounds a year.\nThe lessee is Ole Brandt.\n"
    ),
    "agreements/2021-023 Berth lease supplement.txt": (
        "Supplement to the lease of berth 12 between the harbour board and Ole Brandt\nDated 8 January 2023\n"
        "The lease of 2 April 2021 is changed as follows.\nThe rent is amended to 345 pounds a year.\n"
        "The lessee is now Nell Brandt.\n"
    ),
    "post/slipway quote.txt": "Bowen Marine\n3 May 2024\n\nThe slipway is due to be completed on 31 May 2024.\n",
    "log/2024-06-14.txt": "Slipway: concrete poured, job complete. Trestles put back in the shed.\n",
    "log/2024-06-20.txt": "Painted the tender. Weather fair.\n",
    "log/2024-06-21.txt": "Slipway: the mayor came to look.\n",
}  # fmt: skip


def _write(folder: Path) -> Path:
    for name, text in _FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over(tmp_path_factory.mktemp("back"), _write)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "old", "new", "older"),
    [
        ("What did Nora Pell choose for the yard gates?", "decided on dark green", "oxide red", "gates.eml of 2"),
        ("Which colour did Nora Pell choose in the end?", "decided on dark green", "oxide red", "gates.eml of 2"),
        ("Where will the summer fair be held?", "in the Corn Exchange.", "in the old tannery", "venue.txt of 4 March"),
        ("Who is the speaker at the annual dinner?", "Voss was chosen", "Captain Ruddock", "01.txt of 1 February"),
        ("What colour will the curtains for the hall be?", "to be navy blue", "cream", "01.txt of 1 February 2024"),
        ("What is the rent of berth 12?", "310 pounds a year", "345 pounds a year", "Berth lease.txt of 2 April 2021"),
        ("What does a visitor's mooring cost?", "costs £42 a night", "£38 a night", "mooring.eml of 3 June 2024"),
        ("Who is the lessee of berth 12?", "lessee is Ole", "Nell Brandt", "is older than 2021-023 Berth lease suppl"),
    ],
)
def test_the_later_document_answers_and_the_earlier_is_quoted_beside_it(
    engine: AnswerEngine, question: str, old: str, new: str, older: str
) -> None:
    text = printed(engine, question)
    lines = text.splitlines()
    assert new in lines
    assert any(old in line for line in lines if line.startswith("["))
    assert older in text
    assert "is older than" in text


def test_a_new_telephone_number_answers_before_an_old_card(engine: AnswerEngine) -> None:
    text = printed(engine, "What is the phone number of Araby Rigging?")
    assert "01632 960417" in text.splitlines()
    assert "araby.vcf says something else" in text


def test_what_nothing_takes_back_stands_alone(engine: AnswerEngine) -> None:
    for question in ("Who is the caretaker?", "Where do the hinges come from?"):
        assert "something else" not in printed(engine, question)


def test_what_was_said_at_first_is_still_known(engine: AnswerEngine) -> None:
    assert "dark green" in printed(engine, "What colour did Nora Pell choose at first?").splitlines()


def test_a_later_mail_that_is_read_first_answers_alone(engine: AnswerEngine) -> None:
    assert "oxide red" in printed(engine, "What colour will the yard gates be?").splitlines()


@pytest.mark.parametrize(
    ("question", "day"),
    [
        ("When was the slipway completed?", "14 June 2024"),
        ("When was the slipway finished?", "14 June 2024"),
        ("When was the tender painted?", "20 June 2024"),
    ],
)
def test_the_file_of_a_day_says_when_something_was_done(engine: AnswerEngine, question: str, day: str) -> None:
    lines = printed(engine, question).splitlines()
    assert day in lines
    assert f"(The day is in the name of 2024-06-{day[:2]}.txt)" in lines
    assert not any("may not answer" in line for line in lines)


def test_a_plan_stands_beside_what_was_done(engine: AnswerEngine) -> None:
    text = printed(engine, "When was the slipway completed?")
    assert "due to be completed on 31 May 2024." in text
    assert "slipway quote.txt says what was planned" in text


def test_a_diary_is_not_read_into(engine: AnswerEngine) -> None:
    assert "2024-06-" not in printed(engine, "When was the chimney swept?")
