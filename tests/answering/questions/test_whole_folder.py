"""Questions about the whole folder over real files in a real store."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import openpyxl
import pytest

from desk_rag.answering.events import Answer, Finished
from desk_rag.answering.questions import whole_folder
from desk_rag.answering.questions.forms import whole_folder as recognised
from desk_rag.answering.requirements import amounts
from desk_rag.config import IndexSettings, Settings
from desk_rag.ingest import pipeline
from desk_rag.model import weights
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store

FILES = {
    "jobs/bills.csv": "number,day,customer,work,net,settled\nB-1,2026-01-05,Parish,register,1980,no\n"
    "B-2,2026-01-14,Museum,map cases,860,yes\nB-3,2026-02-01,Hotel Zwaan,menus,520,\n"
    "B-4,2026-03-18,Hotel Zwaan,guest book,180,2026-04-02\n",
    "spending.csv": "date,shop,what,price\n2025-01-03,Pettersen,wood,164.00\n2025-02-03,Color Mill,paint,71.50\n"
    "2025-03-09,Pettersen,hinges,38.20\n",
    "invoices/11.txt": "Invoice 11\nCustomer: Hotel Linden\nTotal: 150.00 crowns\n",
    "invoices/12.txt": "Invoice 12\nCustomer: Saint Barbara School\nTotal: 71.50 crowns\n",
    "invoices/13.txt": "Invoice 13\nCustomer: Hotel Linden\nTotal: 175.00 crowns\n",
    "logs/engine-2025-06.log": "2025-06-07 16:04:19 ERROR bearing at 77 C\n2025-06-08 09:41:50 INFO start\n"
    "2025-06-22 22:48:57 ERROR voltage 258 V\n",
    "logs/engine-2025-07.log": "2025-07-07 16:04:19 ERROR belt torn in the storm of that night\n",
    "notes.md": "# Notes\n\nHotel Linden wants its flour earlier. The hotel has 40 rooms and a garden.\n",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    root = tmp_path_factory.mktemp("whole")
    for name, text in FILES.items():
        (root / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "docs" / name).write_text(text)
    prompt = load_prompt(weights.resolve("embedded", allow_download=False))
    with Store.open(root / "data", Settings().store, writer=True) as opened:
        synced = pipeline.sync_folder(opened, root / "docs", prompt, prompt.chunk_size, IndexSettings(), lambda: False)
        assert len(list(synced)) >= len(FILES)
        assert (root / "docs/copy of notes.md").write_text(FILES["notes.md"])
        (root / "docs/0.md").symlink_to("notes.md")
        list(pipeline.sync_folder(opened, root / "docs", prompt, prompt.chunk_size, IndexSettings(), lambda: False))
        yield opened


def asked(store: Store, question: str) -> Answer | None:
    request = recognised(question)
    assert request is not None
    events = list(whole_folder.answer(store, question, request, ()))
    return events[-1].answer if events and isinstance(events[-1], Finished) else None


def names(answer: Answer) -> list[str]:
    return [citation.path.name for citation in answer.citations]


def test_which_files_names_each_file_once_with_the_line(store: Store) -> None:
    answer = asked(store, "Which files mention Hotel Linden?")
    assert answer is not None
    assert sorted(names(answer)) == ["11.txt", "13.txt", "notes.md"]
    assert answer.text.startswith("3 files, ")
    assert answer.text.endswith("\nnotes.md is also there as 0.md, copy of notes.md.")
    assert all("Hotel Linden" in citation.quote for citation in answer.citations)
    assert answer.basis is not None
    assert answer.basis.of_passages == answer.basis.passages > 3  # the copy's passage counts once


def test_lines_are_listed_and_counted_in_the_file_of_that_date(store: Store) -> None:
    answer = asked(store, "List all errors in the engine log of June 2025.")
    assert answer is not None
    assert [citation.quote for citation in answer.citations] == [
        "2025-06-07 16:04:19 ERROR bearing at 77 C",
        "2025-06-22 22:48:57 ERROR voltage 258 V",
    ]
    assert [citation.location.line_start for citation in answer.citations] == [1, 3]
    counted = asked(store, "How many invoices went to Hotel Linden?")
    assert counted is not None
    assert counted.text.startswith("2 (counted")


def test_a_number_that_stands_in_a_sentence_is_not_counted(store: Store) -> None:
    assert asked(store, "How many rooms has the hotel?") is None


def test_only_what_is_shown_is_added_up(store: Store) -> None:
    answer = asked(store, "How much did we spend at Pettersen in total?")
    assert answer is not None
    assert answer.text.startswith("202.20 (computed")
    assert names(answer) == ["spending.csv", "spending.csv"]
    assert asked(store, "What is the total of the payments to Nobody & Sons?") is None


@pytest.mark.parametrize(
    ("line", "question", "amount"),
    [
        ("date: 2025-01-03; shop: Pettersen; price: 1,164.00", "What is the total price?", "1164.00"),
        ("night: 2025-02-03; observer: Kasimir; hours: 3.0; quality: poor", "How many hours in total?", "3.0"),
        ("place: Eikby; visitors: 120; income: 1512", "How many visitors came in total?", "120"),
        ("It costs 265 crowns, on 9 July.", "What is the total?", "265"),
        ("The fence is 9 metres long.", "How many metres of fence in total?", "9"),
        ("It costs 265 crowns or 300 crowns.", "What is the total?", None),
        ("2025-06-08 09:41:50 INFO start", "What is the total?", None),
    ],
)
def test_the_number_to_add_up(line: str, question: str, amount: str | None) -> None:
    assert amounts.amount_of(line, question) == (None if amount is None else Decimal(amount))


@pytest.mark.parametrize(
    ("question", "numbers", "by"),
    [
        ("How many bills are not settled?", ["B-1", "B-3"], "settled: no"),
        ("How many unsettled bills of Hotel Zwaan are there?", ["B-3"], "settled: no"),
        ("How many bills have been settled?", ["B-2", "B-4"], "settled: yes"),
        ("List all bills over 500 crowns.", ["B-1", "B-2", "B-3"], "over 500 crowns"),
        ("List all bills of at most 520 crowns.", ["B-3", "B-4"], "of at most 520 crowns"),
    ],
)
def test_conditions_are_decided_by_the_columns_of_a_table(
    store: Store, question: str, numbers: list[str], by: str
) -> None:
    answer = asked(store, question)
    assert answer is not None
    assert [citation.quote.removeprefix("number: ")[:3] for citation in answer.citations] == numbers
    assert f"by “{by}”" in answer.text
    assert not answer.doubtful


def test_a_condition_on_the_date_of_a_row(store: Store) -> None:
    answer = asked(store, "List all errors before 20 June 2025")
    assert answer is not None
    assert [citation.quote for citation in answer.citations] == ["2025-06-07 16:04:19 ERROR bearing at 77 C"]


def test_a_condition_that_nothing_decides_is_said_and_doubtful(store: Store) -> None:
    answer = asked(store, "List all errors that are not serious")
    assert answer is not None
    assert "without regard to “are not serious”" in answer.text
    assert answer.doubtful


def test_the_row_that_names_the_columns_of_a_sheet_is_no_match(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["No", "Customer", "Net EUR", "Paid"], ["R-1", "Parish", 1980, "no"], ["R-2", "Museum", 860, "yes"]):
        book.active.append(row)
    (tmp_path / "docs/invoices").mkdir(parents=True)
    book.save(tmp_path / "docs/invoices/2026.xlsx")
    (tmp_path / "docs/invoices/note.txt").write_text("Invoices are sent by post.\n")
    prompt = load_prompt(weights.resolve("embedded", allow_download=False))
    with Store.open(tmp_path / "data", Settings().store, writer=True) as opened:
        docs = tmp_path / "docs"
        list(pipeline.sync_folder(opened, docs, prompt, prompt.chunk_size, IndexSettings(), lambda: False))
        answer = asked(opened, "How many invoices are not paid?")
        listed = asked(opened, "List all rows with Paid")
    assert answer is not None
    assert [citation.quote for citation in answer.citations] == ["No: R-1; Customer: Parish; Net EUR: 1980; Paid: no"]
    assert listed is not None
    assert all(": " in citation.quote for citation in listed.citations)
