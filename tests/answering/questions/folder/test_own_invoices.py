"""Invoices of one's own and those of others in one folder, told apart by who wrote to whom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.engine import AnswerEngine
from tests.answering.whole_desk.test_questions import engine_over_texts, printed

_OWN = "Olive Marsh, translator, Kiln Cottage, 3 Potter's Lane, Hexley\n\n"
FILES = {
    "invoices/sent/2024-003 Brook.txt": (
        f"{_OWN}INVOICE 2024-003\nDate: 14 March 2024\nTo: Brook & Lyle Ltd, Bristol\n\nTotal: 1,800.00 pounds\n"
    ),
    "invoices/sent/2024-015 Films.txt": (
        f"{_OWN}INVOICE 2024-015\nDate: 2 December 2024\nTo: Pelling Films, Cardiff\n\nTotal: 408.00 pounds\n"
    ),
    "invoices/received/2024-06-28 Harker Roofing.txt": (
        "HARKER ROOFING\nInvoice 24-118, 28 June 2024\nTo: Mrs O. Marsh, Kiln Cottage, Hexley\nTotal: 3,990.00 pounds\n"
    ),
    "invoices/received/2024-09-04 Lowfield Garage.txt": (
        "LOWFIELD GARAGE\nInvoice 5520, 4 September 2024\nTo: Mr T. Marsh, Kiln Cottage, Hexley\nTotal: 612.50 pounds\n"
    ),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("invoices"), FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "total", "others"),
    [
        ("How much did I invoice in 2024?", "2,208.00", ("Harker", "Lowfield")),
        ("What is the total of the invoices I sent in 2024?", "2,208.00", ("Harker", "Lowfield")),
    ],
)
def test_what_others_invoiced_is_no_part_of_what_i_invoiced(
    engine: AnswerEngine, question: str, total: str, others: tuple[str, ...]
) -> None:
    text = printed(engine, question)
    assert text.startswith(f"{total} pounds")
    assert not any(other in text for other in others)


def test_what_i_invoiced_is_no_part_of_what_others_sent(engine: AnswerEngine) -> None:
    text = printed(engine, "What is the total of the invoices we received in 2024?")
    assert text.startswith("4,602.50 pounds")
    assert "Left out, because Olive Marsh sent them to others" in text


_BOATYARD = {
    "in/rope.txt": (
        "Halyard & Twine Ltd, Invoice HT-88\nDate: 4 May 2025\nDelivered to Pinder Boats\n"
        "Rope      20     3.10     62.00\n"
        "Total 62.00 crowns\nDue date: 18 May 2025\n"
    ),
    "in/paint.md": (
        "# Öland Paints, Invoice no. 7130\n\nDate: 2 June 2025\n\nTo: Pinder Boats\n\nTotal 145.00 crowns\n\n"
        "Due date: 16 June 2025\n"
    ),
    "in/varnish.txt": (
        "Öland Paints - Invoice 7002\nDate: 11 March 2025. Customer: Pinder Boats\nTotal 55.00 crowns\n"
    ),
    "in/engine.txt": (
        "Brisk Motors\nInvoice BM-4410\nDate: 9 July 2025. Delivered to Pinder Boats, Slip Lane 2.\n"
        "Outboard, serial number KX2-90-118: 1,310.00 crowns. Warranty: two years.\n"
    ),
    "out/one.txt": (
        "Invoice 2025-01\nPinder Boats e.V. to Quayside School, Mr Toll. Date: 3 May 2025.\n"
        "Hire of six canoes: 210.00 crowns\n"
        "Due date: 17 May 2025. Payment received on 15 May 2025.\n"
    ),
    "out/two.txt": (
        "Invoice 2025-02\nPinder Boats to Heron Inn. Date: 8 August 2025.\nRepair of a punt: 95.00 crowns\n"
        "Due date: 22 August 2025.\n"
    ),
}


@pytest.fixture(scope="module")
def boatyard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("boatyard"), _BOATYARD)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "begin", "others"),
    [
        ("What did Öland Paints charge us altogether?", "200.00 crowns (computed: the sum of 2 of 6", ("HT-88",)),
        ("How much was invoice HT-88?", "62.00 crowns", ("7130",)),
        ("What is the total of the invoices we received in 2025?", "1,572.00 crowns", ()),
        ("How much did we invoice in 2025?", "305.00 crowns", ("HT-88", "7130", "BM-4410")),
        ("Which invoices that we issued are unpaid?", "No invoice", ("HT-88", "7130", "none names both")),
        ("What did we charge the Heron Inn altogether?", "95.00 crowns", ("HT-88",)),
    ],
)
def test_firm_and_number_in_one_line_and_both_sides_in_a_sentence(
    boatyard: AnswerEngine, question: str, begin: str, others: tuple[str, ...]
) -> None:
    text = printed(boatyard, question)
    assert text.startswith(begin), text
    assert not any(other in text for other in others), text
