"""What stands beside the running text: tracked changes, notes, comments, headers, forms, annotations, passwords."""

from __future__ import annotations

import io
import zipfile

import docx
import odfdo
import openpyxl
import pypdf
import pypdfium2
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from openpyxl.comments import Comment
from pypdf.annotations import FreeText, Text
from pypdf.generic import ArrayObject, DictionaryObject, FloatObject, NameObject, TextStringObject

from desk_rag.documents.parsers.office import pdf, sheets, word
from desk_rag.errors import BrokenDocument
from tests.files.pdf_pages import pdf_of

W = nsdecls("w")


def word_texts(document: object) -> list[str]:
    stream = io.BytesIO()
    document.save(stream)  # type: ignore[attr-defined]
    return [block.text for block in word.parse(stream.getvalue()).blocks]


def test_tracked_changes_are_read_as_accepted() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("The rent is 840 crowns")._p
    paragraph.append(parse_xml(f'<w:ins {W} w:id="1"><w:r><w:t xml:space="preserve"> a month</w:t></w:r></w:ins>'))
    paragraph.append(parse_xml(f'<w:del {W} w:id="2"><w:r><w:delText> a week</w:delText></w:r></w:del>'))
    paragraph.append(parse_xml(f'<w:moveFrom {W} w:id="3"><w:r><w:t> moved away</w:t></w:r></w:moveFrom>'))
    moved = '<w:r><w:t xml:space="preserve"> in advance</w:t></w:r>'
    paragraph.append(parse_xml(f'<w:moveTo {W} w:id="4">{moved}</w:moveTo>'))
    assert word_texts(document) == ["The rent is 840 crowns a month in advance"]


def test_content_controls_and_hyperlinks_and_field_results_are_text() -> None:
    document = docx.Document()
    box = f"<w:sdt {W}><w:sdtContent><w:p><w:r><w:t>Deposit: 1,700 crowns</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    document.element.body.insert(0, parse_xml(box))
    paragraph = document.add_paragraph("See ")._p
    paragraph.append(parse_xml(f"<w:hyperlink {W}><w:r><w:t>the annex</w:t></w:r></w:hyperlink>"))
    paragraph.append(parse_xml(f"<w:r {W}><w:instrText> PAGEREF annex \\h </w:instrText></w:r>"))
    paragraph.append(parse_xml(f'<w:r {W}><w:t xml:space="preserve"> on page 7</w:t></w:r>'))
    assert word_texts(document) == ["Deposit: 1,700 crowns", "See the annex on page 7"]


def test_comments_follow_their_paragraph_with_author() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("Heating is extra.")
    document.add_comment(paragraph.runs, text="Ask Mira whether that is new.", author="Ivo Brandt", initials="IB")
    document.add_paragraph("Water is included.")
    assert word_texts(document) == [
        "Heating is extra.", "Comment by Ivo Brandt: Ask Mira whether that is new.", "Water is included."
    ]  # fmt: skip


def test_footnotes_follow_their_paragraph_and_separators_are_no_notes() -> None:
    from docx.opc.constants import RELATIONSHIP_TYPE
    from docx.opc.packuri import PackURI
    from docx.opc.part import Part

    document = docx.Document()
    notes = f"""<w:footnotes {W}>
      <w:footnote w:type="separator" w:id="-1"><w:p><w:r><w:separator/></w:r></w:p></w:footnote>
      <w:footnote w:id="2"><w:p><w:r><w:t>Raised from 12 on 1 May.</w:t></w:r></w:p></w:footnote></w:footnotes>"""
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.footnotes+xml"
    part = Part(PackURI("/word/footnotes.xml"), kind, notes.encode(), document.part.package)
    document.part.relate_to(part, RELATIONSHIP_TYPE.FOOTNOTES)
    paragraph = document.add_paragraph("The fee is 14 crowns.")
    paragraph._p.append(parse_xml(f'<w:r {W}><w:footnoteReference w:id="2"/></w:r>'))
    assert word_texts(document) == ["The fee is 14 crowns.", "Footnote: Raised from 12 on 1 May."]


def test_headers_and_footers_are_read_once_and_page_numbers_never() -> None:
    document = docx.Document()
    document.sections[0].header.paragraphs[0].text = "Norrvik Housing, Quay Street 4"
    document.sections[0].footer.paragraphs[0].text = "Page 1 of 3"
    document.add_paragraph("The rent is 840 crowns.")
    document.add_section().header.is_linked_to_previous = False
    document.sections[1].header.paragraphs[0].text = "Norrvik Housing, Quay Street 4"
    assert word_texts(document) == ["Norrvik Housing, Quay Street 4", "The rent is 840 crowns."]


