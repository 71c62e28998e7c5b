"""Questions for one fact where the passage holds two that look alike, asked as `desk-rag ask` does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, Finished
from tests.answering.whole_desk.test_questions import engine_over

FILES = {
    "notes/minutes 5 March.md": "# Site minutes no. 1, Nether Farm, 5 March 2024\n\nPresent: Peter Harrow, Gus Lindholm"
    " (carpenter), Ana Ruiz (structural engineer)\nApologies: Lucinda Harrow\n\n- 1.1 The wall leans 7 cm outwards.\n",
    "notes/stair.md": "# Quarry Bank, 2 July 2024\n\nOutside stair: galvanised steel, painted dark green (RAL 6009).\n",
    "notes/staff.md": "# Department\n\nG. Abara takes over the chemical store from M. Ostrander on 1 November.\n",
    "contacts.csv": "name,phone,role\nGus Lindholm,01632 960 771,\nAna Ruiz,01632 960 114,structural engineer\n",
    "calendar.ics": "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:-//K//EN\nBEGIN:VEVENT\nUID:1@k\nDTSTART:20241128T140000\n"
    "DTEND:20241128T150000\nSUMMARY:Dentist Dr Pascoe\nLOCATION:4 Abbey Street\nEND:VEVENT\nEND:VCALENDAR\n",
    "prices.csv": "material,unit,price\nlarch cladding,m2,£58\noak cladding,m2,£92\n",
    "mill.csv": "Year,Sacks\n1901,515\n1902,498\n1903,120\n",
    "guarantee.md": "# Handover of the kiosk, 3 November 2023\n\nThe guarantee runs for two years from today.\n",
    "tax.txt": "Tax return 2023/24 - my own sums\nIncome from self-employment   58,902\nProfit   38,455\n"
    "Income tax due    5,177\n",
    "mails/quote.txt": "Wiring for the barn incl. ten sockets and a car charger 7 kW = £11,870 + VAT. Without the car"
    " charger £10,640. I can start on 3 June. Sanjay\n",
    "accounts.csv": "Number,Date,Client,Gross,Paid on\nINV-2024-001,2024-01-31,Friends of Bethel,6810,2024-02-20\n"
    "INV-2024-002,2024-03-28,Peter Harrow,6240,2024-04-15\nINV-2024-003,2024-05-06,Ines Pemberton,3468,OPEN\n",
}


def _write(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over(tmp_path_factory.mktemp("facts"), _write)
    yield opened
    opened.close()


def _answer(engine: AnswerEngine, question: str) -> Answer:
    (last,) = (event.answer for event in engine.ask(question) if isinstance(event, Finished))
    return last


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When is my dentist appointment?", "28 November 2024 14:00 to 15:00"),
        ("Who is the carpenter of Nether Farm?", "Gus Lindholm"),
        ("What is the phone number of the carpenter of Nether Farm?", "01632 960 771"),
        ("What colour is the outside stair at Quarry Bank?", "dark green"),
        ("Who takes over the chemical store?", "G. Abara"),
        ("How much income tax do I have to pay for 2023/24?", "5,177"),
        ("What does the wiring cost without the car charger?", "£10,640"),
        ("When was INV-2024-002 paid?", "2024-04-15"),
        ("When did Friends of Bethel pay INV-2024-001?", "2024-02-20"),
    ],
)
def test_the_value_that_is_asked_for(engine: AnswerEngine, question: str, expected: str) -> None:
    assert _answer(engine, question).text == expected


def test_both_values_where_both_are_asked_for(engine: AnswerEngine) -> None:
    answer = _answer(engine, "What does Sanjay charge for the wiring with the car charger, and without it?")
    assert "£11,870" in answer.text and "£10,640" in answer.text


def test_a_cell_that_is_no_date_is_doubted(engine: AnswerEngine) -> None:
    answer = _answer(engine, "When was INV-2024-003 paid?")
    assert not answer.found or answer.doubtful


def test_two_prices_are_compared(engine: AnswerEngine) -> None:
    answer = _answer(engine, "Which is cheaper, larch cladding or oak cladding?")
    assert answer.text == "Larch cladding (computed: £58 is less than £92)"
    assert len(answer.citations) == 2 and not answer.doubtful


def test_a_year_in_a_column_of_its_own_is_the_year_of_the_row(engine: AnswerEngine) -> None:
    assert _answer(engine, "How many sacks were there in 1902?").text.startswith("498 (computed")


def test_what_cannot_be_compared_is_doubted(engine: AnswerEngine) -> None:
    answer = _answer(engine, "Who is taller, Gus or Ana?")
    assert not answer.found or answer.doubtful


def test_today_is_the_day_of_the_document(engine: AnswerEngine) -> None:
    answer = _answer(engine, "When is the guarantee of the kiosk over?")
    assert answer.text == "two years from today"
    assert any("so this is 3 November 2025 (computed)" in notice for notice in answer.notices)
