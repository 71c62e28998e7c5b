"""A small desk of invoices, leases, minutes, mails and sheets, written file by file for questions about all of it."""

import csv
import os
import zipfile
from email.message import EmailMessage
from pathlib import Path

_OLD = 1_735_000_000.0  # when most files were last written: December 2024

_TEXTS = {
    # Kessler Heating: five invoices
    "invoices/2021/Kessler Heating 2021.md": """# Kessler Heating

Invoice number: KH-2021-007
Invoice date: 12 March 2021
Bill to: Anna Petersen

| item | amount |
|---|---:|
| Yearly service of the burner | 480.00 |
| New thermostat | 140.00 |

Net amount: 620.00 euros
VAT 19 %: 117.80 euros
Total: 737.80 euros

Status: paid
Please pay to DE12 5001 0517 0648 4898 90.
""",
    "invoices/2023/Kessler Heating 2023.txt": """Kessler Heating
Invoice number KH-2023-023
Invoice date: 2023-05-13
Bill to: Anna Petersen

Replacement of the boiler in Birch Street 14.

Invoice total: 2,890.00 euros
Payable within 14 days to DE12 5001 0517 0648 4898 90.
Paid on 2023-06-01.
""",
    # Bright Paper: four invoices
    "invoices/2021/Bright Paper 2021.txt": """Bright Paper
Invoice number BP-2021-004
Invoice date: 2021-02-01
Bill to: Anna Petersen

Invoice total: 88.40 euros
Payable within 14 days to DE75 5121 0800 1245 1261 99.
""",
    "invoices/2022/Bright Paper 2022.md": """# Bright Paper

Invoice number: BP-2022-017
Date: 19 April 2022
Bill to: Anna Petersen

| | EUR |
|---|---:|
| Subtotal | 100.00 |
| VAT | 19.00 |
| Total | 119.00 |

Payable within 14 days to DE75 5121 0800 1245 1261 99.
""",
    # Nordfracht Logistics: four invoices, the first without an amount
    "invoices/2021/Nordfracht Logistics 2021.txt": """Nordfracht Logistics
Invoice number NF-2021-003
Invoice date: 2021-08-09
Bill to: Anna Petersen

Transport of a wardrobe, amount as agreed by telephone.
Payable within 30 days to DE44 2004 0000 0261 0077 12.
""",
    "invoices/2022/Nordfracht Logistics 2022.md": """# Nordfracht Logistics

Invoice number: NF-2022-011
Invoice date: 30 October 2022
Bill to: Anna Petersen

Transport of a boiler from the yard of Kessler Heating to Birch Street 14.

Invoice total: 1,240.00 euros
Payable within 30 days to DE44 2004 0000 0261 0077 12.
""",
    "invoices/2024/Nordfracht Logistics 2024.txt": """Nordfracht Logistics
Invoice number NF-2024-033
Invoice date: 2024-12-29
Bill to: Anna Petersen

Amount due: EUR 1,702.00
Payable until 2025-01-28 to DE44 2004 0000 0261 0077 12.
Status: unpaid
""",
    "letters/complaint to Kessler Heating.txt": """Anna Petersen
Birch Street 14

To Kessler Heating
3 June 2023

Dear Mr Brandt,

your invoice KH-2023-023 of 13 May 2023 charges 2,890.00 euros, but the offer was 2,700.00 euros.
Please explain the difference of 190.00 euros.

Kind regards
Anna Petersen
""",
    "letters/letter to Margaret Hollis.txt": """Anna Petersen
10 January 2024

Dear Ms Hollis,

the cellar of Birch Street 14 is damp. Please have it looked at before the spring.

Anna Petersen
""",
    "flats/lease Harbour Lane 3.md": """# Lease: Harbour Lane 3

Landlord: Gregor Holm
Tenant: Anna Petersen
Monthly rent: 1,480 euros
Deposit: 4,440 euros
Begin: 1 September 2024
End: 31 August 2029

The notice period is six weeks to the end of a quarter.
Cellar compartment number 12 belongs to the flat.
Dogs and cats are allowed.
""",
    "flats/lease Birch Street 14.md": """# Lease: Birch Street 14

Landlord: Margaret Hollis
Tenant: Anna Petersen
Monthly rent: 1,150 euros
Deposit: 2,300 euros
Begin: 1 March 2022
End: 28 February 2027

The notice period is three months for the tenant.
Pets are not allowed.
The garden may be used together with the neighbours.
""",
    "flats/handover Harbour Lane 3.txt": """Handover of Harbour Lane 3
Date: 30 August 2024
Electricity meter: 4,881 kWh
Three keys were handed over by Gregor Holm.
""",
    "minutes/minutes 2023-11-07.md": """# Owners' meeting, 7 November 2023

Chair: Lars Lindqvist
Minutes: Otto Brandt
Present: 11 owners

The owners want a second offer for the roof.
The stairwell is to be painted in white.
""",
    "minutes/minutes 2024-02-06.md": """# Owners' meeting, 6 February 2024

Chair: Lars Lindqvist
Minutes: Lara Lindquist
Present: 8 owners

Dachbau Wimmer offers to repair the roof for 18,400 euros.
Otto Brandt will lend the projector to the garden club.
""",
    "minutes/minutes 2024-05-14.md": """# Owners' meeting, 14 May 2024

Chair: Peter Annesen
Minutes: Lara Lindquist
Present: 9 owners

The repair of the roof is put off to August.
Lara Lindquist was against painting the fence green.
""",
    "minutes/minutes 2024-09-10.md": """# Owners' meeting, 10 September 2024

Chair: Lars Lindqvist
Minutes: Otto Brandt
Present: 12 owners

The house has 24 flats, and each pays 40 euros more a month from January.
""",
    "notes/car.md": """# Car

Plate: HH-AP 2417
Next inspection: September 2025
Insured by Peterson and Sons since 2020.
""",
    "notes/todo.txt": """Call Lara Lindquist about the keys.
Give the ladder back to the Petersen family next door.
""",
    "notes/2024-03-18 diary.md": """# 18 March 2024

Walked to the ferry with Lara. The new bridge is open.
I want to learn how to repair a bicycle wheel.
""",
    "notes/shelves.md": """# Shelves in the cellar

Shelf 1: paint, brushes and rollers
Shelf 2: ladder and rope
Shelf 12: projector and slides
""",
    "settings/router.yaml": """lan:
  address: 192.168.40.1
wifi:
  ssid: Petersen-Home
  guest: Petersen-Guest
""",
    "code/backup.py": '''"""Copy the photos to the outer drive."""

RETRIES = 4


def copy_photos(source, target):
    """Copy every photo, and try again up to RETRIES times."""
''',
}

