"""Invoices as Word or a PDF printer lays them out: dots that lead to a price, number and date in one line, stamps."""

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

_OURS = "WEXLEY ROWING CLUB     Invoice {0}      {1}\nTo: {2}\n{3} ............ £{4}\n{5}"
_PRINTED = {
    "ours/WRC-01 Lifeboat 2022.pdf": _OURS.format(
        "WRC-01", "16 December 2022", "Lifeboat Station of Wexley, Ms A. Pell",
        "Hire of two boats for the regatta, 14 December 2022", "150.00", "PAID 9 January 2023"),
    "ours/WRC-02 Lifeboat 2023.pdf": _OURS.format(
        "WRC-02", "15 December 2023", "Lifeboat Station of Wexley, Ms A. Pell",
        "Hire of two boats for the regatta, 13 December 2023", "160.00", "Please pay within 30 days."),
    "theirs/Oakley Press 2211.pdf": (
        "OAKLEY PRESS    12 Wharf Street, Wexley\nInvoice 2211                                     10 June 2022\n"
        "To: Wexley Rowing Club\n150 programmes, 12 pages, Songs of the River ........ £128.00\n"
        "40 posters A3 ....................................... £ 46.00\n"
        "Total ............................................... £174.00\nPlease pay within 30 days."),
    "theirs/Oakley Press 2561.pdf": (
        "OAKLEY PRESS    12 Wharf Street, Wexley\nInvoice 2561                                     2 December 2024\n"
        "To: Wexley Rowing Club\n240 programmes, Regatta ............................. £171.00\n"
        "60 posters .......................................... £ 80.00\n"
        "Total ............................................... £251.00\nPlease pay within 14 days."),
}  # fmt: skip
_TYPED = {
    "ours/WRC-03 Crane advert.md": (
        "Invoice WRC-03, 25 November 2024\n\nTo Crane & Son, Chandlers\n\nFull-page advertisement: £70\n\n"
        "Reminder sent 20 January 2025. Nothing yet.\n"
    ),
    "ours/WRC-04 Bakery advert.md": (
        "Invoice WRC-04, 25 November 2024\n\nTo Hobb's Bakery\n\nHalf-page advertisement: £40\n\n"
        "Paid in buns? No: paid by transfer, 3 December 2024.\n"
    ),
    "theirs/Oakley Press 2561 second copy note.txt": (
        "Oakley sent 2561 again on 9 January 2025. It is the same bill and we paid it on 12 December.\n"
    ),
    "theirs/Lamb repairs.txt": (
        "Jon Lamb, boat builder\nInvoice no. 87                                         20 June 2023\n\n"
        "For mending the bow of the old four before the regatta     £65.00\nTo be paid within a month, thank you.\n"
    ),
    "theirs/Varnish.txt": "Brook Varnish\nInvoice no. 12\n\nVarnish, price as agreed by telephone\n",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    root = tmp_path_factory.mktemp("printed")
    with _index(root, _PRINTED, _TYPED) as opened:
        yield opened


def _index(root: Path, printed: dict[str, str], typed: dict[str, str]) -> Store:
    for name, text in (printed | typed).items():
        path = root / "docs" / "invoices" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [(60.0, 780.0 - 15 * row, 11.0, line) for row, line in enumerate(text.split("\n"))]
        path.write_bytes(pdf_of(lines) if name in printed else text.encode())
    prompt = load_prompt(weights.resolve("embedded", allow_download=False))
    opened = Store.open(root / "data", Settings().store, writer=True)
    list(pipeline.sync_folder(opened, root / "docs", prompt, prompt.chunk_size, IndexSettings(), lambda: False))
    return opened


def _text(store: Store, question: str) -> str:
    events = list(asking.answer(store, question, ()))
    answer = events[-1].answer if events and isinstance(events[-1], Finished) else None
    assert isinstance(answer, Answer)
    return answer.text


@pytest.mark.parametrize(
    ("question", "beginning"),
    [
        ("What is the total of the Oakley Press invoices?", "425.00 pounds (computed: the sum of 2 of 8 invoices"),
        ("How much have we invoiced the Lifeboat Station in all?", "310.00 pounds (computed: the sum of 2 of 8"),
        ("How many invoices did Oakley Press send us?", "2 (counted: invoices of Oakley Press"),
        ("How much did Jon Lamb charge us?", "65.00 pounds"),
        ("Is invoice WRC-01 paid?", "Yes, invoice WRC-01 says that it is paid:"),
        ("Is invoice WRC-04 paid?", "Yes, invoice WRC-04 says that it is paid:"),
        ("Has Crane paid?", "No, the only invoice of Crane says that it is not paid:"),
        ("Is invoice 2211 paid?", "Invoice 2211 does not say whether it is paid:\n[1] 2211, 10 June 2022, 174.00"),
    ],
)
def test_amount_number_date_and_payment_are_read(store: Store, question: str, beginning: str) -> None:
    assert _text(store, question).startswith(beginning)


def test_what_we_sent_and_what_we_received_are_kept_apart(store: Store) -> None:
    unpaid = _text(store, "Which of the invoices we sent out are still unpaid?").split("\n")
    assert unpaid[0] == "1 invoice that is not paid; there are 8 in all:"
    assert unpaid[1].startswith("[1] WRC-03, 25 November 2024, 70 pounds")
    assert unpaid[2:] == ["1 invoice does not say whether it is paid: WRC-02 Lifeboat 2023.pdf."]
    assert _text(store, "How many invoices did we send?").startswith("4 (counted: invoices")
    received = _text(store, "Which invoices have we received?")
    assert received.startswith("4 invoices; there are 8 in all:")
    assert "Left out, because WEXLEY ROWING CLUB sent them to others: " in received


def test_a_limit_says_how_many_had_no_amount(store: Store) -> None:
    over = _text(store, "Which invoices are over 500 pounds?")
    assert over.startswith(
        "No invoice with an amount that could be read over 500 pounds; there are 8 in all;"
        " no amount could be read from 1"
    )
    assert "Not decided, because no amount was found there: Varnish.txt." in over


def test_that_the_sender_is_not_known_is_said(tmp_path: Path) -> None:
    only_theirs = {name: text for name, text in _PRINTED.items() if name.startswith("theirs/Oakley Press 2211")}
    with _index(tmp_path, only_theirs, {}) as opened:
        sent = _text(opened, "Which invoices have we sent?")
    assert "could not be told" in sent
