"""Files of every format that is read, made by another library than the one that reads it where there is one."""

from __future__ import annotations

import email.policy
import io
import json
import zipfile
from collections.abc import Callable
from email.message import EmailMessage

XHTML = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{0}</title></head><body><h1>{0}</h1><p>{1}</p></body></html>'


def message(subject: str, body: str, *, sender: str = "Ana Novak <ana@example.org>", day: int = 3) -> EmailMessage:
    """A plain-text mail of May 2025."""
    mail = EmailMessage(policy=email.policy.SMTP)
    mail["From"] = sender
    mail["To"] = "Ben Ortega <ben@example.org>"
    mail["Date"] = f"Sat, {day:02d} May 2025 09:30:00 +0200"
    mail["Subject"] = subject
    mail["Message-ID"] = f"<{day}@example.org>"
    mail.set_content(body)
    return mail


def eml() -> bytes:
    """A mail with HTML beside its text, an attachment and an encoded subject."""
    mail = message("Größe of the tent", "The tent sleeps six people.\n\n-- \nAna\n")
    mail.add_alternative("<p>The tent sleeps <b>six</b> people.</p>", subtype="html")
    mail.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="invoice-77.pdf")
    return bytes(mail)


def html_mail() -> bytes:
    """A mail whose only body is HTML."""
    mail = message("Booking", "x")
    mail.set_content(
        "<html><body><p>Your booking number is KX-4471.</p><script>x()</script></body></html>", subtype="html"
    )
    return bytes(mail)


def mbox() -> bytes:
    """Two messages, the second of which quotes the first."""
    first = message("Boiler", "The boiler was serviced on Monday.\nThe technician was late.\n")
    reply = message(
        "Re: Boiler",
        "Thank you, I paid 128 crowns.\n\nOn Sat, May 3, 2025 Ana Novak wrote:\n> The boiler was serviced on Monday.\n",
        sender="Ben Ortega <ben@example.org>",
        day=4,
    )
    parts = [
        b"From ana@example.org Sat May 03 09:30:00 2025\n" + bytes(mail).replace(b"\r\n", b"\n") + b"\n"
        for mail in (first, reply)
    ]
    return b"".join(parts)


def mhtml() -> bytes:
    """A web page saved by a browser."""
    archive = EmailMessage(policy=email.policy.SMTP)
    archive["From"] = "<Saved by Blink>"
    archive["Subject"] = "Ferry times"
    archive.make_related()
    page = EmailMessage(policy=email.policy.SMTP)
    page.set_content(
        "<html><body><h1>Ferry times</h1><p>The last ferry leaves at 21:40.</p></body></html>", subtype="html"
    )
    archive.attach(page)
    return bytes(archive)