_SHEETS = {
    "invoices/2022/Kessler Heating 2022.xlsx": [
        ["Kessler Heating", None],
        ["Invoice number", "KH-2022-015"],
        ["Invoice date", "2022-09-05"],
        ["Bill to", "Anna Petersen"],
        ["Item", "Amount EUR"],
        ["Burner service", 310.00],
        ["Gasket set", 42.00],
        ["Subtotal", 352.00],
        ["VAT 19 %", 66.88],
        ["Total", 418.88],
        ["Status", "paid"],
    ],
    "invoices/2024/Bright Paper 2024.xlsx": [
        ["Bright Paper", None],
        ["Invoice number", "BP-2024-029"],
        ["Invoice date", "2024-06-14"],
        ["Bill to", "Anna Petersen"],
        ["Total EUR", 151.00],
        ["Status", "open"],
    ],
    "tables/household costs.xlsx": [
        ["Month", "Heating", "Electricity", "Internet"],
        ["January 2024", 190, 92, 40],
        ["February 2024", 172, 88, 40],
        ["March 2024", 157, 79, 40],
    ],
}

_TABLES = {
    "invoices/2023/Nordfracht Logistics 2023.csv": [
        ["field", "value"],
        ["Supplier", "Nordfracht Logistics"],
        ["Invoice number", "NF-2023-019"],
        ["Invoice date", "2023-07-07"],
        ["Total", "1,315.00 EUR"],
        ["IBAN", "DE44 2004 0000 0261 0077 12"],
    ],
    "invoices/2024/Kessler Heating 2024.csv": [
        ["Invoice KH-2024-029", "Kessler Heating", "2024-06-14"],
        ["item", "", "amount EUR"],
        ["Repair of the pump", "", "240.00"],
        ["Travel", "", "95.00"],
        ["VAT", "", "63.65"],
        ["Total", "", "398.65"],
    ],
    "tables/books.csv": [
        ["title", "author", "lent to"],
        ["Piranesi", "Susanna Clarke", "Lara Lindquist"],
        ["Middlemarch", "George Eliot", ""],
        ["Emma", "Jane Austen", "Otto Brandt"],
        ["Stoner", "John Williams", ""],
        ["Utz", "Bruce Chatwin", ""],
    ],
    "tables/payments 2024.csv": [
        ["date", "payee", "invoice", "amount EUR"],
        ["2024-01-10", "Kessler Heating", "KH-2023-041", "385.50"],
        ["2024-03-04", "Harbour Water", "W-889", "61.20"],
        ["2024-06-28", "Kessler Heating", "KH-2024-029", "398.65"],
    ],
}

