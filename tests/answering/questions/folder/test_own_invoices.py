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
