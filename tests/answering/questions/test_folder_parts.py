"""Amounts, periods, kinds and requests of questions about documents, each by itself."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from desk_rag.answering.events import Finished
from desk_rag.answering.questions.folder import compare, documents
from desk_rag.answering.questions.folder.reading.fields import fields_of, without_sheet
from desk_rag.answering.questions.folder.reading.kinds import Kind
from desk_rag.answering.questions.folder.reading.money import Amount, Measure, NoAmount, amount_of, parsed, sums
from desk_rag.answering.questions.folder.reading.naming import suggestions
from desk_rag.answering.questions.folder.reading.overview import names_in, overview
from desk_rag.answering.questions.folder.reading.periods import take_period
from desk_rag.answering.questions.folder.reading.records import Record, all_dates
from desk_rag.answering.questions.folder.request import Role, Task, request_of
from desk_rag.answering.questions.whole_folder import FolderQuestion
from desk_rag.answering.requirements.dates import Date
from desk_rag.config import IndexSettings, Settings
from desk_rag.documents.chunking import Chunk, Location, chunk_id_of
from desk_rag.documents.status import FileState
from desk_rag.ingest import pipeline
from desk_rag.model import weights
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store
from desk_rag.store.types import DocumentRow, FileStamp, Passage

TODAY = date(2026, 11, 23)


def passage_of(text: str) -> Passage:
    chunk = Chunk(chunk_id_of(text), 0, text, len(text.split()), Location())
    return Passage(chunk, Path("/docs/file.txt"), "", FileStamp(0, 0, 0, ""))


def row_of(name: str) -> DocumentRow:
    return DocumentRow(Path("/docs") / name, "", "", FileStamp(0, 0, 0, ""), FileState.INDEXED, "", 1, 0.0)


@pytest.mark.parametrize(
    ("text", "value", "currency"),
    [
        ("Net amount: 620.00 euros VAT 19 %: 117.80 euros Total: 737.80 euros", "737.80", "euros"),
        ("Subtotal; EUR: 100.00\nVAT; EUR: 19.00\nTotal; EUR: 119.00", "119.00", "euros"),
        ("Invoice number; KH-1\nInvoice number: Total EUR; KH-1: 151", "151", "euros"),
        ("Total: 100.00\nVAT 19 %: 19.00\nAmount due: EUR 119.00", "119.00", "euros"),
        ("Gesamtbetrag: 1.702,00 €\nBitte an DE44 2004 0000 0261 0077 12 zahlen.", "1702.00", "euros"),
        ("The total comes to $1,315.50 and is payable within 30 days.", "1315.50", "dollars"),
        ("Total hours: 12\nPrice: 240.00 CHF", "240.00", "francs"),
    ],
)
def test_the_payable_amount_is_the_total_and_no_part_of_it(text: str, value: str, currency: str) -> None:
    passages = [passage_of(text)]
    amount = amount_of(fields_of(passages), passages)
    assert isinstance(amount, Amount)
    assert (amount.value, amount.currency) == (Decimal(value), currency)
    assert amount.quote in text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Transport, amount as agreed.\nPay to DE44 2004 0000 0261 0077 12 within 30 days.", "no amount"),
        ("Net amount: 620.00 euros", "only a net amount or a tax"),
        ("Fee: 20.00 euros\nPrice: 30.00 euros", "several amounts, and none is called a total"),
        ("Due: 12 March 2021\nTotal pages: 3", "no amount"),
    ],
)
def test_a_document_without_a_clear_amount_says_why(text: str, reason: str) -> None:
    passages = [passage_of(text)]
    assert amount_of(fields_of(passages), passages) == NoAmount(reason)


def test_a_tax_is_read_where_it_is_asked_for() -> None:
    passages = [passage_of("Net: 620.00 euros VAT 19 %: 117.80 euros Total incl. VAT: 737.80 euros")]
    amount = amount_of(fields_of(passages), passages, Measure.TAX)
    assert isinstance(amount, Amount)
    assert amount.value == Decimal("117.80")


def test_numbers_in_both_notations() -> None:
    assert [parsed(number) for number in ("1,315.00", "1.315,00", "1'315.5", "1,315", "88.4")] == [
        Decimal("1315.00"), Decimal("1315.00"), Decimal("1315.5"), Decimal("1315"), Decimal("88.4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("question", "rest", "inside", "outside"),
    [
        ("invoices of 2024", "invoices", Date(2024, 12, 31), Date(2025, 1, 1)),
        ("invoices between 2022 and 2024", "invoices", Date(2023, 0, 0), Date(2021, 12, 31)),
        ("invoices in 2022 and 2024", "invoices", Date(2024, 5, 1), Date(2023, 5, 1)),
        ("invoices since May 2023", "invoices", Date(2023, 5, 1), Date(2023, 4, 30)),
        ("invoices before 2023", "invoices", Date(2022, 12, 31), Date(2023, 1, 1)),
        ("invoices from last month", "invoices", Date(2026, 10, 31), Date(2026, 11, 1)),
        ("invoices of this week", "invoices", Date(2026, 11, 29), Date(2026, 11, 22)),
        ("invoices of the first quarter of 2023", "invoices", Date(2023, 3, 31), Date(2023, 4, 1)),
        ("mails from Ana in May", "mails from Ana", Date(1999, 5, 7), Date(1999, 6, 7)),
        ("mails from 3 to 5 May 2024", "mails", Date(2024, 5, 4), Date(2024, 5, 6)),
    ],
)
def test_periods(question: str, rest: str, inside: Date, outside: Date) -> None:
    text, period = take_period(question, TODAY)
    assert period is not None
    assert (text, period.holds(inside), period.holds(outside)) == (rest, True, False)


def test_a_year_alone_does_not_tell_the_month() -> None:
    _, period = take_period("invoices of May 2023", TODAY)
    assert period is not None
    assert period.holds(Date(2023, 0, 0)) is None
    assert period.holds(Date(2022, 0, 0)) is False
    assert take_period("what may be done in the march of time", TODAY)[1] is None


def test_dates_that_can_be_read_in_two_ways_keep_their_year() -> None:
    assert all_dates("12.03.2021") == [Date(2021, 3, 12)]
    assert all_dates("25/03/2021") == [Date(2021, 3, 25)]
    assert all_dates("03/04/2021") == [Date(2021, 0, 0)]


@pytest.mark.parametrize(
    ("question", "task", "kind", "topic", "role"),
    [
        ("How much did we pay Kessler Heating in 2023?", Task.TOTAL, "invoice", "Kessler Heating", Role.PARTY),
        ("How many invoices mention Kessler Heating?", Task.COUNT, "invoice", "Kessler Heating", Role.MENTION),
        ("Which invoice of 2022 was the cheapest?", Task.SMALLEST, "invoice", "", Role.PARTY),
        ("List all mails from Ana in May", Task.LIST, "mail", "Ana", Role.PARTY),
        ("Show me the newest lease", Task.LATEST, "lease", "", Role.PARTY),
    ],
)
def test_requests(question: str, task: Task, kind: str, topic: str, role: Role) -> None:
    request = request_of(question, TODAY)
    assert request is not None
    assert (request.task, request.kind.name, request.topic, request.role) == (task, kind, topic, role)


@pytest.mark.parametrize(
    "question",
    [
        "How many rooms has the hotel?",
        "When does the lease end?",
        "Who signed the contract?",
        "How many flats does the house have?",
        "What does the letter from Hollis say?",
        "How much does the roof cost?",
    ],
)
def test_questions_for_one_fact_are_no_requests(question: str) -> None:
    assert request_of(question, TODAY) is None


def test_a_name_is_suggested_only_if_it_is_near() -> None:
    names = ["car.md", "lease Harbour Lane 3.md", "shelves.md"]
    assert suggestions("3.md", names) == ["lease Harbour Lane 3.md"]
    assert suggestions("shelfes.md", names) == ["shelves.md"]
    assert suggestions("zebra.md", names) == []


@pytest.mark.parametrize(
    ("text", "is_paid", "party"),
    [
        ("Tovey & Daughter, Glaziers\n\nINVOICE\nTotal: 114.00\nPaid in cash.", True, "Tovey & Daughter, Glaziers"),
        ("Coldharbour Heating Ltd, 8 Foundry Road\nTotal: 210.00\nSent to Pettigrew; paid by the landlord.", True,
         "Coldharbour Heating Ltd"),
        ("Penhallow Roofing › INVOICE\nTotal: 86.00\nPayable by: 20 May 2026", None, "Penhallow Roofing"),
        ("Marsh Lane Practice\nTotal: 205.80\nStatus: unpaid", False, "Marsh Lane Practice"),
        ("Marsh Lane Practice\nTotal: 205.80\nIt must be paid by 3 May.", None, "Marsh Lane Practice"),
    ],
)  # fmt: skip
def test_who_issued_an_invoice_and_whether_it_is_paid(text: str, is_paid: bool | None, party: str) -> None:
    record = Record(Kind("invoice", "invoices"), row_of("invoice.txt"), (passage_of(text),))
    assert (record.paid[0], record.party) == (is_paid, party)


def test_the_entries_of_a_diary_date_it() -> None:
    text = "2 May 2003\nWedding.\n\n14 May 2003\nSunburn.\n\n30 November 2003\nWe moved in."
    assert "dated 2 May 2003 to 30 November 2003" in overview([row_of("2003.txt")], [[passage_of(text)]])
    assert "dated" not in overview([row_of("list.txt")], [[passage_of("Born 2 May 1903, died 3 May 1999.\nRoses.")]])


def test_names_in_a_text_leave_labels_and_greetings_out() -> None:
    text = "Dear Ms Petersen,\nLandlord: Gregor Holm Tenant: Anna Petersen Monthly rent: 1,480 euros. On 3 May we met."
    assert names_in(text) == ["Gregor Holm", "Anna Petersen"]


def test_sums_in_two_currencies_stay_apart() -> None:
    passage = passage_of("x")
    amounts = [Amount(Decimal(value), currency, "", passage) for value, currency in (
        ("1.50", "euros"), ("2.00", "pounds"), ("3.00", "euros"))]  # fmt: skip
    assert sums(amounts) == {"euros": Decimal("4.50"), "pounds": Decimal("2.00")}
    unnamed = Amount(Decimal("1.00"), "", "", passage)
    assert sums([amounts[0], unnamed]) == {"euros": Decimal("2.50")}
    assert sums([*amounts, unnamed]) == {"euros": Decimal("4.50"), "pounds": Decimal("2.00"), "": Decimal("1.00")}


def test_the_same_invoice_twice_counts_once_and_a_ledger_is_no_invoice(tmp_path: Path) -> None:
    files = {
        "a.txt": "Acme\nRechnungsnummer: A-1\nRechnungsdatum: 12.03.2021\nGesamtbetrag: 1.700,50 €\n",
        "copy of a.txt": "Acme\nRechnungsnummer: A-1\nRechnungsdatum: 12.03.2021\nGesamtbetrag: 1.700,50 €\n ",
        "b.txt": "Acme\nInvoice number: A-2\nDate: 25/03/2021\nTotal: 99.50 EUR\n",
        "reply.txt": "Dear Acme,\n\nyour invoice A-2 of 99.50 EUR is wrong.\n",
        "ledger.csv": "date,Invoice number,amount\n2021-03-12,A-1,1700.50\n2021-03-25,A-2,99.50\n",
    }
    for name, text in files.items():
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    prompt = load_prompt(weights.resolve("embedded", allow_download=False))
    with Store.open(tmp_path / "data", Settings().store, writer=True) as store:
        docs = tmp_path / "docs"
        list(pipeline.sync_folder(store, docs, prompt, prompt.chunk_size, IndexSettings(), lambda: False))
        question = FolderQuestion(store, "What is the total of the invoices of March 2021?", (docs,), TODAY)
        *_, last = documents.answer(question)
    assert isinstance(last, Finished)
    lines = last.answer.text.split("\n")
    assert lines[0].startswith("1,800.00 euros (computed: the sum of 2 of 3 invoices")
    assert "Counted once: copy of a.txt repeats A-1 of a.txt." in lines
    assert any(line.startswith("Not added") and "2 rows of ledger.csv, 1,800.00 in all" in line for line in lines)


def test_a_change_to_a_clause_stands_beside_that_clause() -> None:
    lease = passage_of(
        "§ 1 The ground floor hall is let as a bicycle workshop to the tenant.\n"
        "§ 2 The lease begins on 1 January 2020 and ends on 31 December 2027.\nBremen, 2 December 2019\n"
    )
    addendum = passage_of("To § 2: The lease is extended until 30 June 2030.\nThe landlord mends the roof by Easter.\n")
    lines, _ = compare._side_by_side([lease], [addendum])
    assert lines[0] == (
        "§ 2 The lease begins on 1 January 2020 and ends on 31 December 2027. | "
        "To § 2: The lease is extended until 30 June 2030."
    )
    assert any("of the first: “§ 1 The ground floor hall" in line for line in lines)
    assert any("of the second: “The landlord mends the roof by Easter.”" in line for line in lines)


def test_rows_of_a_workbook_with_several_sheets_are_compared_by_their_columns() -> None:
    """The name of a sheet is no item, and the last column of one table is not that of another."""
    first = passage_of(
        "Plots\nPlot: 1; Holder: Pauline Ruddock; Rent 2024 (£): 36; Paid: yes\n"
        "Plot: 8; Holder: Walter Nuttall; Rent 2024 (£): 36; Paid: yes\n"
        "Plot: 19; Holder: Kevin Strood; Rent 2024 (£): 36; Paid: yes\n"
    )
    second = passage_of(
        "Plots\nSheet: Plots; Plot: 1; Holder: Pauline Ruddock; Rent 2025 (£): 36; Paid: yes; Date paid: 2025-01-12\n"
        "Sheet: Plots; Plot: 8; Holder: Walter Nuttall; Rent 2025 (£): 42; Paid: no\n"
        "Sheet: Plots; Plot: 19; Holder: Nasreen Qureshi; Rent 2025 (£): 42; Paid: yes; Date paid: 2025-01-18\n"
    )
    lines, quotes = compare._side_by_side([first], [second])
    assert lines == [
        "Walter Nuttall: Rent 2024 (£) 36 | Rent 2025 (£) 42; Paid yes | no",
        "The same in both: Pauline Ruddock.",
        "Only in the first: Kevin Strood (yes).",
        "Only in the second: Nasreen Qureshi (2025-01-18).",
    ]
    assert len(quotes) == 2
    left_over = [value for _, value in without_sheet([("Sheet", "Plots"), ("Plot", "1")])]
    assert left_over == ["1"]