def test_a_text_box_is_read_once_though_it_is_stored_twice() -> None:
    document = docx.Document()
    run = document.add_paragraph("Before the box.").add_run()._r
    mc = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    inside = "<w:txbxContent><w:p><w:r><w:t>Bring the blue key.</w:t></w:r></w:p></w:txbxContent>"
    run.append(
        parse_xml(
            f'<mc:AlternateContent xmlns:mc="{mc}" {W}><mc:Choice Requires="wps"><w:pict>{inside}</w:pict></mc:Choice>'
            f"<mc:Fallback><w:pict>{inside}</w:pict></mc:Fallback></mc:AlternateContent>"
        )
    )
    assert word_texts(document) == ["Before the box.", "Bring the blue key."]


def test_a_table_in_a_cell_belongs_to_the_cell() -> None:
    document = docx.Document()
    table = document.add_table(2, 2)
    for (row, column), text in {(0, 0): "Item", (0, 1): "Price", (1, 0): "Key", (1, 1): "30"}.items():
        table.cell(row, column).text = text
    table.cell(1, 0).add_table(1, 1).cell(0, 0).text = "spare"
    assert word_texts(document) == ["Item: Price", "Key spare: 30"]


def make_form(*, owner_password: str = "", user_password: str = "") -> bytes:
    """A page without printed text that has two notes and a filled form field."""
    blank = io.BytesIO()
    document = pypdfium2.PdfDocument.new()
    document.new_page(400, 400)
    document.save(blank)
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(blank.getvalue()))
    writer.add_annotation(0, Text(text="Ask about the deposit: 1,700 crowns", rect=(50, 50, 80, 80)))
    writer.add_annotation(0, FreeText(text="Approved by Mira Holt", rect=(50, 150, 200, 180)))
    field = DictionaryObject({
        NameObject("/Type"): NameObject("/Annot"), NameObject("/Subtype"): NameObject("/Widget"),
        NameObject("/FT"): NameObject("/Tx"), NameObject("/T"): TextStringObject("Tenant"),
        NameObject("/V"): TextStringObject("Jörg Lind"),
        NameObject("/Rect"): ArrayObject([FloatObject(value) for value in (10, 10, 100, 30)]),
    })  # fmt: skip
    reference = writer._add_object(field)
    writer.pages[0][NameObject("/Annots")].append(reference)
    writer._root_object[NameObject("/AcroForm")] = DictionaryObject({NameObject("/Fields"): ArrayObject([reference])})
    if owner_password or user_password:
        writer.encrypt(user_password, owner_password or None)
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


@pytest.mark.parametrize("owner_password", ["", "only for printing"])
def test_notes_and_form_fields_of_a_pdf_are_read_with_their_page(owner_password: str) -> None:
    blocks = pdf.parse(make_form(owner_password=owner_password)).blocks
    assert [(block.text, block.page) for block in blocks] == [
        ("Note: Ask about the deposit: 1,700 crowns", 1), ("Note: Approved by Mira Holt", 1), ("Tenant: Jörg Lind", 1)
    ]  # fmt: skip


def test_a_damaged_pdf_encrypted_without_a_password_for_reading_is_read() -> None:
    page = pdf_of([(60, 780, 12, "The oven is serviced in March.")])
    for password, words in (("", "The oven is serviced in March."), ("heron", "")):
        writer, stream = pypdf.PdfWriter(clone_from=io.BytesIO(page)), io.BytesIO()
        writer.encrypt(password, "owner", algorithm="RC4-128")
        writer.write(stream)
        damaged = stream.getvalue().replace(b"%PDF-", b"%ODD-")  # PDFium does not open it
        if words:
            assert [block.text for block in pdf.parse(damaged).blocks] == [words]
        else:
            with pytest.raises(BrokenDocument, match="locked with a password"):
                pdf.parse(damaged)


def test_a_pdf_that_needs_a_password_to_be_read_is_said_to_be_locked() -> None:
    with pytest.raises(BrokenDocument, match="locked with a password"):
        pdf.parse(make_form(user_password="secret"))


