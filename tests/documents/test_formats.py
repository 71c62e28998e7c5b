"""Mail, office files, e-books, notebooks, calendars and the like become text with places that a person can find."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from desk_rag.config import IndexSettings
from desk_rag.documents.chunking import ChunkSize, split
from desk_rag.documents.document import Document, parse
from desk_rag.documents.formats import place_units
from desk_rag.documents.sentences import QUOTED_HEADING
from desk_rag.errors import BrokenDocument, UnsupportedDocument
from tests.documents import desk_files
from tests.documents.outlook_file import outlook_message

SETTINGS = IndexSettings(parser_seconds=20)
FILES = Path(__file__).parents[1] / "files"
Read = Callable[[str, "str | bytes"], Document]


class _Words:
    def count(self, text: str) -> int:
        return len(text.split())


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Parse content under a name."""

    def parse_content(name: str, content: str | bytes) -> Document:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return parse(path, SETTINGS)

    return parse_content


def text_of(document: Document) -> str:
    return "\n".join(block.text for block in document.blocks)


def places(document: Document, holding: str) -> str:
    """The place that a citation of the chunk holding these words would name."""
    chunks = split(document, _Words(), ChunkSize(1, 4, 40))
    units = place_units(document.source.path.name)
    (place,) = {str(replace(chunk.location, units=units)) for chunk in chunks if holding in chunk.text}
    return place


def test_a_mail_names_sender_date_and_subject(read: Read) -> None:
    document = read("tent.eml", desk_files.eml())
    assert document.title == "Größe of the tent"
    assert text_of(document).count("sleeps six people") == 1
    assert "Attachments: invoice-77.pdf" in text_of(document)
    assert places(document, "sleeps six") == "Ana Novak, 3 May 2025: Größe of the tent"


def test_a_mail_in_html_only_is_read_without_its_scripts(read: Read) -> None:
    text = text_of(read("booking.eml", desk_files.html_mail()))
    assert "Your booking number is KX-4471." in text and "x()" not in text


def test_quotes_of_earlier_messages_in_a_mailbox_are_left_out(read: Read) -> None:
    document = read("inbox.mbox", desk_files.mbox())
    assert text_of(document).count("serviced on Monday") == 1
    assert places(document, "128 crowns") == "Ben Ortega, 4 May 2025: Re: Boiler"


def test_a_quote_in_a_single_mail_is_kept(read: Read) -> None:
    mail = desk_files.message("Re: Boiler", "Fine.\n\n> The boiler was serviced on Monday.\n")
    assert "The boiler was serviced on Monday." in text_of(read("reply.eml", bytes(mail)))


def test_what_a_mail_quotes_comes_last_below_a_heading_of_its_own(read: Read) -> None:
    mail = desk_files.message("Re: Boiler", "Fine, but\n\n> Come at noon.\n> Bring a lamp.\n\nonly at one.\n\nBen\n")
    document = read("reply.eml", bytes(mail))
    assert [block.text for block in document.blocks][-5:] == [
        "only at one.", "Ben", QUOTED_HEADING, "Come at noon.", "Bring a lamp."]  # fmt: skip
    assert document.blocks[-1].heading[-1] == QUOTED_HEADING


def test_a_mailbox_and_a_maildir_file_are_known_by_their_content(read: Read) -> None:
    assert read("Inbox", desk_files.mbox()).parser.startswith("mailbox/")
    message = read("1718000000.M1P2.host:2,S", desk_files.eml())
    assert message.parser.startswith("mail/")
    assert places(message, "sleeps six") == "Ana Novak, 3 May 2025: Größe of the tent"


def test_a_web_archive_is_read_as_its_page(read: Read) -> None:
    assert "The last ferry leaves at 21:40." in text_of(read("ferry.mhtml", desk_files.mhtml()))


