"""Ordinary files as other programs write them: what was read wrongly or lost once."""

from __future__ import annotations

import email.policy
import io
import itertools
import json
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import docx
import openpyxl
import pptx
import pytest
from docx.oxml import OxmlElement

from desk_rag.config import IndexSettings
from desk_rag.documents.document import Document, parse
from desk_rag.documents.formats import place_units
from desk_rag.documents.location import Location

Read = Callable[[str, "str | bytes"], Document]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Parse content under a name."""

    def parse_content(name: str, content: str | bytes) -> Document:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return parse(path, IndexSettings(parser_seconds=20))

    return parse_content


def texts(document: Document) -> list[str]:
    return [block.text for block in document.blocks]


def mail_with(*, plain: str = "", html: str = "", **headers: str) -> EmailMessage:
    message = EmailMessage(policy=email.policy.SMTP)
    message["From"], message["Date"] = "Shop <shop@example.org>", "Fri, 6 Mar 2026 07:00:00 +0000"
    for name, value in headers.items():
        message[name] = value
    if plain:
        message.set_content(plain)
    if html and plain:
        message.add_alternative(html, subtype="html")
    elif html:
        message.set_content(html, subtype="html")
    return message


# Mail


def test_a_plain_part_that_only_stands_in_for_html_is_not_the_message(read: Read) -> None:
    order = "<table><tr><td>Tracking number</td><td>JJD0099887766</td></tr></table>"
    notice = mail_with(plain="This message is in HTML. Use a program that can show HTML.", html=order)
    assert "Tracking number: JJD0099887766" in texts(read("order.eml", bytes(notice)))
    real = mail_with(plain="The tracking number is JJD0099887766.", html="<p>Something else</p>")
    assert "The tracking number is JJD0099887766." in texts(read("real.eml", bytes(real)))


def test_the_event_of_an_invitation_is_read(read: Read) -> None:
    message = mail_with(plain="You are invited to the rehearsal.", Subject="Invitation")
    message.add_alternative(
        "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTART;TZID=Europe/Berlin:20260321T190000\r\n"
        "DTEND;TZID=Europe/Berlin:20260321T210000\r\nSUMMARY:Rehearsal\r\nLOCATION:Parish hall\r\nEND:VEVENT\r\n"
        "END:VCALENDAR\r\n",
        subtype="calendar",
    )
    document = read("invitation.eml", bytes(message))
    assert "You are invited to the rehearsal." in texts(document)
    assert "Rehearsal: 21 March 2026 19:00 to 21:00; Place: Parish hall; Time zone: Europe/Berlin" in texts(document)


def test_attached_text_is_read_and_other_attachments_are_counted(read: Read) -> None:
    message = mail_with(plain="See the attached minutes.", Subject="Minutes")
    message.add_attachment("The treasurer will be elected in June.\n", filename="minutes.txt")
    message.add_attachment(b"\x78\x9f\x3e\x22", maintype="application", subtype="ms-tnef", filename="winmail.dat")
    document = read("minutes.eml", bytes(message))
    assert texts(document)[-3:] == [
        "Attachments: minutes.txt, winmail.dat", "Attachment minutes.txt", "The treasurer will be elected in June.",
    ]  # fmt: skip
    assert document.note == "1 attachment is not read: damaged, locked or without text (1)"


def test_a_forwarded_message_is_no_unread_attachment(read: Read) -> None:
    inner = mail_with(plain="The roof quote is 4,120 euros.", Subject="Roof quote")
    message = mail_with(plain="See below.", Subject="Fwd: Roof quote")
    message.add_attachment(inner)
    document = read("forwarded.eml", bytes(message))
    assert document.note == ""
    assert texts(document)[2:] == [
        "See below.", "Forwarded message: Shop, 6 March 2026, Roof quote", "The roof quote is 4,120 euros.",
    ]  # fmt: skip


def test_a_picture_in_the_text_of_a_mail_is_no_attachment(read: Read) -> None:
    message = mail_with(html="<p>The technician comes at 8.</p><img src='cid:logo'>", Subject="Boiler")
    message.add_related(b"\x89PNG", maintype="image", subtype="png", cid="<logo>", filename="logo.png")
    document = read("boiler.eml", bytes(message))
    assert document.note == "" and not any("logo.png" in text for text in texts(document))


def test_a_sender_whose_address_is_encoded_with_the_name_is_named(read: Read) -> None:
    encoded = "=?utf-8?q?=22Bergstr=C3=B6m=2C_Karin=22_=3Ckarin=40nordtherm=2Eexample=3E?="
    document = read("karin.eml", f"From: {encoded}\nSubject: Service\n\nWe come on Thursday.\n")
    assert texts(document)[0] == "Bergström, Karin: Service"


# Calendars and contacts


def test_an_event_says_its_length_its_zone_and_the_days_it_leaves_out(read: Read) -> None:
    series = (
        "BEGIN:VEVENT\nUID:w\nSUMMARY:Review\nDTSTART;TZID=America/New_York:20260401T100000\nDURATION:PT45M\n"
        "RRULE:FREQ=WEEKLY;BYDAY=WE;COUNT=6\nEXDATE;TZID=America/New_York:20260415T100000\nEND:VEVENT\n"
    )
    moved = (
        "BEGIN:VEVENT\nUID:w\nSUMMARY:Review\nRECURRENCE-ID;TZID=America/New_York:20260422T100000\n"
        "DTSTART;TZID=America/New_York:20260423T153000\nEND:VEVENT\n"
    )
    document = read("team.ics", f"BEGIN:VCALENDAR\n{series}{moved}END:VCALENDAR\n")
    assert texts(document)[1::2] == [
        "Review: 1 April 2026 10:00 to 10:45; "
        "How often: every week on Wednesday, 6 times; Repeats: freq=weekly, count=6, byday=we; "
        "Not on: 15 April 2026 10:00; Time zone: America/New_York",
        "Review: 23 April 2026 15:30; Instead of: 22 April 2026 10:00; Time zone: America/New_York",
    ]


@pytest.mark.parametrize(
    ("written", "shown"),
    [("19700412", "12 April 1970"), ("1970-04-12", "12 April 1970"), ("--0412", "12 April"), ("in May", "in May")],
)
def test_a_birthday_is_a_day(read: Read, written: str, shown: str) -> None:
    card = f"BEGIN:VCARD\nVERSION:3.0\nFN:Hans\nN:;Hans;;;\nBDAY:{written}\nORG:Clinic;Cardiology\nEND:VCARD\n"
    assert {f"Hans, Birthday: {shown}", "Hans, Organisation: Clinic, Cardiology"} <= set(texts(read("h.vcf", card)))


# Office files


def test_text_that_a_tracked_change_deleted_in_rtf_is_not_read(read: Read) -> None:
    """As LibreOffice and Word write it: a group with the mark, and braces, pictures and escapes beside it."""
    rtf = (
        r"{\rtf1\ansi{\fonttbl{\f0 Liberation;}}\pard The rent is "
        r"{\deleted\revauthdel1\revdttmdel-2015295488 \loch 900}"
        r"{\revised\revauth1\loch 950} euros \{net\}. {\deleted0 The} {\*\bkmkstart x}garage is free.\par}"
    )
    assert texts(read("contract.rtf", rtf)) == ["The rent is 950 euros {net}. The garage is free."]


def test_rows_of_a_table_in_rtf_are_rows_where_each_cell_ends_its_paragraph(read: Read) -> None:
    cells = r"\trowd\cellx1\cellx2{{\pard\intbl %s\par}" "\n" r"\cell}{{\pard\intbl %s\par}" "\n" r"\cell}\row "
    rtf = r"{\rtf1\ansi " + cells % ("Flat", "Key") + cells % ("3b", "K-118") + r"\pard Done.\par}"
    assert texts(read("keys.rtf", rtf)) == ["Flat: Key", "3b: K-118", "Done."]


def test_a_marked_header_row_names_the_columns_of_a_word_table(read: Read) -> None:
    document = docx.Document()
    table = document.add_table(rows=3, cols=2)
    for row, cells in zip(table.rows, (("Year", "Sacks"), ("1899", "420"), ("1901", "515")), strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    table.rows[0]._tr.get_or_add_trPr().append(OxmlElement("w:tblHeader"))
    out = io.BytesIO()
    document.save(out)
    assert texts(read("mill.docx", out.getvalue())) == ["Year: 1899; Sacks: 420", "Year: 1901; Sacks: 515"]


def test_a_long_number_in_a_sheet_keeps_its_digits(read: Read) -> None:
    workbook = openpyxl.Workbook()
    for row in (("Card", 1234567890123456), ("Large", 4.5e17)):
        workbook.active.append(row)
    out = io.BytesIO()
    workbook.save(out)
    assert [text for text in texts(read("card.xlsx", out.getvalue())) if "Card" in text] == ["Card; 1234567890123456"]


def test_notes_of_opendocument_slides_are_named_and_page_numbers_left_out(read: Read) -> None:
    names = " ".join(
        f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{uri}:1.0"'
        for prefix, uri in (
            ("office", "office"),
            ("draw", "drawing"),
            ("text", "text"),
            ("presentation", "presentation"),
        )
    )
    content = (
        f'<office:document-content {names}><office:body><office:presentation><draw:page draw:name="Costs">'
        "<draw:frame><draw:text-box><text:p>The hull costs 14 million.</text:p></draw:text-box></draw:frame>"
        "<presentation:notes><draw:frame><draw:text-box><text:p>The mayor wants it electric.</text:p>"
        "</draw:text-box></draw:frame><draw:frame><draw:text-box><text:p><text:page-number>&lt;number&gt;"
        "</text:page-number></text:p></draw:text-box></draw:frame></presentation:notes></draw:page>"
        "</office:presentation></office:body></office:document-content>"
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.presentation")
        archive.writestr("content.xml", content)
    shown = ["Costs", "The hull costs 14 million.", "Notes: The mayor wants it electric."]
    assert texts(read("ferry.odp", out.getvalue())) == shown


# Pages, books, notebooks, subtitles, tables


def test_a_note_mark_is_not_part_of_the_word_before_it(read: Read) -> None:
    page = (
        '<p>A colony needs twelve kilos of honey<sup><a epub:type="noteref" href="#n1">1</a></sup> to survive, '
        'which is what <a href="/b">keepers</a> say.</p>'
        '<p>In the north twenty.<a role="doc-backlink" href="#r1">↩︎</a></p>'
    )
    assert texts(read("bees.html", page)) == [
        "A colony needs twelve kilos of honey [1] to survive, which is what keepers say.", "In the north twenty.",
    ]  # fmt: skip


def test_notes_of_a_page_that_libreoffice_wrote(read: Read) -> None:
    page = (
        '<p>The mill had three floors<a class="sdfootnoteanc" href="#s"><sup>1</sup></a> and burned.</p>'
        '<p><a class="sdfootnotesym" name="s" href="#a">1</a>A fourth was never built.</p>'
    )
    assert texts(read("mill.html", page)) == [
        "The mill had three floors [1] and burned.",
        "[1] A fourth was never built.",
    ]


def test_rows_of_one_cell_name_the_parts_of_a_table(read: Read) -> None:
    """As in the boxes of an encyclopaedia, and in sheets saved as pages."""
    box = "<tr><th colspan=2>Ribe</th></tr><tr><th>Country</th><td>Denmark</td></tr><tr><td colspan=2>Numbers</td></tr>"
    sheet = (
        "<tr><td colspan=3>Budget</td></tr><tr><td>Item</td><td>Due</td><td>Price</td></tr>"
        "<tr><td>Sweep</td><td>May</td><td>94</td></tr><tr><td colspan=3>Garden</td></tr>"
        "<tr><td>Hedge</td><td>June</td><td>40</td></tr>"
    )
    page = f"<table>{box}<tr><th>People</th><td>8,257</td></tr></table><table>{sheet}</table>"
    assert texts(read("ribe.html", page)) == [
        "Ribe", "Country: Denmark", "Numbers", "People: 8,257", "Budget", "Item: Sweep; Due: May; Price: 94", "Garden",
        "Item: Hedge; Due: June; Price: 40",
    ]  # fmt: skip


def test_a_cookie_banner_without_links_is_left_out(read: Read) -> None:
    sentence = "Turn the heap every three weeks and keep it as moist as a wrung sponge, says everybody who has one."
    article = f"<main><h1>Compost</h1><p>{sentence * 20}</p></main>"
    words = f"We use cookies to improve your experience. {'Accept or reject them. ' * 3}"
    banner = f'<div class="cookie-consent"><p>{words}</p></div>'
    assert not any("cookies" in text for text in texts(read("compost.html", banner + article)))
    recipe = f'<div class="cookie-recipes">{article}</div>'
    assert any("Turn the heap" in text for text in texts(read("recipe.html", recipe)))


def test_a_cut_output_of_a_notebook_is_said(read: Read) -> None:
    output = {"output_type": "stream", "name": "stdout", "text": [f"step {step}\n" for step in range(9000)]}
    cell = {"cell_type": "code", "metadata": {}, "source": "run()", "outputs": [output]}
    document = read("run.ipynb", json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    assert document.note == "of 1 long output only the beginning is read" and "step 12\n" in texts(document)[1]


def test_subtitles_name_the_speaker(read: Read) -> None:
    cue = "WEBVTT\n\n00:00.000 --> 00:03.000\n<v.loud Ada Stone>The pump was replaced.\n"
    assert texts(read("talk.vtt", cue)) == ["[00:00] Ada Stone: The pump was replaced."]


def test_lines_above_the_header_of_a_bank_statement_are_no_header(read: Read) -> None:
    statement = "Bank export\nAccount: 12 3456\n\nDate,Payee,Amount\n2026-03-01,Nordlys,-88.10\n2026-03-04,Wage,2450\n"
    document = read("bank.csv", statement)
    assert texts(document)[2:] == ["Date: 2026-03-01; Payee: Nordlys; Amount: -88.10",
                                   "Date: 2026-03-04; Payee: Wage; Amount: 2450"]  # fmt: skip
    assert document.blocks[2].line_start == 5


def test_footnotes_of_asciidoc_stand_in_brackets_over_line_ends_too(read: Read) -> None:
    text = "The mill had three floorsfootnote:[A fourth\nwas never built.] and burned.\n"
    shown = "\n".join(texts(read("mill.adoc", text)))
    assert shown == "The mill had three floors (A fourth\nwas never built.) and burned."


# LaTeX and BibTeX


def test_macros_that_a_latex_file_defines_are_written_out(read: Read) -> None:
    source = r"""\newcommand{\site}{Lake Mjelva}