_ANA = "Ana Torres <ana@torres.example>"
_TOM = "Tom Brandt <tom@kessler.example>"
_ANNA = "Anna Petersen <anna@petersen.example>"
# path, sender, recipient, date, subject, body
_MAILS = [
    (
        "invoices/2023/Kessler Heating November 2023.eml",
        "Kessler Heating <office@kessler.example>",
        _ANNA,
        "Mon, 20 Nov 2023 09:00:00 +0100",
        "Invoice KH-2023-041",
        "Invoice number: KH-2023-041\nInvoice date: 20 November 2023\nRepair of the circulation pump\n\n"
        "Total due: 385.50 euros\nPlease pay to DE12 5001 0517 0648 4898 90.\n",
    ),
    (
        "invoices/2023/Bright Paper 2023.eml",
        "Bright Paper <billing@brightpaper.example>",
        _ANNA,
        "Sat, 13 May 2023 10:00:00 +0200",
        "Your invoice BP-2023-023",
        "Invoice number BP-2023-023\nInvoice date: 2023-05-13\n\nInvoice total: 134.00 euros\n"
        "Payable within 14 days to DE75 5121 0800 1245 1261 99.\n",
    ),
    (
        "mail/boiler.eml",
        _TOM,
        _ANNA,
        "Tue, 09 May 2023 08:30:00 +0200",
        "The boiler",
        "Dear Ms Petersen,\n\nthe boiler arrives on Thursday. I will fit it myself.\n\nTom Brandt, Kessler Heating\n",
    ),
    (
        "mail/reminder.eml",
        _TOM,
        _ANNA,
        "Mon, 15 Jan 2024 08:30:00 +0100",
        "Reminder",
        "Dear Ms Petersen,\n\nthe invoice KH-2023-041 over 385.50 euros is still open. "
        "Please pay it this week.\n\nTom Brandt\n",
    ),
    (
        "mail/keys.eml",
        _ANA,
        _ANNA,
        "Thu, 02 May 2024 18:00:00 +0200",
        "Keys",
        "Hello Anna,\n\nI left the keys of Harbour Lane 3 with Lara Lindquist.\n\nAna\n",
    ),
    (
        "mail/roof.eml",
        _ANA,
        _ANNA,
        "Mon, 13 May 2024 18:00:00 +0200",
        "Roof",
        "Hello Anna,\n\nDachbau Wimmer now wants 19,150 euros instead of 18,400 euros for the roof.\n\nAna\n",
    ),
    (
        "mail/party.eml",
        _ANA,
        _ANNA,
        "Thu, 23 May 2024 18:00:00 +0200",
        "Summer party",
        "Hello Anna,\n\nthe summer party is on 22 June. Will you bring a cake?\n\nAna\n",
    ),
    (
        "mail/ferry.eml",
        _ANA,
        _ANNA,
        "Fri, 05 Jul 2024 18:00:00 +0200",
        "Ferry",
        "Hello Anna,\n\nthe ferry leaves 30 minutes before high water.\n\nAna\n",
    ),
]
NOT_READ = ("photos/old tax 2019.zip", "photos/passport scan.png", "settings/.env")
CHANGED_NOW = ("notes/todo.txt", "notes/shelves.md")


def write_desk(folder: Path) -> Path:
    """Write the whole desk into a folder, and return the folder."""
    from openpyxl import Workbook

    for name, text in _TEXTS.items():
        _parent(folder / name).write_text(text)
    for name, rows in _TABLES.items():
        with _parent(folder / name).open("w", newline="") as stream:
            csv.writer(stream).writerows(rows)
    for name, rows in _SHEETS.items():
        book = Workbook()
        for row in rows:
            book.active.append(row)
        book.save(_parent(folder / name))
    for name, sender, recipient, date, subject, body in _MAILS:
        message = EmailMessage()
        message["From"], message["To"], message["Date"], message["Subject"] = sender, recipient, date, subject
        message.set_content(body)
        _parent(folder / name).write_bytes(message.as_bytes())
    with zipfile.ZipFile(_parent(folder / NOT_READ[0]), "w") as archive:
        archive.writestr("tax.txt", "Tax refund 2019: 212 euros")
    _parent(folder / NOT_READ[1]).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    _parent(folder / NOT_READ[2]).write_text("API_KEY=abc\n")
    for path in folder.rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in CHANGED_NOW:
            os.utime(path, (_OLD, _OLD))
    return folder


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