def test_an_outlook_message_is_read_with_sender_date_and_subject(read: Read) -> None:
    saved = outlook_message(
        "Chimney", "The chimney was swept by Jörg.\n", sender=("Oda Winter", "oda@example.org"),
        to=("Ida Lund", "ida@example.org"), sent=datetime(2025, 5, 6, 9, 30, tzinfo=UTC),
    )  # fmt: skip
    document = read("chimney.msg", saved)
    assert document.title == "Chimney" and "To: Ida Lund" in text_of(document)
    assert places(document, "swept by Jörg") == "Oda Winter, 6 May 2025: Chimney"


def test_a_workbook_of_old_excel_is_read(read: Read) -> None:
    document = read("birds.xls", (FILES / "birds.xls").read_bytes())
    assert "Bird: Heron; Ring: H-208; Weight: 1.7" in text_of(document)


def test_slides_have_numbers_tables_and_notes(read: Read) -> None:
    document = read("results.pptx", desk_files.pptx())
    assert places(document, "4.2 million") == "slide 1"
    assert "Name: Ida; Role: Editor; Room: 12" in text_of(document)
    assert places(document, "Notes: Mention the parking spaces.") == "slide 2"


def test_a_cell_is_cited_by_sheet_and_row(read: Read) -> None:
    document = read("trip.xlsx", desk_files.xlsx())
    assert "Item: Tent; Month: May; Price: 249.5" in text_of(document)
    assert "Name: Ida; Phone: 555-0142" in text_of(document)
    (row,) = (block for block in document.blocks if "Stove" in block.text)
    assert (row.heading, row.line_start) == (("Budget",), 3)
    (row,) = (block for block in document.blocks if "555-0142" in block.text)
    assert (row.heading, row.line_start) == (("Members",), 6)
    assert places(document, "Stove").startswith("Budget, row")


def test_opendocument_files(read: Read) -> None:
    text = read("rules.odt", desk_files.odt())
    assert [block.text for block in text.blocks if block.heading == ("House rules",)][
        1
    ] == "The attic is locked at nine."
    assert "No candles" in text_of(text) and "behind the mirror" in text_of(text)
    assert "Fruit: Apples; Year: 2024; Kilos: 310" in text_of(read("harvest.ods", desk_files.ods()))
    assert places(read("choir.odp", desk_files.odp()), "Thursdays") == "slide 1"


def test_rich_text(read: Read) -> None:
    assert "The deposit is two rents.\nMüller signs." in text_of(read("lease.rtf", desk_files.RTF))


def test_chapters_of_a_book_come_in_reading_order(read: Read) -> None:
    document = read("train.epub", desk_files.epub())
    assert document.title == "The night train"
    assert [block.heading[0] for block in document.blocks] == ["Arrival", "Arrival", "The mill", "The mill"]
    assert places(document, "three floors") == "The mill"


def test_notebook_cells_hold_text_code_and_output(read: Read) -> None:
    document = read("rain.ipynb", desk_files.ipynb())
    assert "We look at the wettest month." in text_of(document)
    (output,) = (block for block in document.blocks if "212 mm" in block.text)
    assert output.page == 2


def test_an_event_that_lasts_days_names_the_last_one(read: Read) -> None:
    days = "DTSTART;VALUE=DATE:20260701\nDTEND;VALUE=DATE:20260704"
    night = "DTSTART:20260704T200000\nDTEND:20260705T020000"
    events = "".join(f"BEGIN:VEVENT\nSUMMARY:Fair\n{when}\nEND:VEVENT\n" for when in (days, night))
    document = read("fair.ics", f"BEGIN:VCALENDAR\n{events}END:VCALENDAR\n")
    assert "Fair: 1 July 2026 to 3 July 2026" in text_of(document)
    assert "Fair: 4 July 2026 20:00 to 5 July 2026 02:00" in text_of(document)


def test_events_are_cited_by_title_and_time(read: Read) -> None:
    document = read("2026.ics", desk_files.ICS)
    assert places(document, "Mill Street 4") == "Dentist, 4 June 2026 10:00"
    assert "Dentist: 4 June 2026 10:00 to 10:45; Place: Mill Street 4" in text_of(document)
    assert "With: Dr Weiss" in text_of(document) and "freq=yearly" in text_of(document)


