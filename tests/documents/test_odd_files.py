"""Odd, damaged and hostile files: what can be read of them is read, and the rest is said."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest

from desk_rag.config import IndexSettings
from desk_rag.documents.document import Document, parse
from desk_rag.documents.status import is_beginning_only
from desk_rag.errors import BrokenDocument, UnsupportedDocument
from tests.documents import desk_files
from tests.documents.test_formats import text_of

SETTINGS = IndexSettings(parser_seconds=60)
SMALL = IndexSettings(parser_seconds=60, max_text_mib=0.05)
Read = Callable[..., Document]
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Parse content under a name."""

    def parse_content(name: str, content: str | bytes, settings: IndexSettings = SETTINGS) -> Document:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return parse(path, settings)

    return parse_content


def rezipped(data: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The archive with each member changed; None leaves it out."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            if (content := change(name, source.read(name))) is not None:
                target.writestr(name, content)
    return out.getvalue()


def multipart(kind: str, boundary: str, *parts: str) -> str:
    inside = "".join(f"--{boundary}\n{part}\n" for part in parts)
    return f"Content-Type: multipart/{kind}; boundary={boundary}\n\n{inside}--{boundary}--\n"


# Terminal codes -----------------------------------------------------------------------------------------------------


def test_terminal_codes_are_taken_out_and_lines_keep_their_numbers(read: Read) -> None:
    text = "\x1b[2J\x1b[1;31mDoor code\x1b[0m 4711\n\n[2J\n[2J\n\nThe boiler is [32mwarm[0m.[K\n\n\x9b2JThe end.\n"
    document = read("screen.txt", text)
    assert [(block.text, block.line_start) for block in document.blocks] == [
        ("Door code 4711", 1), ("The boiler is warm.[K", 6), ("The end.", 8),
    ]  # fmt: skip


def test_brackets_that_are_no_terminal_codes_stay(read: Read) -> None:
    text = (
        "Watch [2K video] of arr[0] and [3D printing], see [12] or [2J].\n\nSend \\033[2J or ESC[2J or ^[[0m to clear."
    )
    assert text_of(read("notes.txt", text)) == text.replace("\n\n", "\n")


def test_code_keeps_codes_that_it_quotes(read: Read) -> None:
    assert 'CLEAR = CSI + "[2J"' in text_of(read("screen.py", 'CLEAR = CSI + "[2J"\n'))
    assert "red" in text_of(read("run.sh", "echo '\x1b[31mred\x1b[0m'\n"))
    assert "\x1b" not in text_of(read("run.sh", "echo '\x1b[31mred\x1b[0m'\n"))


def test_titles_and_headings_hold_no_terminal_codes(read: Read) -> None:
    document = read("guide.md", "# \x1b[1mGuide[0m\n\nText.\n")
    assert (document.title, document.blocks[-1].heading) == ("Guide", ("Guide",))


# Mail ---------------------------------------------------------------------------------------------------------------


def test_parts_of_a_nested_mail_are_read_in_order(read: Read) -> None:
    blank = "Content-Type: text/plain\n\n   "
    page = multipart("related", "r2", "Content-Type: text/html\n\n<p>Only in HTML.</p>")
    mail = "From: a@b.c\nSubject: N\nMIME-Version: 1.0\n" + multipart(
        "mixed", "m",
        multipart("alternative", "a1", "Content-Type: text/plain\n\nPlain.", "Content-Type: text/html\n\n<p>No.</p>"),
        multipart("alternative", "a2", blank, page),
        "Content-Type: text/plain\n\nFooter of the list.",
        "Content-Type: message/rfc822\n\nFrom: Zed <z@z.z>\nSubject: Keys\n\nThe keys are in the shed.",
        "Content-Type: message/rfc822\n\n",
        "Content-Type: text/plain; name=notes.txt\n\nattached",
    )  # fmt: skip
    assert [block.text for block in read("nested.eml", mail).blocks][2:] == [
        "Plain.", "Only in HTML.", "Footer of the list.", "Forwarded message: Zed, Keys", "The keys are in the shed.",
        "Attachments: notes.txt", "Attachment notes.txt", "attached",
    ]  # fmt: skip


def test_a_mail_without_charset_is_read_by_its_bytes(read: Read) -> None:
    mail = "From: Jörg <j@b.c>\nSubject: Tür\n\nMüller sagt, dass die Tür offen ist und nicht zu.\n"
    document = read("raw.eml", mail.encode("latin-1"))
    assert document.title == "Tür" and "Müller sagt" in text_of(document) and "Jörg" in text_of(document)


@pytest.mark.parametrize(
    ("mail", "words"),
    [
        (b"From: <<<a@b\nSubject: =?x-no?Q?=E9?=\nDate: x\nContent-Type: text/plain; charset=no\n\nCaf\xe9.", "Café."),
        (b"this is no header\n\nbody words\n", "body words"),
        (b"Subject: U\nContent-Type: multipart/mixed; boundary=zz\n\n--zz\n\ncut off he", "cut off he"),
        (b"Subject: U\nContent-Type: multipart/mixed\n\nno boundary at all\n", "no boundary at all"),
        (b"Subject: Q\n\nBob wrote:\n> all of it\n> is quoted\n", "is quoted"),
        (b"Subject: B\n\n" + bytes(range(256)) * 20, "Subject: B"),
    ],
)  # fmt: skip
def test_broken_mail_is_read_as_far_as_it_goes(read: Read, mail: bytes, words: str) -> None:
    assert words in text_of(read("broken.eml", mail))


def test_a_binary_message_does_not_cost_the_mailbox(read: Read) -> None:
    separator = b"From a@b.c Sat May 03 09:30:00 2025\n"
    mailbox = separator + b"Subject: X\n\n" + bytes(range(256)) * 20 + b"\n\n" + separator + b"Subject: Y\n\nHello.\n"
    assert "Hello." in text_of(read("inbox.mbox", mailbox))
    assert "Hello." in text_of(read("no-separator.mbox", "Subject: Y\n\nHello.\n"))


def test_long_headers_are_cut(read: Read) -> None:
    recipients = ", ".join(f"P {number} <p{number}@x.y>" for number in range(20_000))
    document = read("many.eml", f"From: a@b.c\nTo: {recipients}\nSubject: {'=?utf-8?Q?x?= ' * 20_000}\n\nBody.\n")
    assert "Body." in text_of(document) and len(text_of(document)) < 20_000


def test_a_large_mailbox_is_read_only_as_far_as_it_is_indexed(read: Read) -> None:
    message = "From a@b.c Sat May 03 09:30:00 2025\nFrom: Ana <a@b.c>\nSubject: Boiler {0}\n\nServiced {0} times.\n\n"
    mailbox = "".join(message.format(number) for number in range(100_000))
    document = read("big.mbox", mailbox, SMALL)
    assert is_beginning_only(document.note) and "Serviced 50 times." in text_of(document)


# Calendars and contacts ---------------------------------------------------------------------------------------------


def test_a_calendar_of_100_000_events_is_read_only_as_far_as_it_is_indexed(read: Read) -> None:
    event = "BEGIN:VEVENT\nUID:{0}\nDTSTART:20260604T100000\nSUMMARY:Meeting {0}\nEND:VEVENT\n"
    calendar = "BEGIN:VCALENDAR\n" + "".join(event.format(number) for number in range(100_000)) + "END:VCALENDAR\n"
    document = read("big.ics", calendar, SMALL)
    assert is_beginning_only(document.note) and "Meeting 50" in text_of(document)


def test_a_malformed_property_costs_only_itself(read: Read) -> None:
    document = read(
        "odd.ics",
        "BEGIN:VCALENDAR\nX-WR-CALNAME:Work\n"
        "BEGIN:VEVENT\nDTSTART:garbage\nSUMMARY:Odd\nRRULE:FREQ=NONSENSE\nno colon\nEND:VEVENT\n"
        "BEGIN:VEVENT\nSUMMARY:Fol\n ded\nRRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY\nDTSTART;TZID=Mars:20260604T1000\n"
        "DESCRIPTION:one\nDESCRIPTION:two\nATTENDEE:MAILTO:a@b.c\nEND:VEVENT\nBEGIN:VEVENT\nSUMMARY:Not ended\n",
    )  # fmt: skip
    assert document.title == "Work"
    text = text_of(document)
    assert "Odd" in text and "Folded" in text and "Notes: one two" in text and "With: a@b.c" in text
    assert "freq=weekly" in text and "Not ended" in text


def test_contacts_of_old_phones(read: Read) -> None:
    document = read(
        "phone.vcf",
        "BEGIN:VCARD\r\nVERSION:2.1\r\nFN;CHARSET=UTF-8;ENCODING=QUOTED-PRINTABLE:J=C3=BCrgen M=C3=BCller\r\n"
        "TEL;CELL:+49 170 1\r\nNOTE;ENCODING=QUOTED-PRINTABLE;CHARSET=UTF-8:two=0D=0Alines and =\r\nmore=21\r\n"
        "PHOTO;ENCODING=BASE64;JPEG:/9j/4AAQSkZJRgABAQ\r\n AAAQABAAD\r\n\r\nORG:Mill;Sales\r\nEND:VCARD\r\n"
        "BEGIN:VCARD\r\nVERSION:2.1\r\nN:Smith;Jo\r\nTEL;HOME:123\r\nEND:VCARD\r\n",
    )
    text = text_of(document)
    assert "Jürgen Müller, Phone (cell): +49 170 1" in text and "Notes: two lines and more!" in text
    assert "Organisation: Mill, Sales" in text and "Jo Smith, Phone (home): 123" in text


def test_addresses_and_notes_of_contacts_are_whole(read: Read) -> None:
    card = "BEGIN:VCARD\nVERSION:3.0\nFN:Ana\nADR:;;3 Orchard Close\\, York;;;\nADR:;;Gate 4;Santander;;39001;Spain\n"
    text = text_of(read("people.vcf", f"{card}NOTE:sister, vet\\, Leeds\nEND:VCARD\n"))
    assert "Ana, Address: 3 Orchard Close, York\n" in text and "Ana, Address: Gate 4, Santander, 39001, Spain" in text
    assert "Ana, Notes: sister, vet, Leeds" in text


def test_a_damaged_contact_costs_only_itself(read: Read) -> None:
    card = "BEGIN:VCARD\nVERSION:3.0\nFN:{}\nNOTE{}\nEND:VCARD\n"
    cards = card.format("Ana", ":x") + card.format("Bad", ";ENCODING=b:abc") + card.format("Tom", ":y")
    document = read("people.vcf", cards)
    assert document.note == "1 damaged entry not read"
    assert "Ana" in text_of(document) and "Tom" in text_of(document)


# Office files -------------------------------------------------------------------------------------------------------


def test_merged_cells_missing_results_and_far_rows_of_a_workbook(read: Read) -> None:
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    for row in [("Region", "Quarter", "Sum"), ("North", "Q1", "=1+1"), (None, "Q2", 3)]:
        sheet.append(row)
    sheet.merge_cells("A2:A3")
    sheet["A400000"] = "the last row"
    workbook.create_sheet("Empty")
    out = io.BytesIO()
    workbook.save(out)
    document = read("regions.xlsx", out.getvalue())
    assert "Region: North; Quarter: Q2; Sum: 3" in text_of(document)
    assert (document.blocks[-1].text, document.blocks[-1].line_start) == ("Sheet: Sheet; the last row", 400_000)
    assert "formulas without a saved result" in document.note


def test_a_sheet_of_a_million_formatted_empty_rows(read: Read) -> None:
    rows = "".join(f'<row r="{row}"><c r="A{row}" s="1"/><c r="B{row}" s="1"/></row>' for row in range(2, 1_048_577))
    head = '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    cell = '<row r="1"><c r="A1" t="inlineStr"><is><t>Only cell</t></is></c></row>'
    sheet = f"{head}{cell}{rows}</sheetData></worksheet>".encode()
    data = rezipped(desk_files.xlsx(), lambda name, old: sheet if name == "xl/worksheets/sheet1.xml" else old)
    assert "Only cell" in text_of(read("rows.xlsx", data))


@pytest.mark.parametrize("name", ["a.docx", "a.pptx", "a.xlsx"])
def test_an_encrypted_office_file_says_so(read: Read, name: str) -> None:
    container = OLE + b"\0" * 2000 + "EncryptedPackage".encode("utf-16-le") + b"\0" * 500
    with pytest.raises(BrokenDocument, match="is encrypted"):
        read(name, container)


def opendocument(content: str) -> bytes:
    spaces = "".join(
        f' xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for prefix, name in [("office", "office"), ("text", "text"), ("table", "table"), ("draw", "drawing")]
    )
    body = f"<office:body><office:text>{content}</office:text></office:body>"
    document = f"<office:document-content{spaces}>{body}</office:document-content>".encode()
    return rezipped(desk_files.odt(), lambda name, old: document if name == "content.xml" else old)


def test_deletions_comments_and_notes_of_an_odt_stay_out_of_its_sentences(read: Read) -> None:
    document = read(
        "tracked.odt",
        opendocument(
            "<text:tracked-changes><text:changed-region><text:deletion><text:p>deleted</text:p></text:deletion>"
            '</text:changed-region></text:tracked-changes><text:h text:outline-level="x">Rules</text:h>'
            "<text:p>Dogs<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Not cats."
            "</text:p></text:note-body></text:note> stay<office:annotation><text:p>comment</text:p></office:annotation>"
            '<text:s text:c="3"/>out<draw:frame><draw:text-box><text:p>framed</text:p></draw:text-box></draw:frame>.'
            "</text:p><table:table><table:table-row><table:table-cell><text:list><text:list-item><text:p>listed"
            "</text:p></text:list-item></text:list></table:table-cell></table:table-row></table:table>"
            "<text:p>" + "<text:span>" * 200 + "nested" + "</text:span>" * 200 + "</text:p>"
        ),
    )
    assert [block.text for block in document.blocks] == [
        "Rules", "Dogs stay out.", "Not cats.", "framed", "listed", "nested",
    ]  # fmt: skip


# E-books, notebooks, other text -------------------------------------------------------------------------------------


def test_a_book_with_a_missing_chapter_is_read_and_says_so(read: Read) -> None:
    def without_first(name: str, content: bytes) -> bytes | None:
        return None if name.endswith("c 0.xhtml") else content

    document = read("train.epub", rezipped(desk_files.epub(), without_first))
    assert document.note == "1 chapter is missing or damaged" and "three floors" in text_of(document)


def test_a_book_with_empty_elements_and_binary_chapters(read: Read) -> None:
    def odd(name: str, content: bytes) -> bytes:
        if name.endswith("c 1.xhtml"):
            return bytes(range(256)) * 10
        return content.replace(b"<head>", b"<head><title/><script src='x'/>").replace(b"</h1>", b"</h1><a id='p'/><p/>")

    document = read("odd.epub", rezipped(desk_files.epub(), odd))
    assert "night train" in text_of(document) and document.note == "1 chapter is missing or damaged"


def test_pictures_in_a_notebook_are_left_out(read: Read) -> None:
    picture = base64.b64encode(b"x" * 3_000_000).decode()
    cells: list[object] = [
        {"cell_type": "markdown", "source": f"# Plot\n\n![it](data:image/png;base64,{picture}) Rain."},
        {"cell_type": "code", "source": None, "outputs": [
            {"output_type": "display_data", "data": {"image/png": picture, "text/plain": ["<Figure>"]}},
            {"output_type": "error", "ename": "ValueError", "evalue": "no rain", "traceback": ["\x1b[0;31m---"]},
            {"output_type": "stream", "text": "\x1b[32mgreen\x1b[0m\n"}, None,
        ]},
        {"cell_type": "heading", "level": 6_000_000, "source": "End"}, {"cell_type": "heading", "level": "x"},
    ]  # fmt: skip
    document = read("plot.ipynb", json.dumps({"nbformat": 4, "cells": cells}))
    text = text_of(document)
    assert "Rain." in text and "ValueError: no rain" in text and "green" in text.split("\n") and "End" in text
    assert len(text) < 200


def test_drawers_that_never_end_take_no_time(read: Read) -> None:
    document = read("drawers.org", ":A:\n" * 60_000 + "* Plan\nText.\n", IndexSettings(parser_seconds=10))
    assert text_of(document) == "Plan\nText."


def test_verbatim_latex_keeps_its_words(read: Read) -> None:
    assert "Run make all now." in text_of(read("a.tex", "\\begin{document}\nRun \\verb|make all| now.\n"))


def test_a_picture_in_rtf_is_left_out(read: Read) -> None:
    picture = "{\\pict\\wmetafile8 " + "0a1b2c3d" * 100_000 + "}"
    assert text_of(read("a.rtf", "{\\rtf1\\ansi Before " + picture + "after.\\par End.}")) == "Before after.\nEnd."


def test_a_mail_of_parts_inside_parts_without_end_is_told(read: Read) -> None:
    parts = "".join(f"Content-Type: multipart/mixed; boundary=b{depth}\n\n--b{depth}\n" for depth in range(3000))
    with pytest.raises(BrokenDocument, match="parts inside parts, too deep"):
        read("nested.eml", f"From: a@b\nSubject: nested\n{parts}Content-Type: text/plain\n\nlovage\n")


def test_a_long_log_without_an_empty_line_is_read_in_time(read: Read) -> None:
    lines = (f"2026-05-03 10:00:{number % 60:02d} pump {number} is on\n" for number in range(60_000))
    assert len(read("pump.log", "".join(lines)).blocks) == 60_000


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32", "cp1252"])
def test_text_without_a_suffix_in_other_encodings(read: Read, encoding: str) -> None:
    words = "Die Lampe in der Küche ist nicht für den Garten.\n"
    assert text_of(read("notes", (words * 3).encode(encoding))).startswith(words.strip())


def test_plain_ascii_in_utf_16_and_japanese_in_iso_2022(read: Read) -> None:
    assert text_of(read("notes", "Milk, bread and a lamp.".encode("utf-16-le"))) == "Milk, bread and a lamp."
    words = "日本語のテキストです。"
    assert text_of(read("notes", words.encode("iso2022_jp"))) == words


@pytest.mark.parametrize("name", ["half.txt", "half.md", "half", "rows.csv"])
def test_zeros_behind_a_text_do_not_make_it_binary(read: Read, name: str) -> None:
    assert "The gate is green" in text_of(read(name, b"The gate is green.\n" + bytes(3000)))
    with pytest.raises(UnsupportedDocument):
        read(name, b"The gate\0\1\2 is green.\n" + bytes(3000))
