"""Questions that compare or add up the rows of tables, and lists of the latest documents, over real small files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.store.store import Store
from tests.answering.questions.test_payments import _asked, _index

_MAIL = (
    "From: {0} <a@b.example>\nTo: Ines Calder <ines@c.example>\nSubject: {1}\nDate: {2} 08:00:00 +0000\n\n"
    "Hello.\n{1} is new.\n"
)
_FILES = {
    "catch.csv": (
        "species,count,site,date\nperch,4,north,2026-05-02\nslow worm,7,south,2026-05-02\nperch,9,south,2026-05-09\n"
        "perch,5,north,2026-05-16\npike,1,south,2026-05-16\n"
    ),
    "boats.csv": (
        "boat,owner,length_m,year,berth_fee\nAlba,Ines Calder,6.2,1998,840\nCorvo,Tobias Ferrer,9.4,2011,1320\n"
        "Dunlin,Lionel Prat,5.1,1987,610\nEsk,Beata Novak,7.0,2003,610\n"
    ),
    "plan.txt": "Garden plan\nThe pond must not be deeper than 60 cm.\nWe planted 12 raspberries and 4 currants.\n",
    "plan-v2.txt": "Garden plan\nThe pond must not be deeper than 45 cm.\nWe planted 15 raspberries and 4 currants.\n",
    "trips/ridge-walk.md": "# Lemdal to Hovde\n13 km, 520 m of ascent, four and a half hours.\n",
    "members 2025.csv": (
        "name,voice,joined,amount due,paid so far,remarks\nRuth Kemp,alto,2012,150,150,\nHugh Lorne,bass,2024,150,50,"
        "the rest by October\nPetra Oxley,alto,2022,150,,promised\n"
    ),
    "rent.csv": "month,rent_due,rent_received\n2026-03,825,825\n2026-04,825,600\n",
    "pay/payslip-01.txt": "ASHBY COUNCIL\nPayslip January 2026\nGross pay: 1,900.00\nNet pay: 1,412.30\n",
    "pay/payslip-02.txt": "ASHBY COUNCIL\nPayslip February 2026\nGross pay: 1,910.00\nNet pay: 1,420.10\n",
    "gas.txt": "Gas safety record\n\nDate of inspection: 13 August 2024. Next inspection due by: 12 August 2099.\n",
    "one.eml": _MAIL.format("Agnes Wroth", "Trailer", "Wed, 04 Mar 2026"),
    "two.eml": _MAIL.format("Agnes Wroth", "Deposit", "Fri, 20 Mar 2026"),
    "three.eml": _MAIL.format("Tobias Ferrer", "Regatta", "Tue, 16 Jun 2026"),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = _index(tmp_path_factory.mktemp("desk"), _FILES)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            "Which boat has the highest berth fee?",
            "Corvo: 1320 (computed: the highest “berth_fee” in 4 rows of boats.csv)",
        ),
        ("What is the lowest berth fee?", "Dunlin, Esk: 610 (computed: the lowest “berth_fee” in 4 rows of boats.csv)"),
        ("Which boat is the oldest?", "Dunlin: 1987 (computed: the lowest “year” in 4 rows of boats.csv)"),
        ("Who owns the longest boat?", "Tobias Ferrer: 9.4 (computed: the highest “length_m” in 4 rows of boats.csv)"),
        (
            "How many perch were counted in the north?",
            "9 (computed: the sum of the column “count” in 2 rows of catch.csv",
        ),
        ("How many slow worms were counted?", "7 (computed: the sum of the column “count” in 1 row of catch.csv"),
        ("How much rent was received in April 2026?", "600 (computed: the sum of the column “rent_received” in 1 row"),
        ("How much does Hugh Lorne owe?", "100 (computed: “amount due” 150 less “paid so far” 50)"),
        ("How much does Petra Oxley still have to pay?", "150 (computed: “amount due” 150 less “paid so far” 0)"),
        (
            "Which members have not yet paid their whole subscription for 2025?",
            "Hugh Lorne (100), Petra Oxley (150) (computed: what is left to pay in 2 of 3 rows of members 2025.csv)",
        ),
        ("How much rent was due in 2026?", "1,650 (computed: the sum of the column “rent_due” in 2 rows"),
        ("What is the total of my net pay in 2026?", "2,832.40 (computed: the sum of the line “Net pay” in 2 lines of"),
        ("What is the total of my net pay in January 2026?", "1,412.30 (computed: the sum of the line “Net pay” in 1"),
        ("When is the next gas inspection due?", "12 August 2099"),
        ("What's the newest mail from Agnes?", "The latest of 2 mails from Agnes"),
        ("Show me the last two mails", "The 2 latest of 3 mails:\n[1] “Regatta” from Tobias Ferrer"),
        ("Which two mails are the oldest?", "The 2 oldest of 3 mails:\n[1] “Trailer” from Agnes Wroth"),
        ("What changed between plan.txt and plan-v2.txt?", "We planted 12 raspberries and 4 currants. | We planted 15"),
        (
            "What changed in plan-v2.txt compared with plan.txt?",
            "deeper than 45 cm. | The pond must not be deeper than 60",
        ),
    ],
)
def test_what_is_computed(desk: Store, question: str, answer: str) -> None:
    done = _asked(desk, question)
    assert done is not None and answer in done.text


@pytest.mark.parametrize(
    "question",
    [
        "Which client has the highest hourly rate?",
        "What is the highest mountain?",
        "Which boat has the highest mast?",
        "How many trout were counted in the north?",
        "How many members were elected in 2026?",
        "How much does Alma Reed owe?",
        "What changed in 2019?",
        "Which plan is the longest?",
        "Which walk is the longest?",
    ],
)
def test_what_no_column_holds_is_left_to_the_reader(desk: Store, question: str) -> None:
    assert _asked(desk, question) is None


def test_a_column_with_words_in_it_has_no_largest_value(tmp_path: Path) -> None:
    store = _index(tmp_path, {"rooms.csv": "room,price\nBlue,40\nRed,ask\n"})
    assert _asked(store, "Which room has the highest price?") is None
    store.close()


def test_a_long_list_of_changed_files_shows_the_first_20_and_says_how_to_see_all(tmp_path: Path) -> None:
    files = {f"note-{number:02}.txt": f"Note {number} is green.\n" for number in range(23)}
    store = _index(tmp_path, {**files, "empty.txt": ""})
    try:
        first = _asked(store, "What changed today?")
        every = _asked(store, "All files that changed today")
        number = _asked(store, "How many files are there?")
        assert first is not None and every is not None and number is not None
        assert first.text.startswith("23 of 23 files were last changed today; the newest 20 are shown (“All files that")
        assert first.text.count("changed on") == 20
        assert every.text.count("changed on") == 23 and "are shown" not in every.text
        assert number.text.startswith("23 (counted: files")
        assert "only files that were read, 1 more left out" in number.text
    finally:
        store.close()
