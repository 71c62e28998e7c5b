"""A second desk: a freelancer's invoices to customers as PDF and Word, bills, receipts, contracts and hours."""

import csv
from collections.abc import Sequence
from pathlib import Path

from tests.files.pdf_pages import Mark, pdf_of

_LEFT, _MIDDLE, _RIGHT, _TOP, _STEP = 60.0, 300.0, 400.0, 780.0, 18.0
_INVOICES = [
    ("2024-01 Larkspur", "MO-24-01", "15 January 2024", "Larkspur Press",
     [("Novel, part 1", "12,000", "£1,200.00"), ("Express fee", "", "£100.00")], "£1,300.00", "£260.00", "£1,560.00"),
    ("2024-02 Hedgerow", "MO-24-02", "2 February 2024", "Hedgerow Seeds Ltd",
     [("Catalogue", "4,100", "£492.00")], "£492.00", "£98.40", "£590.40"),
    ("2024-03 Larkspur", "MO-24-03", "28 March 2024", "Larkspur Press",
     [("Novel, part 2", "15,000", "£1,500.00")], "£1,500.00", "£300.00", "£1,800.00"),
    ("2023-07 Hedgerow", "MO-23-07", "9 July 2023", "Hedgerow Seeds Ltd",
     [("Website", "2,000", "£240.00")], "£240.00", "£48.00", "£288.00"),
]  # fmt: skip
_TEXTS = {
    "bills/electricity 2024.txt": "Northern Grid\nBill number: 88123\nBill date: 03/02/2024\n\nStanding charge: 92.10\n"
    "Usage: 410.22 GBP\nTotal amount due: 502.32 GBP\n",
    "bills/phone march 2024.md": "# Wavetel\n\nBill no. W-5521\nDate of issue: 2024-03-04\n\nTotal £31.00\n",
    "bills/phone april 2024.md": "# Wavetel\n\nBill no. W-5688\nDate of issue: 2024-04-04\n\nTotal £33.50\n",
    "receipts/2024-01-20 desk lamp.txt": "Receipt\nBrightside Stores\n20 January 2024\nDesk lamp 45.00\n"
    "Total 45.00 GBP\nPaid by card\n",
    "receipts/2024-02-11 paper.txt": "Receipt\nBrightside Stores\n11 February 2024\nPaper 18.20\nTotal 18.20 GBP\n",
    "offers/offer Larkspur sequel.md": "# Offer: the sequel\n\nFor Larkspur Press, 2 June 2024.\n\n"
    "Price: £2,400.00, valid for 30 days.\n",
    "contracts/contract Larkspur.md": "# Contract with Larkspur Press\n\nSigned: 3 January 2024\n"
    "Rate per word: 10 pence\nPayment: within 14 days\nCopies: 5\n\nThe translator keeps the copyright.\n",
    "contracts/contract Saltmarsh.md": "# Contract with Saltmarsh Museum\n\nSigned: 20 April 2024\n"
    "Rate per word: 12 pence\nPayment: within 30 days\n\nThe museum gets the copyright.\n",
    "notes/clients.md": "# Clients\n\nLarkspur Press pays late; I reminded them of invoice MO-24-01 twice.\n"
    "Hedgerow is lovely. Saltmarsh has 3 curators.\n",
    "notes/meeting 2024-03-05.md": "# Meeting on 5 March 2024\n\nGreta Lindholm wants the sequel by autumn. "
    "Owen Price will send the contract.\n",
    "notes/meeting 2024-06-11.md": "# Meeting on 11 June 2024\n\nGreta Lindholm accepted the offer. "
    "The book has 312 pages and 14 chapters.\n",
}
_HOURS = [["day", "client", "hours"], ["2024-03-01", "Larkspur", "5"], ["2024-03-02", "Larkspur", "6.5"],
          ["2024-03-05", "Hedgerow", "2"]]  # fmt: skip


def write_desk(folder: Path) -> Path:
    """Write the whole desk into a folder, and return the folder."""
    for name, text in _TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "sent").mkdir()
    for name, number, date, customer, items, *sums in _INVOICES:
        lines = ["Mira Olsen Translations", "Quay Road 8, Portwick", "", f"Invoice {number}", f"Date: {date}",
                 f"Customer: {customer}", ""]  # fmt: skip
        rows = [("Description", "Words", "Amount"), *items, ("", "", "")]
        rows += [("", label, amount) for label, amount in zip(("Net", "VAT 20%", "Total"), sums, strict=True)]
        end = "Please transfer to GB29 NWBK 6016 1331 9268 19 within 14 days."
        (folder / "sent" / f"{name}.pdf").write_bytes(pdf_of(_marks(lines, rows, end)))
    _write_word(folder / "sent" / "2024-05 Saltmarsh.docx")
    with (folder / "notes" / "hours.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(_HOURS)
    (folder / "scan.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(50))
    (folder / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    return folder


def _marks(lines: Sequence[str], rows: Sequence[Sequence[str]], end: str) -> list[Mark]:
    """The lines of a page: text, then rows of three columns, then text."""
    marks, height = list[Mark](), _TOP
    for parts in [*([line] for line in lines), *rows, [end]]:
        for left, text in zip((_LEFT, _MIDDLE, _RIGHT), parts, strict=False):
            if text:
                marks.append((left, height, 11, text))
        height -= _STEP
    return marks


def _write_word(path: Path) -> None:
    import docx

    document = docx.Document()
    document.add_heading("Invoice MO-24-04", 0)
    for line in ("Mira Olsen Translations", "Date: 30 May 2024", "Customer: Saltmarsh Museum"):
        document.add_paragraph(line)
    table = document.add_table(rows=0, cols=2)
    for label, value in (
        ("Item", "Amount"), ("Exhibition labels", "£640.00"), ("Subtotal", "£640.00"), ("VAT", "£128.00"),
        ("Total", "£768.00"),
    ):  # fmt: skip
        cells = table.add_row().cells
        cells[0].text, cells[1].text = label, value
    document.add_paragraph("Status: paid on 12 June 2024")
    document.save(str(path))