def _workbook_with_comments() -> bytes:
    workbook = openpyxl.Workbook()
    loans = workbook.active
    assert loans is not None
    loans.title = "Loans"
    for row in (["Item", "Price"], ["Drill", 40], ["Saw", 25]):
        loans.append(row)
    loans["B2"].comment = Comment("Ana:\nagreed by phone\nwith Mr Hale", "Ana")
    loans["A9"].comment = Comment("[Threaded comment]\n\nYour version …\n\nComment:\n    ask again in May", "tc={1}")
    other = workbook.create_sheet("Other")
    other["A1"] = "x"
    other["A1"].comment = Comment("of the second sheet", "Bo")
    stream = io.BytesIO()
    workbook.save(stream)
    return stream.getvalue()


def test_comments_of_cells_stand_below_their_row() -> None:
    blocks = sheets.parse(_workbook_with_comments(), 10**6).blocks
    shown = [(block.text, block.page, block.line_start) for block in blocks if "omment" in block.text]
    assert shown == [
        ("Comment on B2 by Ana: agreed by phone with Mr Hale", 1, 2),
        ("Comment on A9: ask again in May", 1, 9),
        ("Comment on A1 by Bo: of the second sheet", 2, 1),
    ]
    texts = [block.text for block in blocks]
    assert texts.index("Sheet: Loans; Item: Drill; Price: 40") + 1 == texts.index(shown[0][0])


def test_damaged_comments_cost_no_cells() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_workbook_with_comments())) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            target.writestr(name, b"<comments" if "comments/comment1" in name else source.read(name))
    texts = [block.text for block in sheets.parse(out.getvalue(), 10**6).blocks]
    assert "Sheet: Loans; Item: Drill; Price: 40" in texts and not any("Hale" in text for text in texts)


def test_comments_of_an_open_document_sheet() -> None:
    document = odfdo.Document("spreadsheet")
    document.body.clear()
    table = odfdo.Table("Loans")
    for row in (["Item", "Price"], ["Drill", "40"]):
        table.append_row(odfdo.Row())
        table.set_row_values(table.height - 1, row)
    cell = table.get_cell("B2")
    cell.append(odfdo.Annotation("agreed by phone", creator="Ana"))
    table.set_cell("B2", cell)
    document.body.append(table)
    stream = io.BytesIO()
    document.save(stream)
    blocks = sheets.parse(stream.getvalue(), 10**6).blocks
    assert ("Comment on B2 by Ana: agreed by phone", 2) in [(block.text, block.line_start) for block in blocks]


def _printed(*lines: str, size: float = 11.0, leading: float = 15.0) -> list[str]:
    """The blocks of a PDF page with these lines below one another; an empty line is a gap."""
    marks = [(60.0, 780.0 - row * leading, size, line) for row, line in enumerate(lines) if line]
    return [block.text for block in pdf.parse(pdf_of(marks)).blocks]


def test_lines_of_an_invoice_in_pdf_stay_lines() -> None:
    invoice = (
        "HARBOUR ROWING CLUB     Invoice HRC-04      16 December 2022",
        "To: Lifeboat Station of Wexley, Ms A. Pell",
        "Hire of two boats for the regatta, 14 December 2022 ........ £150.00",
        "PAID 9 January 2023",
    )
    bill = (
        "OAKLEY PRESS    12 Wharf Street, Wexley",
        "Invoice 2211                                     10 June 2022",
        "150 programmes, 12 pages, Songs of the River ........ £128.00",
        "Total ............................................... £174.00",
        "Please pay within 30 days.",
    )
    assert _printed(*invoice)[1:] == list(invoice[1:])
    assert _printed(*bill)[2:] == list(bill[2:]) and _printed(*bill)[1] == "Invoice 2211 10 June 2022"


def test_sentences_of_a_pdf_go_on_over_line_ends_that_came_early() -> None:
    letter = (
        "Dear Ms Pell,",
        "",
        "I have the pleasure to tell you that your appeal succeeded. The trustees award you",
        "£1,200 towards",
        "choral risers. It is to be spent by 30 September 2024, and a report must reach us by",
        "the end of that year.",
        "",
        "Cordelia Wynn, clerk",
    )
    assert _printed(*letter) == ["Dear Ms Pell,", " ".join(letter[2:6]), "Cordelia Wynn, clerk"]
    form = ("Licence for amateur performances, number TL-60932", "Wexley Rowing Club", "Valid until 31 January 2025")
    assert _printed(*form) == list(form)


def test_entries_of_a_list_in_pdf_stay_apart_in_small_letters_too() -> None:
    entries = (
        "etype: The type of the string that is to be encoded (see above)",
        "der: the encoded string",
        "str len: the length of the data",
    )
    assert _printed(*entries) == list(entries)
