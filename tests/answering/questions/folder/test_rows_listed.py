"""Rows of tables that a question asks for are listed whole, and sums keep to the years and to what was paid."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.events import Finished
from desk_rag.answering.evidence.short_answers import ShortAnswers
from desk_rag.answering.questions import forms, whole_folder
from desk_rag.store.store import Store
from tests.answering.questions.test_payments import _asked, _index

_FILES = {
    "boats/berths-2024.csv": (
        "skipper,berth,arrival,total EUR,paid\nOlm,North,2024-05-10,380.00,yes\nVarley,South,2024-07-05,120.00,yes\n"
        "Olm,North,2024-09-06,285.00,no\n"
    ),
    "boats/berths-2025.csv": (
        "skipper,berth,arrival,total EUR,paid\nOlm,South,2025-05-09,560.00,yes\nTarr,North,2025-06-12,225.00,yes\n"
    ),
    "boats/permits.csv": "skipper,vessel,since\nOlm,Gannet,2022\nVarley,Tern,2023\n",
    "club/cash book.csv": (
        "date,what,in,out\n2025-01-31,cleaner January,,140.00\n2025-02-28,cleaner February,,140.00\n"
        "2025-04-02,electricity,,318.40\n2025-10-01,electricity,,297.10\n2025-11-11,hire,75.00,\n"
    ),
    "prices 2024.txt": "PRICES 2024\n\nNorth berth (deep)      95 euros\nCrane      65 euros\n\nDogs: not allowed\n",
    "prices 2025.csv": "what,euros\nNorth berth (deep),105\nCrane,75\nIce,4\n",
    "INV-2025-12 Olm.txt": (
        "Invoice INV-2025-12\nDate: 18 July 2025\nTo: Olm\nTotal: 560.00 euros\nPaid on 25 July 2025.\n"
    ),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = _index(tmp_path_factory.mktemp("desk"), _FILES)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Which skippers have permits?", "Olm; Varley"),
        ("List all permits", "Olm; Varley"),
        ("Which skippers came in 2025?", "Olm; Tarr"),
        ("Which skippers were in the North berth in 2024?", "Olm"),
    ],
)
def test_all_rows_that_are_meant_are_listed(desk: Store, question: str, names: str) -> None:
    done = _asked(desk, question)
    assert done is not None and done.text.splitlines()[0] == names and not done.doubtful
    assert len(done.citations) == 2 and all("skipper: " in citation.quote for citation in done.citations)


def test_a_column_is_listed_once_for_each_value(desk: Store) -> None:
    done = _asked(desk, "Which berths do we have?")
    assert done is not None and done.text.splitlines()[0] == "North; South"
    assert len(done.citations) == 2


def test_all_people_of_a_cell_are_the_short_answer() -> None:
    row = "door: kitchen; holders: Irma Janssen, Nadia Ferrer; since: 2025"
    begin = row.index("Irma")
    spans = [ShortAnswers(question, row).whole(begin, begin + len("Irma Janssen"))
             for question in ("Who holds keys to the kitchen?", "Which door has Irma Janssen a key to?")]  # fmt: skip
    assert [row[slice(*span)] for span in spans if span] == ["Irma Janssen, Nadia Ferrer", "Irma Janssen"]


@pytest.mark.parametrize(
    "question",
    ["Which skippers have the most permits?", "Which skippers have no permits?", "Which skippers have dogs?"],
)
def test_what_the_rows_do_not_say_is_not_listed(desk: Store, question: str) -> None:
    done = _asked(desk, question)
    assert done is None or not done.text.startswith("Olm; ")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What did we spend on the cleaner in 2025?", "280.00 (computed: the sum of the column “out” in 2 rows"),
        ("What did electricity cost the club in 2025?", "615.50 (computed: the sum of the column “out” in 2 rows"),
    ],
)
def test_what_was_paid_out_of_a_cash_book_is_added(desk: Store, question: str, answer: str) -> None:
    done = _asked(desk, question)
    assert done is not None and done.text.startswith(answer)


@pytest.mark.parametrize(
    ("question", "answer", "rows"),
    [
        ("How much did the berths of Olm cost altogether in 2024?", "665.00 (computed: the sum of the 2 amounts", 2),
        ("How much did Olm pay for berths altogether?", "940.00 (computed: the sum of the 2 amounts shown)", 2),
        ("How much did skippers pay altogether in 2024 and 2025?", "1,285.00 (computed: the sum of the 4 amounts", 4),
    ],
)
def test_sums_keep_to_the_time_and_to_what_was_paid(desk: Store, question: str, answer: str, rows: int) -> None:
    request = forms.whole_folder(question)
    assert request is not None
    finished = list(whole_folder.answer(desk, question, request, ()))[-1]
    assert isinstance(finished, Finished) and finished.answer.text.startswith(answer)
    assert len(finished.answer.citations) == rows
    assert ("Left out, because not paid (paid: no): 1 row." in finished.answer.text) is ("pay" in question)


def test_what_a_price_list_has_is_not_added_up(desk: Store) -> None:
    done = _asked(desk, "What did the North berth cost in 2024?")
    assert done is None or "computed" not in done.text


@pytest.mark.parametrize("question", ["Is invoice INV-2025-12 paid?", "Is INV-2025-12 paid?"])
def test_the_number_of_an_invoice_is_no_month(desk: Store, question: str) -> None:
    done = _asked(desk, question)
    assert done is not None and done.text.startswith("Yes, invoice INV-2025-12 says that it is paid")


def test_what_both_documents_have_is_in_neither_alone(desk: Store) -> None:
    done = _asked(desk, "Compare prices 2024.txt with prices 2025.csv")
    assert done is not None
    assert "North berth (deep) 95 euros | what: North berth (deep); euros: 105" in done.text
    assert "Only in the first: Dogs." in done.text and "Only in the second: Ice" in done.text
    assert done.text.count("Crane") == 2
