"""Questions for what was paid, invoiced and owed, over invoices of the own firm, a bank's table and readings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.events import Answer, Finished
from desk_rag.answering.questions.folder import asking
from desk_rag.config import IndexSettings, Settings
from desk_rag.ingest import pipeline
from desk_rag.model import weights
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store
from tests.files.pdf_pages import pdf_of

_INVOICES = (
    ("2024-01", "Ashby School", "9 March 2024", "680.00", "paid on 30 March 2024"),
    ("2025-01", "Ashby School", "3 March 2025", "6,650.00", "paid on 1 April 2025"),
    ("2025-02", "Ashby School", "30 June 2025", "13,300.00", "paid on 29 July 2025"),
    ("2025-03", "Oakes & Daughter", "12 September 2025", "745.00", "not paid yet"),
    ("2024-02", "Oakes & Daughter", "21 June 2024", "2,015.50", "not paid yet"),
)
_BANK = """date,payee,amount,category
{0}-01-05,Palisade Lettings,-1430.00,rent
{0}-01-11,Severn Energy,-98.00,energy
{0}-02-05,Palisade Lettings,-1430.00,rent
{0}-03-02,Mole Dairy,-12.00,food
{0}-03-04,Mole Dairy,4.00,refund
"""
_FILES = {
    "bank-2024.csv": _BANK.format(2024),
    "bank-2025.csv": _BANK.format(2025),
    "meter-readings.csv": "date,electricity_kwh,gas_m3\n2025-01-01,18211,4402\n2025-04-01,18902,4655\n",
    "household-2025.csv": "month,Electricity,Gas\nJanuary,84.20,131.50\nFebruary,79.10,118.90\nMarch,70.40,88.30\n",
}


def _index(root: Path, files: dict[str, str]) -> Store:
    for name, text in files.items():
        (root / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "docs" / name).write_text(text, encoding="utf-8")
    prompt = load_prompt(weights.resolve("embedded", allow_download=False))
    opened = Store.open(root / "data", Settings().store, writer=True)
    list(pipeline.sync_folder(opened, root / "docs", prompt, prompt.chunk_size, IndexSettings(), lambda: False))
    return opened


def _invoice(number: str, to: str, day: str, total: str, status: str, sender: str = "Judith Farrow, surveyor") -> str:
    return f"# Invoice {number}\n\nFrom: {sender}\nTo: {to}\nDate: {day}\n\nTotal: £{total}\nStatus: {status}\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    sent = {f"invoices/invoice-{one[0]}.md": _invoice(*one) for one in _INVOICES}
    with _index(tmp_path_factory.mktemp("payments"), _FILES | sent) as opened:
        yield opened


def _asked(store: Store, question: str) -> Answer | None:
    events = list(asking.answer(store, question, ()))
    return events[-1].answer if events and isinstance(events[-1], Finished) else None


@pytest.mark.parametrize(
    ("question", "beginning"),
    [
        ("How much did I invoice Ashby School in 2025?", "19,950.00 pounds (computed: the sum of 2 of 5 invoices"),
        ("What was invoiced to Ashby in total?", "20,630.00 pounds (computed: the sum of 3 of 5 invoices"),
        ("How much did we bill in 2024?", "2,695.50 pounds (computed: the sum of 2 of 5 invoices"),
        ("How much has Oakes & Daughter not paid yet?", "2,760.50 pounds (computed: the sum of 2 of 5 invoices"),
        ("How much did Ashby School pay me in 2025?", "19,950.00 pounds"),
        ("How much did Judith Farrow charge in 2024?", "2,695.50 pounds"),
    ],
)
def test_what_was_invoiced_is_the_sum_of_the_invoices(store: Store, question: str, beginning: str) -> None:
    answer = _asked(store, question)
    assert answer is not None
    assert answer.text.startswith(beginning)


@pytest.mark.parametrize(
    "question",
    ["What did we pay each supplier?", "What did I pay Ashby School in 2025?", "How much did Ashby School charge us?"],
)
def test_invoices_to_others_are_nothing_that_was_paid(store: Store, question: str) -> None:
    answer = _asked(store, question)
    assert answer is not None
    assert not answer.found
    assert answer.text.startswith("No invoice that was to be paid was found: ")
    assert answer.text.endswith("sent to others by Judith Farrow, surveyor.")


def test_bought_things_are_added_up_without_what_the_own_firm_sent(tmp_path: Path) -> None:
    sent = {f"invoices/invoice-{one[0]}.md": _invoice(*one) for one in _INVOICES}
    bought = {f"invoices/{number}.md": _invoice(number, "Judith Farrow", "4 May 2025", "50.00", "paid", sender=sender)
              for number, sender in (("K-1", "Kessler Heating"), ("B-7", "Bright Paper"))}  # fmt: skip
    with _index(tmp_path, sent | bought) as opened:
        answer = _asked(opened, "What did we pay each supplier?")
    assert answer is not None
    lines = answer.text.split("\n")
    assert lines[0].startswith("100.00 pounds (computed: the sum of 2 of 7 invoices")
    assert {"Kessler Heating: 1 invoice, 50.00 pounds", "Bright Paper: 1 invoice, 50.00 pounds"} <= set(lines)
    assert any(line.startswith("Left out, because Judith Farrow, surveyor sent them to others: ") for line in lines)


@pytest.mark.parametrize(
    ("question", "beginning"),
    [
        ("What did we pay Palisade Lettings in 2025?", "2,860.00 (computed: the sum of the column “amount” in 2 rows"),
        ("How much did we pay Palisade Lettings?", "5,720.00 (computed: the sum of the column “amount” in 4 rows"),
        ("How much electricity did we pay for in January 2025?", "84.20 (computed: the sum of the column “Elec"),
        ("What is the sum of the gas costs in January to March 2025?", "338.70 (computed: the sum of the column “Gas”"),
    ],
)
def test_payments_are_added_up_from_columns_of_money(store: Store, question: str, beginning: str) -> None:
    answer = _asked(store, question)
    assert answer is not None
    assert answer.text.startswith(beginning)
    assert not answer.doubtful


def test_money_that_came_back_makes_the_sum_doubtful(store: Store) -> None:
    answer = _asked(store, "What did we pay Mole Dairy in 2025?")
    assert answer is not None
    assert answer.text.startswith("8.00 (computed")
    assert answer.doubtful


@pytest.mark.parametrize("copy", [_BANK.format(2025) + "\n", "day,amount,to\n2025-01-05,-1430.00,Palisade Lettings\n"])
def test_tables_that_may_say_the_same_twice_make_the_sum_doubtful(tmp_path: Path, copy: str) -> None:
    with _index(tmp_path, {"bank.csv": _BANK.format(2025), "from the bank/list.csv": copy}) as opened:
        answer = _asked(opened, "What did we pay Palisade Lettings in 2025?")
    assert answer is not None
    assert answer.doubtful
    assert "Several tables have such rows, and may say the same twice." in answer.text


def test_a_copy_of_a_table_is_not_added_up_again(tmp_path: Path) -> None:
    with _index(tmp_path, {"bank.csv": _BANK.format(2025), "from the bank/list.csv": _BANK.format(2025)}) as opened:
        answer = _asked(opened, "What did we pay Palisade Lettings in 2025?")
    assert answer is not None
    assert answer.text.startswith("2,860.00 (computed")
    assert not answer.doubtful


def test_readings_of_a_meter_make_no_sum_without_doubt(store: Store) -> None:
    answer = _asked(store, "How much electricity did we use in 2025?")
    assert answer is not None
    assert answer.doubtful
    assert "“meter-readings” may hold readings of a meter, which make no sum." in answer.text


def test_a_line_with_day_or_means_says_that_an_invoice_is_paid(tmp_path: Path) -> None:
    lines = ("Paid 4 March 2024", "Paid by card", "Paid: 20/03/2023 by bank transfer", "Paid March 5, 2024", "Unpaid")
    head = "Hale Surveys\nInvoice {0}\nDate: 2 May 2023\nTo: Judith Farrow\nTotal: £340.00\n"
    files = {f"in/Hale {number}.txt": head.format(f"H-{number}") + f"{line}\n" for number, line in enumerate(lines)}
    with _index(tmp_path, files) as opened:
        answer = _asked(opened, "Which invoices are unpaid?")
    assert answer is not None
    assert answer.text.startswith("1 invoice that is not paid; there are 5 in all:")
    assert "whether" not in answer.text


_HEAD = "{0}\nInvoice {1}\nTo: {2}\nDate: {3}\nTotal: {4} pounds\n{5}\n"
_BOTH_WAYS = {
    "out/P-7.txt": _HEAD.format("Pell & Co", "P-7", "Tarn Council", "2 June 2023", "10,500.00", "Paid by cheque"),
    "out/P-8.txt": _HEAD.format("Pell & Co", "P-8", "Tarn Council", "9 May 2023", "7,680.00", "Status: Not paid"),
    "out/P-9.txt": _HEAD.format("Pell & Co", "P-9", "Mill Trust", "1 July 2023", "3,200.00", "Not yet paid"),
    "in/Bowen 401.txt": _HEAD.format("Bowen Roofs", "401", "Pell & Co", "1 May 2023", "990.00", "Status: open"),
    "in/Inkwell 20931.txt": _HEAD.format("Inkwell", "20931", "Pell & Co", "1 May 2024", "84.20", "Paid by card"),
    "in/Hale 12.txt": _HEAD.format("Hale Surveys", "12", "Pell & Co", "1 May 2024", "50.00", "Thank you"),
}  # fmt: skip


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with _index(tmp_path_factory.mktemp("both"), _BOTH_WAYS) as opened:
        yield opened


@pytest.mark.parametrize(
    ("question", "beginning"),
    [
        ("Is invoice P-8 paid?", "No, invoice P-8 says that it is not paid:"),
        ("Is invoice 20931 paid?", "Yes, invoice 20931 says that it is paid:"),
        ("Has the Bowen bill been paid yet?", "No, the only invoice of Bowen says that it is not paid:"),
        ("Was invoice 12 settled?", "Invoice 12 does not say whether it is paid:"),
        ("Have the invoices to the Tarn Council been paid?", "2 invoices of Tarn Council: 1 paid, 1 not paid."),
        ("Has the Mill Trust paid?", "No, the only invoice of Mill Trust says that it is not paid:"),
        ("Which of our own invoices from 2023 have not been paid?", "2 invoices from 2023 that are not paid"),
        ("Which invoices that we sent are unpaid?", "2 invoices that are not paid"),
        ("Which invoices do we still have to pay?", "1 invoice that is not paid"),
        (
            "What is the total of the unpaid invoices?",
            "10,880.00 pounds in invoices that Pell & Co sent, 990.00 pounds in those of others (computed: the"
            " sums of 3 of 6 invoices",
        ),
        ("What did the Tarn Council pay us in 2023?", "10,500.00 pounds (from the only invoice of Tarn Council in"),
        ("How much did the Mill Trust pay us?", "Nothing: 1 invoice of Mill Trust says “not paid”."),
        ("How much does the Tarn Council owe us?", "7,680.00 pounds"),
        ("How much do we owe Bowen?", "990.00 pounds"),
    ],
)
def test_what_is_paid_and_what_is_owed_by_whom(both_ways: Store, question: str, beginning: str) -> None:
    answer = _asked(both_ways, question)
    assert answer is not None
    assert answer.text.startswith(beginning)


def test_who_sends_one_invoice_and_gets_another_owns_the_folder(tmp_path: Path) -> None:
    names = ("out/P-8.txt", "in/Bowen 401.txt")
    with _index(tmp_path, {name: _BOTH_WAYS[name] for name in names}) as opened:
        answer = _asked(opened, "What is the total of the unpaid invoices?")
    assert answer is not None
    assert answer.text.startswith("7,680.00 pounds in invoices that Pell & Co sent, 990.00 pounds in those of others")


def test_an_invoice_that_is_not_paid_is_left_out_of_what_was_paid(both_ways: Store) -> None:
    answer = _asked(both_ways, "What did the Tarn Council pay us in 2023?")
    assert answer is not None
    assert "Left out, because by their own words not paid yet: P-8.txt." in answer.text


def test_lines_of_a_pdf_that_were_joined_still_have_number_and_payment(tmp_path: Path) -> None:
    lines = ["Inkwell Supplies", "Invoice 20931", "To: Pell & Co", "Date: 9 January 2024", "Paper 60.00", "Toner 24.20",
             "Total: 84.20 pounds", "Paid by card", "Thank you"]  # fmt: skip
    page = [(60, 800 - 14 * number, 11, line) for number, line in enumerate(lines)]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "Inkwell.pdf").write_bytes(pdf_of(page))
    with _index(tmp_path, {}) as opened:
        answer = _asked(opened, "Is invoice 20931 paid?")
    assert answer is not None
    assert answer.text.startswith("Yes, invoice 20931 says that it is paid:")


def test_whether_somebody_has_been_paid_is_told_by_their_invoices(tmp_path: Path) -> None:
    files = {
        f"{number}.md": _invoice(number, "Ada Lowe", "3 March 2025", "90.00", status, sender)
        for number, status, sender in (
            ("T-1", "not paid yet", "Tolley Drains"),
            ("H-7", "paid on 9 May 2025", "Harl Glass"),
            ("H-8", "not paid yet", "Harl Glass"),
        )
    }
    with _index(tmp_path, files) as opened:
        tolley = _asked(opened, "Has Tolley Drains been paid for the gully?")
        harl = _asked(opened, "Has Harl Glass been paid yet?")
    assert tolley is not None and tolley.text.startswith("No, the only invoice of Tolley Drains says that it is not")
    assert harl is not None and harl.text.startswith("2 invoices of Harl Glass: 1 paid, 1 not paid.")


def test_a_man_called_bill_is_no_bill_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    files = {
        "invoice T-1.md": _invoice("T-1", "Ada Lowe", "3 March 2025", "90.00", "not paid yet", "Tolley Drains"),
        "how the kite was found by Mr Bill Ormond.txt": "The kite hung in the elm, and he climbed for it.\n",
    }
    with _index(tmp_path / "first", files) as opened:
        counted = _asked(opened, "How many invoices are there?")
        paid = _asked(opened, "What did we pay each supplier?")
    assert counted is not None and counted.text.startswith("1 (counted") and "among" not in counted.text
    assert paid is not None and "Ormond" not in paid.text
    bill = {"water bill June.txt": "Water bill\nTotal: £40.00\n"}
    with _index(tmp_path / "second", files | bill) as opened:
        counted = _asked(opened, "How many invoices are there?")
    assert counted is not None and "1 bill is not among them: water bill June.txt." in counted.text