def pptx() -> bytes:
    """Two slides, the second with a table and speaker notes."""
    from pptx import Presentation
    from pptx.util import Inches

    presentation = Presentation()
    first = presentation.slides.add_slide(presentation.slide_layouts[1])
    first.shapes.title.text = "Quarter results"
    first.placeholders[1].text = "Revenue grew to 4.2 million in quarter two."
    second = presentation.slides.add_slide(presentation.slide_layouts[5])
    second.shapes.title.text = "Staff"
    table = second.shapes.add_table(3, 3, Inches(1), Inches(2), Inches(6), Inches(1)).table
    for row, cells in enumerate([("Name", "Role", "Room"), ("Ida", "Editor", "12"), ("Tom", "Printer", "14")]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    second.notes_slide.notes_text_frame.text = "Mention the parking spaces."
    return _saved(presentation.save)


def xlsx() -> bytes:
    """A sheet with a header and one that begins further down."""
    import openpyxl

    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.title = "Budget"
    for row in [("Item", "Month", "Price"), ("Tent", "May", 249.5), ("Stove", "June", 80)]:
        sheet.append(row)
    other = workbook.create_sheet("Members")
    other["B5"], other["C5"], other["B6"], other["C6"] = "Name", "Phone", "Ida", "555-0142"
    return _saved(workbook.save)


def ods() -> bytes:
    """A sheet made by odfdo, read by calamine."""
    from odfdo import Document, Row, Table

    document = Document("spreadsheet")
    document.body.clear()
    table = Table("Harvest")
    for values in [("Fruit", "Year", "Kilos"), ("Apples", 2024, 310), ("Plums", 2024, 95)]:
        row = Row()
        row.set_values(list(values))
        table.append(row)
    document.body.append(table)
    return _saved(document.save)


def odt() -> bytes:
    """A text document with a heading, a list and a table."""
    from odfdo import Document, Header, List, Paragraph, Table

    document = Document("text")
    body = document.body
    body.clear()
    body.append(Header(1, "House rules"))
    body.append(Paragraph("The attic is locked at nine."))
    body.append(List(["Shoes off", "No candles"]))
    table = Table("Keys", width=2, height=2)
    table.set_values([["Shed", "behind the mirror"], ["Cellar", "on the hook"]])
    body.append(table)
    return _saved(document.save)


def odp() -> bytes:
    """A presentation of one slide."""
    from odfdo import Document, DrawPage, Frame

    document = Document("presentation")
    document.body.clear()
    page = DrawPage("page1", name="Welcome")
    page.append(Frame.text_frame("The choir meets on Thursdays.", size=("7cm", "5cm"), position=("1cm", "1cm")))
    document.body.append(page)
    return _saved(document.save)


def epub(
    chapters: tuple[tuple[str, str], ...] = (
        ("Arrival", "She came by the night train."),
        ("The mill", "The mill had three floors."),
    ),
) -> bytes:
    """A book whose chapters stand in another order in the archive than in its spine."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as book:
        book.writestr("mimetype", "application/epub+zip")
        book.writestr(
            "META-INF/container.xml",
            '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
        )
        items = "".join(
            f'<item id="c{n}" href="c%20{n}.xhtml" media-type="application/xhtml+xml"/>' for n in range(len(chapters))
        )
        spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
        book.writestr(
            "OEBPS/book.opf",
            '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
            f"<dc:title>The night train</dc:title></metadata>"
            f"<manifest>{items}</manifest><spine>{spine}</spine></package>",
        )
        for number, (title, text) in reversed(list(enumerate(chapters))):
            book.writestr(f"OEBPS/c {number}.xhtml", XHTML.format(title, text))
    return out.getvalue()


def ipynb() -> bytes:
    """A notebook with text, code and output."""
    cells = [
        {"cell_type": "markdown", "source": ["# Rainfall\n", "We look at the *wettest* month."]},
        {
            "cell_type": "code",
            "source": ["wettest = months.max()\n", "print(wettest)"],
            "outputs": [{"output_type": "stream", "text": ["November 212 mm\n"]}],
        },
    ]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


ICS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:1
DTSTART:20260604T100000
DTEND:20260604T104500
SUMMARY:Dentist
LOCATION:Mill Street 4
ATTENDEE;CN=Dr Weiss:mailto:weiss@example.org
RRULE:FREQ=YEARLY
END:VEVENT
BEGIN:VEVENT
UID:2
DTSTART;VALUE=DATE:20260701
SUMMARY:Holiday begins
END:VEVENT
END:VCALENDAR
"""
VCF = """BEGIN:VCARD
VERSION:3.0
FN:Ida Lund
TEL;TYPE=CELL:+45 5550 1234
EMAIL;TYPE=INTERNET:ida@example.org
ADR;TYPE=HOME:;;Canal Road 7;Ribe;;6760;Denmark
END:VCARD
BEGIN:VCARD
VERSION:3.0
FN:Tom Berg
NOTE:Plumber\\, knows the old pipes
END:VCARD
"""
RTF = r"""{\rtf1\ansi\deff0 {\fonttbl{\f0 Times;}}{\b Lease}\par The deposit is two rents.\par M\'fcller signs.}"""
ORG = """#+TITLE: Allotment
* NEXT Prepare the workshop :work:
  DEADLINE: <2026-06-15 Mon>
  :PROPERTIES:
  :EFFORT: 3h
  :END:
  The workshop takes place in [[file:rooms.org][room 202]].
** Costs
| Item | Month | Price |
|------+-------+-------|
| Food | June  | 250   |
#+begin_src sh
make all
#+end_src
"""
LATEX = r"""\documentclass{article}
\title{On eddies}
\begin{document}
\maketitle
\section{Results} % a comment
The flow reached $1.24$\,m/s on 3~March~2023,
which \emph{nobody} had expected.
\begin{itemize}
\item The weir was closed.
\end{itemize}
\end{document}
"""
SRT = "1\n00:00:01,000 --> 00:00:03,000\n<i>The boat leaves</i>\nat noon.\n\n2\n"
SRT += "00:00:04,000 --> 00:00:06,000\nBring bread.\n"
BIB = """@article{lund2021,
  title = {The {Mills} of Ribe},
  author = {Lund, Ida and Berg, Tom},
  year = 2021,
}
"""
CANVAS = json.dumps(
    {
        "nodes": [
            {"id": "b", "type": "text", "text": "Second card", "x": 0, "y": 300},
            {"id": "a", "type": "text", "text": "## Plan\nPaint the **fence** green.", "x": 0, "y": 0},
            {"id": "c", "type": "file", "file": "notes/fence.md", "x": 0, "y": 400},
        ],
        "edges": [],
    }
)


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    out = io.BytesIO()
    save(out)
    return out.getvalue()
