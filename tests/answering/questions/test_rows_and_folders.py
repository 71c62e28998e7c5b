"""Rows that are not paid, sums that leave out row numbers, months written as 2025-03, and topics that are folders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.events import Answer, Finished
from desk_rag.answering.questions import whole_folder
from desk_rag.answering.questions.forms import whole_folder as recognised
from desk_rag.store.store import Store
from tests.answering.questions.test_payments import _asked, _index


def _bill(sender: str, number: str, day: str, total: str, paid: str) -> str:
    return f"{sender}\nInvoice {number}\nDate: {day}\nTo: Ada Lowe\nTotal: £{total}\n{paid}\n"


FILES = {
    "berths 2025.csv": "Berth,Holder,Fee 2025,Paid\n"
    "1,Ana Lind,80,yes\n2,Ben Carr,80,no\n3,Cleo Dorn,60,yes\n4,Dan Eck,60,no\n",
    "eggs/egg sales.csv": "Date,Buyer,Boxes,Price per box,Total\n"
    "2025-05-03,Shop,10,2.5,25\n2025-06-01,Fair,4,3,12\n2024-06-01,Fair,9,3,27\n",
    "cottage/fees received.csv": "Month,Due,Received,Remark\n"
    "2025-02,500,500,\n2025-03,500,350,\n2025-04,500,650,new fees\n",
    "cottage/invoices/Holt Roofing.txt": _bill("Holt Roofing",
        "HR-11", "3 May 2025", "410.00", "Payment is due within 30 days."),
    "cottage/invoices/Finch Gardens.txt": _bill("Finch Gardens",
        "77-A", "9 June 2025", "95.50", "Please pay within 14 days."),
    "cottage/invoices/Stone Plumbing.txt": _bill("Stone Plumbing",
        "S/8", "2 April 2025", "60.00", "Paid on 5 April 2025."),
    "gas.csv": "Quarter,kWh,Cost\n2025 Q1,3120,228.40\n2025 Q2,1010,79.15\n",
    "office/invoices/Tidy Paper.txt": _bill("Tidy Paper",
        "TP-1", "2 April 2025", "18.00", "Please pay within 14 days."),
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = _index(tmp_path_factory.mktemp("rows"), FILES)
    yield opened
    opened.close()


def whole(store: Store, question: str) -> Answer | None:
    request = recognised(question)
    events = list(whole_folder.answer(store, question, request, ())) if request is not None else []
    return events[-1].answer if events and isinstance(events[-1], Finished) else None


def test_which_rows_are_not_paid_are_those_that_how_many_counts(store: Store) -> None:
    counted, listed = whole(store, "How many berths have not paid?"), whole(store, "Which berths have not paid?")
    assert counted is not None and counted.text.startswith("2 (counted")
    assert listed is not None and [one.quote for one in listed.citations] == [one.quote for one in counted.citations]
    assert ["Ben" in listed.citations[0].quote, "Dan" in listed.citations[1].quote] == [True, True]
    assert whole(store, "Which walls are not painted?") is None


def test_numbers_of_rows_are_not_added(store: Store) -> None:
    assert _asked(store, "How many berths have not paid the fee for 2025?") is None
    assert _asked(store, "How many berths were let in 2025?") is None


@pytest.mark.parametrize(
    ("question", "beginning"),
    [
        ("How many boxes of eggs were sold in 2025?", "14 (computed"),
        ("How much money did the eggs bring in altogether in 2025?", "37 (computed"),
        ("How much was received in fees in March 2025?", ""),
        ("How many kWh of gas did I use in the second quarter of 2025?", "1,010 kwh (computed"),
        ("How many fees were received in March 2025?", "350 (computed"),
    ],
)
def test_sums_of_a_time(store: Store, question: str, beginning: str) -> None:
    answer = _asked(store, question)
    assert answer is None if not beginning else answer is not None and answer.text.startswith(beginning)


def test_a_topic_that_is_a_folder_is_no_party_and_nothing_in_it_vanishes(store: Store) -> None:
    answer = _asked(store, "Which invoices for the cottage are unpaid?")
    assert answer is not None
    assert answer.text.startswith(
        "No invoice in the folder cottage says that it is unpaid, but 2 do not say that they were paid"
    )
    assert {one.path.name for one in answer.citations} == {"Holt Roofing.txt", "Finch Gardens.txt"}
    assert "410.00" in answer.text and "95.50" in answer.text and "Tidy" not in answer.text


def test_a_count_of_unpaid_ones_is_doubtful_while_some_say_nothing(store: Store) -> None:
    answer = _asked(store, "How many invoices are unpaid?")
    assert answer is not None and answer.doubtful and "3 invoices do not say whether they are paid" in answer.text
