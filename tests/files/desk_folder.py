"""200 ordinary files, each format made by another library than the one that reads it where there is one."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import docx
import openpyxl
import pypdf
import tomlkit
import yaml
from PIL import Image

from tests.documents import desk_files
from tests.documents.outlook_file import outlook_message
from tests.documents.test_office_details import make_form
from tests.files.pdf_pages import pdf_of
from tests.files.test_saved_pages import PAGE

NUM_FILES = 200
FILES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Fact:
    """One file with a question that only it answers."""

    name: str
    content: bytes
    question: str
    answer: str
    """Words of the quote that answers."""
    place: str = ""
    """Part of the place that the citation names."""


@dataclass(frozen=True, slots=True)
class Unread:
    """One file that is not read, with words of the reason."""

    name: str
    content: bytes
    reason: str


def facts() -> list[Fact]:
    """One file of each format that is read."""
    return [*_texts(), *_markups(), *_data(), *_office(), *_mail_and_dates(), *_pdfs()]


def _texts() -> Iterator[Fact]:
    yield Fact("notes/kayak.md", b"# Kayak\n\nThe green kayak is stored in the boathouse at Skern.\n",
               "Where is the green kayak stored?", "boathouse at Skern", "line 3$")  # fmt: skip
    yield Fact("notes/bakery", b"The bakery on Tanner Street opens at half past five.\n",
               "When does the bakery on Tanner Street open?", "half past five", "line 1$")  # fmt: skip
    yield Fact("notes/garage.txt", "Die Größe zählt.\n\nThe garage key hangs behind the fuse box.\n".encode("utf-16"),
               "Where does the garage key hang?", "behind the fuse box", "line 3$")  # fmt: skip
    log = "2026-03-04 10:12 pump: pressure valve replaced by Jörg Müller, größer als früher\n"
    yield Fact("notes/old.log", log.encode("cp1252"),
               "Who replaced the pressure valve of the pump?", "Jörg Müller", "line 1$")  # fmt: skip
    yield Fact("code/turbine.py", b'"""Control of the turbine."""\n\n\ndef start():\n    return 1\n\n\n'
               b"MAX_TURBINE_SPEED = 1450  # revolutions per minute\n",
               "What is the maximum turbine speed?", "1450", "line 8$")  # fmt: skip


def _markups() -> Iterator[Fact]:
    yield Fact(
        "web/ferry.html", PAGE.encode(), "When was the old ferry at Ribe taken out of service?", "autumn of 1987"
    )
    yield Fact("web/times.mhtml", desk_files.mhtml(), "When does the last ferry leave?", "21:40")
    yield Fact("docs/weir.rst", b"Weir\n====\n\nThe weir was rebuilt by Hanna Brandt in 1998.\n",
               "Who rebuilt the weir?", "Hanna Brandt", "line 4$")  # fmt: skip
    yield Fact(
        "docs/workshop.org", desk_files.ORG.encode(), "Where does the workshop take place?", "room 202", "line 7"
    )
    yield Fact("docs/eddies.tex", desk_files.LATEX.encode(), "What speed did the flow reach?", "1.24", "line")
    yield Fact("docs/manual.adoc", b"= Stove\n\n== Lighting\n\nThe stove is lit with *two* birch logs.\n",
               "What is the stove lit with?", "two birch logs", "line 5$")  # fmt: skip
    yield Fact("docs/choir.textile", b"h1. Choir\n\nThe choir robes are washed by *Signe Holt*.\n",
               "Who washes the choir robes?", "Signe Holt", "line 3$")  # fmt: skip
    yield Fact("docs/mills.bib", desk_files.BIB.encode(), "Who wrote The Mills of Ribe?", "Lund", "line")
    yield Fact("docs/boat.srt", desk_files.SRT.encode(), "When does the boat leave?", "noon", "line")
    yield Fact("docs/whale.vtt", b"WEBVTT\n\n00:01.000 --> 00:04.000\nThe whale was seen near Skagen.\n",
               "Where was the whale seen?", "near Skagen", "line 4$")  # fmt: skip
    yield Fact("docs/plan.canvas", desk_files.CANVAS.encode(), "What colour should the fence be painted?", "green")
    yield Fact("books/train.epub", desk_files.epub(), "How many floors did the mill have?", "three floors", "The mill")
    yield Fact("docs/rain.ipynb", desk_files.ipynb(), "How much rain fell in November?", "212 mm", "cell")


def _data() -> Iterator[Fact]:
    yield Fact("data/club.json", json.dumps({"members": [{"name": "Runa Dahl", "locker": 417}] * 1}, indent=1).encode(),
               "Which locker has Runa Dahl?", "417", "line")  # fmt: skip
    server = {"database": {"port": 6543, "name": "harvest"}, "cache": {"port": 6380}}
    yield Fact("data/server.yaml", yaml.safe_dump(server).encode(), "What is the database port?", "6543", "line 5$")
    yield Fact("data/pump.toml", tomlkit.dumps({"pump": {"pause_minutes": 25}}).encode(),
               "How many minutes does the pump pause?", "25", "line 2$")  # fmt: skip
    yield Fact("data/radio.ini", b"[radio]\nvolume = 4\nfrequency = 98.3\n",
               "What is the frequency of the radio?", "98.3", "line 3$")  # fmt: skip
    yield Fact("data/stock.xml", b"<stock>\n <item><sku>QX-77</sku><shelf>north wall</shelf></item>\n"
               b" <item><sku>QX-78</sku><shelf>cellar</shelf></item>\n</stock>\n",
               "On which shelf is item QX-77?", "north wall", "line 2$")  # fmt: skip
    yield Fact("data/events.jsonl", b'{"sensor": "attic", "degrees": 18}\n{"sensor": "greenhouse", "degrees": 31}\n',
               "How many degrees are at the greenhouse sensor?", "31", "line 2$")  # fmt: skip
    yield Fact("data/dogs.csv", "Dog;Chip;Owner\nBalder;9812;Ida\nFreya;9944;Tom\n".encode("cp1252"),
               "What is the chip number of Freya?", "9944", "line 3$")  # fmt: skip


def _office() -> Iterator[Fact]:
    letter = docx.Document()
    letter.add_paragraph("The chimney sweep comes on the last Friday of October.")
    out = io.BytesIO()
    letter.save(out)
    yield Fact("office/sweep.docx", out.getvalue(), "When does the chimney sweep come?", "last Friday of October")
    yield Fact(
        "office/results.pptx", desk_files.pptx(), "What was the revenue in quarter two?", "4.2 million", "slide 1"
    )
    yield Fact("office/trip.xlsx", desk_files.xlsx(), "What is the price of the tent?", "249.5", "Budget, row")
    yield Fact("office/harvest.ods", desk_files.ods(), "How many kilos of plums were harvested?", "95", "Harvest, row")
    yield Fact("office/rules.odt", desk_files.odt(), "When is the attic locked?", "locked at nine")
    yield Fact("office/choir.odp", desk_files.odp(), "On which day does the choir meet?", "Thursdays", "slide 1")
    yield Fact("office/lease.rtf", desk_files.RTF.encode(), "How much is the deposit of the lease?", "two rents")
    yield Fact("office/birds.xls", (FILES / "birds.xls").read_bytes(), "What is the ring of the heron?", "H-208",
               "Birds, row")  # fmt: skip
    workbook = openpyxl.Workbook()
    for year, premium in (("2024", 310), ("2025", 345)):
        sheet = workbook.active if year == "2024" else workbook.create_sheet()
        sheet.title = f"Insurance {year}"
        sheet.append(("Policy", "Company", "Premium"))
        sheet.append(("Household", "Nordlys", premium))
    out = io.BytesIO()
    workbook.save(out)
    yield Fact("office/insurance.xlsx", out.getvalue(), "What is the household premium in Insurance 2025?", "345",
               "Insurance 2025, row")  # fmt: skip


def _mail_and_dates() -> Iterator[Fact]:
    yield Fact(
        "mail/tent.eml", desk_files.eml(), "How many people does the tent sleep?", "six", "Ana Novak, 3 May 2025"
    )
    yield Fact("mail/booking.eml", desk_files.html_mail(), "What is the booking number?", "KX-4471", "Ana Novak")
    yield Fact("mail/inbox.mbox", desk_files.mbox(), "How much did Ben Ortega pay for the boiler?", "128 crowns",
               "Ben Ortega, 4 May 2025")  # fmt: skip
    chimney = outlook_message("Chimney", "The chimney was inspected by Oda Winter.\n", sender=("Oda Winter", "o@x.org"),
                              to=("Per Vang", "p@x.org"), sent=datetime(2025, 5, 6, 9, tzinfo=UTC))  # fmt: skip
    yield Fact("mail/chimney.msg", chimney, "Who inspected the chimney?", "Oda Winter", "Oda Winter, 6 May 2025")
    yield Fact("mail/Archive/new/1746700000.M1P2.desk", bytes(desk_files.message(
                   "Ladder", "The long ladder was lent to Gunnar Friis.\n", day=9)),
               "To whom was the long ladder lent?", "Gunnar Friis", "Ana Novak")  # fmt: skip
    yield Fact("dates/home.ics", desk_files.ICS.encode(), "When is the dentist appointment?", "4 June 2026", "entr")
    yield Fact("dates/people.vcf", desk_files.VCF.encode(), "Where does Ida Lund live?", "Canal Road 7", "entr")


def _pdfs() -> Iterator[Fact]:
    yield Fact("pdf/well.pdf", pdf_of([(60, 780, 12, "Letter")], [(60, 780, 12, "The well is eleven metres deep.")]),
               "How deep is the well?", "eleven metres", "p")  # fmt: skip
    left = ("The orchard was planted by Aksel Rehn in", "the spring of 1931, when he came back from", "the sea.",
            "It holds forty trees today.")  # fmt: skip
    right = ("The barn beside it was struck by lightning", "in August 1954 and built anew in the year", "after.",
             "Nobody was hurt that night.")  # fmt: skip
    marks = [(x, 740.0 - 14 * row, 11.0, text) for row, both in enumerate(zip(left, right, strict=True))
             for x, text in zip((60.0, 320.0), both, strict=True)]  # fmt: skip
    yield Fact("pdf/orchard.pdf", pdf_of(marks), "Who planted the orchard?", "Aksel Rehn", "p. 1")
    yield Fact("pdf/gate.pdf", (FILES / "aes256.pdf").read_bytes(), "Which code opens the harbour gate?", "5926",
               "p. 1")  # fmt: skip
    yield Fact("pdf/tenancy.pdf", make_form(), "What should be asked about the deposit?", "1,700 crowns", "p. 1")
    writer = pypdf.PdfWriter(io.BytesIO(pdf_of([(60, 780, 12, "The safe code of the club house is 7731.")])))
    writer.encrypt("", "owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    yield Fact("pdf/safe.pdf", out.getvalue(), "What is the safe code of the club house?", "7731", "p. 1")


def unread() -> list[Unread]:
    """Files that are not read, each for a reason of its own."""
    picture = io.BytesIO()
    Image.new("RGB", (60, 40), "white").save(picture, "PNG")
    scan = io.BytesIO()
    Image.new("RGB", (600, 800), "white").save(scan, "PDF")
    locked = io.BytesIO()
    writer = pypdf.PdfWriter(io.BytesIO(pdf_of([(60, 780, 12, "Nobody may read this.")])))
    writer.encrypt("secret", "owner", algorithm="RC4-128")
    writer.write(locked)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("inside.txt", "packed away")
    return [
        Unread("photos/beach.png", picture.getvalue(), "images"),
        Unread("pdf/scanned-letter.pdf", scan.getvalue(), "no text layer"),
        Unread("pdf/locked.pdf", locked.getvalue(), "password"),
        Unread("archive/backup.zip", archive.getvalue(), "archives"),
        Unread("office/minutes.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "old Office"),
        Unread("music/song.mp3", b"ID3" + bytes(500), "audio"),
        Unread("office/broken.xlsx", b"PK\x03\x04" + bytes(200), "ZIP archive|spreadsheet|damaged"),
        Unread("notes/empty.txt", b"", "empty"),
    ]


def build(root: Path) -> None:
    """Write the folder: the facts, the files that are not read, and ordinary files up to 200."""
    for file in (*facts(), *unread()):
        path = root / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    written = sum(path.is_file() for path in root.rglob("*"))
    for number in range(NUM_FILES - written):
        _write_filler(root / "more", number)


def _write_filler(folder: Path, number: int) -> None:
    """Write a file about an allotment plot, in one of five formats."""
    folder.mkdir(exist_ok=True)
    row = {"plot": number + 100, "tenant": f"Tenant {number}", "fee": 40 + number % 7}
    text = f"Plot {row['plot']} is rented by {row['tenant']} for {row['fee']} crowns a year.\n"
    name, content = (
        (f"plot-{number}.md", f"# Plot {row['plot']}\n\n{text}"),
        (f"plot-{number}.txt", text),
        (f"plot-{number}.json", json.dumps(row)),
        (f"plot-{number}.csv", "plot,tenant,fee\n" + ",".join(map(str, row.values())) + "\n"),
        (f"plot-{number}.html", f"<html><body><p>{text}</p></body></html>"),
    )[number % 5]
    (folder / name).write_text(content)