\renewcommand\speed[1]{#1\,m/s}
\def\buoy#1{Buoy~#1}
\newcommand{\again}{\again\again}
\title{Currents in \site}
\begin{document}
The drift of \buoy{17} in \site{} was \speed{1.24}, see \citet[p.~4]{lund} and Figure~\ref{fig}.
It cost \SI{480}{\euro}.
\again \speedy
\end{document}
"""
    document = read("drift.tex", source)
    assert document.title == "Currents in Lake Mjelva"
    (text,) = texts(document)
    assert text.startswith("The drift of Buoy 17 in Lake Mjelva was 1.24 m/s, see [lund] and Figure.\nIt cost 480 €.")


def test_a_latex_macro_that_grows_without_end_takes_no_time(read: Read) -> None:
    names = "abcdefghijklmnopqrst"
    doubled = [rf"\newcommand{{\a{b}}}{{\a{a}\a{a}}}" for a, b in itertools.pairwise(names)]
    lines = [r"\newcommand{\aa}{ha}", *doubled, r"\begin{document}", r"\at \at", "The end.", r"\end{document}"]
    document = read("bomb.tex", "\n".join(lines))
    assert texts(document)[-1].endswith("The end.")
    assert sum(map(len, texts(document))) < 20_000


def test_tables_and_items_of_latex_on_one_line_or_several(read: Read) -> None:
    source = r"""\begin{document}
\begin{table}[ht]\centering
  \caption{Depths}
  \begin{tabularx}{\textwidth}{@{}l>{\raggedright}X@{}}
    \toprule
    Station & Depth \\
    \midrule
    North bay & 14.2 \\[2pt]
    Old pier
    & 3.1 \& more \\
    \bottomrule
  \end{tabularx}
\end{table}
\begin{itemize}\item The inlet froze. \item The logger broke.\end{itemize}
\begin{tabular}{ll}a & b \\ c & d\end{tabular} After.
\bibliographystyle{plain}
\end{document}
"""
    document = read("table.tex", source)
    assert [(block.line_start, block.text) for block in document.blocks] == [
        (3, "Depths"), (8, "Station: North bay; Depth: 14.2"), (9, "Station: Old pier; Depth: 3.1 & more"),
        (14, "- The inlet froze."), (14, "- The logger broke."), (15, "a: b"), (15, "c: d"), (15, "After."),
    ]  # fmt: skip


def test_accents_and_joined_strings_of_a_bibliography(read: Read) -> None:
    entry = (
        '@string{jo = "Journal of Currents"}\n'
        "@article{lund, author = {M{\\\"u}ller, J{\\\"o}rg and O'Neil, Se{\\'a}n}, title = {{Drift} of {B}uoys},\n"
        ' journal = jo # " (JOC)", year = 2024, note = "Said \\"{a}"}\n'
    )
    (text,) = texts(read("refs.bib", entry))
    assert "author: Müller, Jörg and O'Neil, Seán; title: Drift of Buoys; journal: Journal of Currents (JOC)" in text
    assert "year: 2024" in text


# Office


_OPENXML = "application/vnd.openxmlformats-officedocument."


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        ("docm", "application/vnd.ms-word.document.macroEnabled.main+xml"),
        ("dotx", f"{_OPENXML}wordprocessingml.template.main+xml"),
        ("dotm", "application/vnd.ms-word.template.macroEnabledTemplate.main+xml"),
        ("ppsx", f"{_OPENXML}presentationml.slideshow.main+xml"),
        ("ppsm", "application/vnd.ms-powerpoint.slideshow.macroEnabled.main+xml"),
        ("potx", f"{_OPENXML}presentationml.template.main+xml"),
        ("potm", "application/vnd.ms-powerpoint.template.macroEnabled.main+xml"),
    ],
)
def test_templates_slide_shows_and_files_with_macros_are_read(read: Read, ending: str, kind: str) -> None:
    if ending.startswith("do"):
        letter = docx.Document()
        letter.add_paragraph("The herons nest in April.")
        saved_as, place = f"{_OPENXML}wordprocessingml.document.main+xml", "paragraph 1"
    else:
        letter = pptx.Presentation()
        letter.slides.add_slide(letter.slide_layouts[5]).shapes.title.text = "The herons nest in April."
        saved_as, place = f"{_OPENXML}presentationml.presentation.main+xml", "slide 1"
    data, other = io.BytesIO(), io.BytesIO()
    letter.save(data)
    with zipfile.ZipFile(data) as archive, zipfile.ZipFile(other, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, archive.read(name).replace(saved_as.encode(), kind.encode()))
    document = read(f"letter.{ending}", other.getvalue())
    (block,) = (block for block in document.blocks if "herons" in block.text)
    location = Location("", block.page, block.page, block.line_start, block.line_end, place_units(f"letter.{ending}"))
    assert str(location) == place