def test_a_chunk_over_several_events_names_none_of_them(read: Read) -> None:
    (chunk,) = split(read("2026.ics", desk_files.ICS), _Words(), ChunkSize(60, 100, 200))
    assert str(replace(chunk.location, units=place_units("2026.ics"))) == "entries 1-2"


def test_contacts(read: Read) -> None:
    document = read("people.vcf", desk_files.VCF)
    assert "Ida Lund, Phone (cell): +45 5550 1234" in text_of(document)
    assert "Ribe" in text_of(document)
    assert places(document, "old pipes") == "Tom Berg"


def test_org_drawers_are_left_out_and_tables_read_as_tables(read: Read) -> None:
    document = read("allotment.org", desk_files.ORG)
    text = text_of(document)
    assert document.title == "Allotment"
    assert "EFFORT" not in text and "takes place in room 202." in text
    (row,) = (block for block in document.blocks if "Food" in block.text)
    assert (row.text, row.line_start) == ("Item: Food; Month: June; Price: 250", 11)


def test_latex_reads_as_words_on_its_lines(read: Read) -> None:
    document = read("eddies.tex", desk_files.LATEX)
    assert document.title == "On eddies"
    (flow,) = (block for block in document.blocks if "1.24" in block.text)
    assert (flow.heading, flow.line_start, flow.line_end) == (("Results",), 6, 7)
    assert "\\" not in text_of(document) and "comment" not in text_of(document)


def test_subtitles_bibliography_and_canvas(read: Read) -> None:
    (spoken,) = read("boat.srt", desk_files.SRT).blocks
    assert spoken.text == "[00:00:01] The boat leaves at noon. Bring bread." and spoken.line_start == 3
    (entry,) = read("mills.bib", desk_files.BIB).blocks
    assert entry.text == "article lund2021; title: The Mills of Ribe; author: Lund, Ida and Berg, Tom; year: 2021"
    cards = [block.text for block in read("plan.canvas", desk_files.CANVAS).blocks]
    assert cards == ["Plan", "Paint the fence green.", "Second card", "notes/fence.md"]


def test_text_under_any_name_is_read_and_binary_is_not(read: Read) -> None:
    assert read("shopping", "Milk, bread and a lamp.").parser.startswith("text/")
    assert read("data.xyz", '{"lamp": "green"}').parser.startswith("json/")
    with pytest.raises(UnsupportedDocument, match="binary"):
        read("blob.xyz", bytes(range(256)) * 40)


@pytest.mark.parametrize("name", ["a.pptx", "a.xlsx", "a.ods", "a.odt", "a.epub", "a.msg", "a.xls", "a.docx"])
def test_damaged_containers_end_in_a_clear_error(read: Read, name: str) -> None:
    source = {
        ".pptx": desk_files.pptx, ".xlsx": desk_files.xlsx, ".ods": desk_files.ods, ".odt": desk_files.odt,
        ".epub": desk_files.epub,
    }.get(Path(name).suffix, desk_files.xlsx)  # fmt: skip
    data = source()
    if name in ("a.msg", "a.xls"):
        data = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\x00" * 4000
    with pytest.raises((BrokenDocument, UnsupportedDocument)) as damaged:
        read(name, data[: len(data) * 2 // 3])
    assert "damaged" in damaged.value.message or "ZIP archive" in damaged.value.message


def test_an_office_file_that_unpacks_beyond_measure_is_refused(read: Read) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
        archive.writestr("xl/worksheets/sheet1.xml", b" " * (400 * 1024 * 1024))
    with pytest.raises(BrokenDocument, match="unpacks to 400 MiB"):
        read("bomb.xlsx", out.getvalue())


@pytest.mark.parametrize("name", ["a.ipynb", "a.canvas", "a.ics"])
def test_text_containers_with_nonsense_inside(read: Read, name: str) -> None:
    with pytest.raises(BrokenDocument, match="damaged|holds no text"):
        read(name, "[1, 2" + "[" * 5000)
