"""One rule for amounts in tables: rows that fit a time, or all of something, are added; 'most' compares sums."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.store.store import Store
from tests.answering.questions.test_payments import _asked, _index

_FILES = {
    "kitty.csv": (
        "date,for,amount\n2025-01-14,tea,4.20\n2025-03-02,cards for Ida,6.00\n2025-06-21,tea,5.35\n"
        "2024-11-05,tea,3.90\n"
    ),
    "tools.csv": "tool,bought,price,shelf\nRouter,2020-04-01,310.00,2\nBand saw,2018,1240.00,1\nSander,2022,89.50,2\n",
    "shifts.csv": (
        "date,who,job,hours\n2025-02-03,Ida,barge,6\n2025-02-17,Noel,quay,7.5\n2025-03-03,Ida,quay,4\n"
        "2025-03-10,Bram,barge,2\n"
    ),
    "dealers.csv": "dealer,goods,discount,days\nOlm & Son,paint,4 %,30\nVarley,rope,6 %,14\n",
    "screws.csv": "screw,price,quantity\nM4,0.10,200\nM6,0.15,100\n",
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = _index(tmp_path_factory.mktemp("desk"), _FILES)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What did we spend on tea in 2025?", "9.55 (computed: the sum of the column “amount” in 2 rows of kitty.csv"),
        ("How much was spent on tea?", "13.45 (computed: the sum of the column “amount” in 3 rows of kitty.csv"),
        ("How much did all the tools cost?", "1,639.50 (computed: the sum of the column “price” in 3 rows of"),
        ("What did the tools cost us in total?", "1,639.50 (computed: the sum of the column “price” in 3 rows"),
        ("Which month had the most hours?", "February 2025: 13.5 hours (computed: the largest of 2 sums"),
        ("Who worked the fewest hours?", "Bram: 2 hours (computed: the smallest of 3 sums of the column “hours” by"),
        ("Which job had the most hours in March 2025?", "quay: 4 hours (computed: the largest of 2 sums"),
        ("Who gives us the biggest discount?", "Varley: 6 % (computed: the highest “discount” in 2 rows of"),
    ],
)  # fmt: skip
def test_rows_that_fit_are_added(desk: Store, question: str, answer: str) -> None:
    done = _asked(desk, question)
    assert done is not None and done.text.startswith(answer) and not done.doubtful


def test_every_row_that_was_added_is_quoted_and_the_other_sums_are_named(desk: Store) -> None:
    done = _asked(desk, "Which month had the most hours?")
    assert done is not None and done.text.endswith("The others: March 2025: 6.")
    assert [citation.quote[:16] for citation in done.citations] == ["date: 2025-02-03", "date: 2025-02-17"]


@pytest.mark.parametrize(
    "question",
    [
        "What did the router cost?",
        "What did we spend on cards?",
        "What did we spend on coffee in 2025?",
        "Which month had the most rain?",
        "Who has the biggest boat?",
    ],
)
def test_one_row_or_none_is_left_to_the_reader(desk: Store, question: str) -> None:
    assert _asked(desk, question) is None


def test_prices_of_pieces_are_added_with_a_doubt(desk: Store) -> None:
    done = _asked(desk, "How much did all the screws cost?")
    assert done is not None and done.doubtful and "may be that of one piece" in done.text


def test_two_tables_that_could_be_meant_are_not_mixed(tmp_path: Path) -> None:
    store = _index(tmp_path, {"a.csv": "week,man,hours\n1,Ida,3\n3,Noel,4\n", "b.csv": "man,hours\nIda,9\nNoel,1\n"})
    assert _asked(store, "Which man had the most hours?") is None
    store.close()
