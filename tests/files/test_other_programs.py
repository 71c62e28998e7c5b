"""Files as Outlook, LibreOffice, pandoc, Obsidian and others write them: each of these was once read wrongly."""

from __future__ import annotations

import io
from decimal import Decimal

import docx
import odfdo
import pypdfium2
import pytest
import xlsxwriter
from docx.oxml import parse_xml
from pptx import Presentation
from pptx.oxml import parse_xml as parse_shape

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.records import tnef
from tests.documents.outlook_file import winmail
from tests.files.pdf_pages import pdf_of
from tests.files.test_awkward_files import Read, mail_with, read, texts

__all__ = ["read"]

# Mail


def test_files_in_a_winmail_dat_are_the_attachments_of_the_message(read: Read) -> None:
    packed = winmail({"Minutes of May.txt": b"The treasurer is Ola.\r\n", "Plan of the hall.pdf": b"%PDF-1.4"})
    message = mail_with(plain="See the minutes.", Subject="Minutes")
    message.add_attachment(packed, maintype="application", subtype="ms-tnef", filename="winmail.dat")
    document = read("minutes.eml", bytes(message))
    assert texts(document)[3:] == [
        "Attachments: Minutes of May.txt, Plan of the hall.pdf", "Attachment Minutes of May.txt",
        "The treasurer is Ola.",
    ]  # fmt: skip
    assert document.note == "1 attachment is not read: damaged, locked or without text (1)"


def test_a_saved_winmail_dat_is_a_message(read: Read) -> None:
    packed = winmail(
        {"a.png": b"\x89PNG"}, subject="Boiler", body="The boiler was\r\nserviced on Monday.", sender="Ida"
    )
    for name in ("winmail.dat", "saved.bin.dat"):
        document = read(name, packed)
        assert document.title == "Boiler" and texts(document)[0] == "Ida: Boiler"
        assert "serviced on Monday." in "\n".join(texts(document))


def test_a_winmail_dat_cut_anywhere_is_no_danger() -> None:
    whole = winmail({"a.txt": b"one"}, subject="Boiler", body="serviced")
    assert tnef.read(whole[:-1]) is not None and tnef.read(b"") is None
    for end in range(len(whole)):
        message = tnef.read(whole[:end])
        assert message is None or message.subject in ("", "Boiler")


@pytest.mark.parametrize(
    "mark",
    ["-----Original Message-----\nFrom: Sam <sam@example.org>", f"{'_' * 32}\nFrom: Sam <sam@example.org>",
     "-----Ursprüngliche Nachricht-----\nVon: Sam <sam@example.org>"],
)  # fmt: skip
def test_what_outlook_quotes_is_not_the_senders(read: Read, mark: str) -> None:
    body = f"The hall may be leased until 23:30.\n\n{mark}\nSubject: Hall\n\nMay we stay until 02:00?\n"
    shown = texts(read("lease.eml", bytes(mail_with(plain=body, Subject="Hall"))))
    heading = shown.index("Quoted from an earlier message")
    assert shown.index("The hall may be leased until 23:30.") < heading < shown.index("May we stay until 02:00?")


def test_a_message_that_is_nothing_but_a_forwarded_one_is_the_senders(read: Read) -> None:
    body = "-----Original Message-----\nFrom: Sam <sam@example.org>\n\nMay we stay until 02:00?\n"
    assert "Quoted from an earlier message" not in texts(read("forward.eml", bytes(mail_with(plain=body))))


@pytest.mark.parametrize(
    "quoted",
    ['<div class="gmail_quote"><div>On Tue, Ole wrote:</div><blockquote>Beside the plum?</blockquote></div>',
     '<blockquote type="cite"><p>Beside the plum?</p></blockquote>',
     '<hr><div id="divRplyFwdMsg">From: Ole</div><div>Beside the plum?</div>'],
)  # fmt: skip
def test_what_a_message_in_html_quotes_comes_last(read: Read, quoted: str) -> None:
    shown = texts(read("bees.eml", bytes(mail_with(html=f"<p>The hive is behind the quince.</p>{quoted}"))))
    heading = shown.index("Quoted from an earlier message")
    assert shown.index("The hive is behind the quince.") < heading < shown.index("Beside the plum?")


def test_flowing_text_is_put_together(read: Read) -> None:
    headers = "From: Aya <a@example.org>\nSubject: Ferry\nContent-Type: text/plain; format=flowed"
    body = (
        "The ferry leaves from quay \nseven on Mondays.\n\n From here it is near.\n> Which quay \n> is it?\n-- \nAya\n"
    )
    shown = texts(read("ferry.eml", f"{headers}\n\n{body}"))
    assert shown[2:] == [
        "The ferry leaves from quay seven on Mondays.", "From here it is near.", "Quoted from an earlier message",
        "Which quay is it?",
    ]  # fmt: skip
    shown = texts(read("other.eml", f"{headers}; DelSp=yes\n\nIt leaves from Lin \nnunlahti.\n"))
    assert shown[2:] == ["It leaves from Linnunlahti."]


# Pages


def test_three_columns_are_read_one_after_the_other(read: Read) -> None:
    columns = [[f"The {word} {side} was sold to the town of" for word in ("crane", "barge", "buoy", "float", "light")]
               for side in ("north", "middle", "south")]  # fmt: skip
    marks = [(40.0, 790.0, 20.0, "The Harbour Gazette")]
    for number, lines in enumerate(columns):
        marks += [(40.0 + 180 * number, 740.0 - 10 * row, 8.0, line) for row, line in enumerate(lines)]
    shown = " ".join(texts(read("gazette.pdf", pdf_of(marks))))
    assert shown == " ".join(["The Harbour Gazette", *(line for lines in columns for line in lines)])


def test_the_number_of_a_footnote_is_no_part_of_the_word_or_number_before_it(read: Read) -> None:
    sentence = "The abbey owned eleven mills"
    page = pypdfium2.PdfDocument(pdf_of([(60, 780, 12, sentence)]))[0].get_textpage()
    right = page.get_charbox(len(sentence) - 1, loose=True)[2]
    marks = [(60.0, 780.0, 12.0, sentence), (right, 784.5, 7.0, "12"), (60.0, 700.0, 12.0, "In 1412 room B2 was sold.")]
    text = " ".join(texts(read("abbey.pdf", pdf_of(marks))))
    assert text == f"{sentence} [12] In 1412 room B2 was sold."


def test_a_page_number_that_the_file_holds_first_is_left_out(read: Read) -> None:
    marks = [(300.0, 30.0, 9.0, "7"), (60.0, 780.0, 11.0, "The mill burned down in the spring.")]
    assert texts(read("mill.pdf", pdf_of(marks))) == ["The mill burned down in the spring."]


# Office files


def test_text_of_a_slide_that_stands_beside_a_formula_is_read(read: Read) -> None:
    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "Dyes"
    body = slide.shapes[1]
    body.text_frame.text = "Madder gives red at 60 degrees."
    names = (
        'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
        'xmlns:a14="http://schemas.microsoft.com/office/drawing/2010/main"'
    )
    alternatives = parse_shape(
        f'<mc:AlternateContent {names}><mc:Choice Requires="a14"/><mc:Fallback/></mc:AlternateContent>'
    )
    body._element.addprevious(alternatives)
    alternatives[0].append(body._element)
    out = io.BytesIO()
    presentation.save(out)
    assert texts(read("dyes.pptx", out.getvalue())) == ["Dyes", "Madder gives red at 60 degrees."]


def test_merged_cells_of_word_keep_the_columns_in_step_and_formulas_are_read(read: Read) -> None:
    document = docx.Document()
    table = document.add_table(3, 4)
    for row, cells in zip(
        table.rows,
        (("Cabin", "Price", "Deck", "Key"), ("A1", "900", "upper", "K1"), ("B2", "", "lower", "K2")),
        strict=True,
    ):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    table.cell(1, 0).merge(table.cell(1, 1))
    table.cell(1, 2).merge(table.cell(2, 2))
    names = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
    formula = f"<m:oMath {names}><m:r><m:t>E=mc</m:t></m:r></m:oMath>"
    document.add_paragraph("Energy is ")._p.append(parse_xml(formula))
    out = io.BytesIO()
    document.save(out)
    assert texts(read("charter.docx", out.getvalue())) == [
        "Cabin: A1 900; Deck: upper lower; Key: K1", "Cabin: B2; Deck: upper lower; Key: K2", "Energy is E=mc",
    ]  # fmt: skip


def test_footnotes_and_cells_of_several_lines_in_rtf(read: Read) -> None:
    rows = [("Cabin", "Price", "Deck"), ("A1", "900", r"upper\par \pard\intbl lower")]
    table = "".join(r"\trowd " + "".join(rf"\pard\intbl {cell}\cell " for cell in row) + r"\row" for row in rows)
    note = r"{\super\chftn}{\*\footnote\chftn\pard\plain Counted by Signe.\par And by Ole.}"
    rtf = rf"{{\rtf1\ansi {table}\pard The warp has 480 threads.{note}\par Done.\par}}"
    shown = texts(read("warp.rtf", rtf))
    assert shown[0] == "Cabin: A1; Price: 900; Deck: upper lower" and shown[-1] == "Done."
    assert "480 threads. (" in shown[1] and "Counted by Signe." in shown[1] and "And by Ole." in shown[1]


def test_a_title_above_the_table_of_an_exported_sheet_is_no_header(read: Read) -> None:
    shown = texts(read("costs.csv", "House costs,,\nItem,Paid on,Amount\nRoof,2026-02-03,1500.5\nHeating,,499.5\n"))
    assert shown == ["House costs", "Item: Roof; Paid on: 2026-02-03; Amount: 1500.5", "Item: Heating; Amount: 499.5"]


# Markup and data


def test_cells_over_several_rows_and_columns_of_a_page(read: Read) -> None:
    head = (
        "<tr><th rowspan=2>Doctor</th><th colspan=2>Hours</th><th rowspan=2>Room</th></tr>"
        "<tr><th>Mon</th><th>Tue</th></tr>"
    )
    rows = (
        "<tr><td rowspan=2>Dr. Salo</td><td>8-12</td><td>13-17</td><td>4</td></tr>"
        "<tr><td colspan=2>by phone</td><td>9</td></tr>"
    )
    assert texts(read("clinic.html", f"<table>{head}{rows}</table>")) == [
        "Doctor: Dr. Salo; Hours Mon: 8-12; Hours Tue: 13-17; Room: 4",
        "Doctor: Dr. Salo; Hours Mon: by phone; Hours Tue: by phone; Room: 9",
    ]


def test_a_formula_in_a_page_stays_in_its_sentence(read: Read) -> None:
    formula = "<math><mrow><mi>a</mi></mrow><annotation encoding='application/x-tex'>a^2+b^2</annotation></math>"
    assert texts(read("sum.html", f"<p>The sum {formula} is even.</p>")) == ["The sum a^2+b^2 is even."]


def test_soft_hyphens_and_ligatures_are_letters_as_people_type_them(read: Read) -> None:
    text = "The ther\u00admo\u00adstat of the of\ufb01ce has \ufb02ames.\u200b\n"
    assert texts(read("office.txt", text)) == ["The thermostat of the office has flames."]
    (code,) = read("office.py", f"x = '{text.strip()}'\n").blocks
    assert code.kind is BlockKind.CODE and "\u00ad" in code.text


def test_links_and_boxes_of_obsidian_read_as_their_words(read: Read) -> None:
    text = (
        "> [!warning] Stove\n> Never pour salt on it.\n\n> [!tip]-\n> Wear wool.\n\n"
        "- order stones from [[Kivi Oy|the quarry]], see [[Sauna]] and `[[ -f x ]]`\n"
    )
    assert texts(read("sauna.md", text)) == [
        "Stove\nNever pour salt on it.", "Tip\nWear wool.",
        "- order stones from the quarry, see Sauna and [[ -f x ]]",
    ]  # fmt: skip


def test_tables_and_footnotes_of_restructured_text(read: Read) -> None:
    text = """Use :kbd:`F5` on every pump. [1]_

.. list-table:: Torques
   :header-rows: 1

   * - Valve
     - Torque
     - Tool
   * - V7
     - 18 Nm
     - key
       of 12 mm

.. csv-table::
   :header: Tree, Row

   Quince, "4, north"

.. [1] The seal is made
   of Viton.
"""
    document = read("pump.rst", text)
    assert [(block.line_start, block.text) for block in document.blocks] == [
        (1, "Use F5 on every pump. [1]"), (3, "Torques"), (9, "Valve: V7; Torque: 18 Nm; Tool: key of 12 mm"),
        (17, "Tree: Quince; Row: 4, north"), (19, "[1] The seal is made\nof Viton."),
    ]  # fmt: skip


def test_attributes_of_asciidoc_are_filled_in(read: Read) -> None:
    text = "= Router\n:port: 8443\n:url: https://{port}\n\nIt listens on {port}, not {other}; latexmath:[$a^2$].\n"
    assert texts(read("router.adoc", text))[1:] == ["It listens on 8443, not ; a^2."]


def test_fonts_links_and_tables_of_latex_as_pandoc_writes_them(read: Read) -> None:
    source = r"""\begin{document}
\hypertarget{warp}{%
\section{Warp}\label{warp}}
Run \texttt{make warp}, see \href{https://a.org/x}{the page} and \mbox{box}.
\begin{longtable}[]{@{}lr@{}}
\toprule
Loom & Width \\
\midrule
\endhead
Toika & 120 cm \\
\bottomrule
\end{longtable}
\begin{enumerate}
\def\labelenumi{\arabic{enumi}.}
\tightlist
\item Madder.
\end{enumerate}
\end{document}
"""
    assert texts(read("warp.tex", source)) == [
        "Warp", "Run make warp, see the page and box.", "Loom: Toika; Width: 120 cm", "- Madder.",
    ]  # fmt: skip


def test_an_apple_property_list_a_feed_and_the_declared_encoding(read: Read) -> None:
    plist = (
        '<?xml version="1.0"?>\n<plist><dict><key>Lens Serial</key><string>QX-8841</string>'
        "<key>On</key><true/><key>Sizes</key><dict><key>Width</key><integer>3</integer></dict></dict></plist>\n"
    )
    document = read("camera.plist", plist)
    assert {"plist.dict.Lens Serial: QX-8841", "plist.dict.On: true"} <= set("\n".join(texts(document)).split("\n"))
    assert "plist.dict.Sizes.Width: 3" in texts(document)
    escaped = "&lt;p&gt;Ключ в &lt;b&gt;коробке&lt;/b&gt;.&lt;/p&gt;"
    feed = f'<?xml version="1.0" encoding="windows-1251"?><rss><d>{escaped}</d></rss>'
    document = read("feed.xml", feed.encode("cp1251"))
    assert texts(document) == ["rss.d: Ключ в коробке."] and document.note == "read as windows-1251"


def test_merged_keys_of_yaml_stand_where_they_count(read: Read) -> None:
    text = "base: &b\n  retries: 3\n  host: a.org\nserver:\n  <<: *b\n  host: heron.org\n"
    shown = "; ".join(texts(read("conf.yaml", text)))
    assert "server.retries: 3" in shown and "server.host: heron.org" in shown and "<<" not in shown
    assert shown.count("a.org") == 1


def test_a_long_pause_in_subtitles_begins_a_paragraph_with_its_time(read: Read) -> None:
    cues = "1\n00:00:01,000 --> 00:00:04,000\nThe well is deep.\n\n2\n00:00:05,000 --> 00:00:06,000\nVery.\n\n"
    later = "3\n00:01:05,000 --> 00:01:08,000\nWater came on Monday.\n"
    assert texts(read("well.srt", cues + later)) == [
        "[00:00:01] The well is deep. Very.", "[00:01:05] Water came on Monday.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,TH;UNTIL=20260630",
            "every 2 weeks on Monday and Thursday, until 30 June 2026",
        ),
        ("FREQ=MONTHLY;BYDAY=-1SU", "every month on the last Sunday"),
        ("FREQ=YEARLY;BYMONTH=10;BYMONTHDAY=3", "every year in October on day 3"),
        ("FREQ=DAILY;COUNT=5", "every day, 5 times"),
    ],
)
def test_how_often_an_event_is(read: Read, rule: str, words: str) -> None:
    event = f"BEGIN:VEVENT\nUID:1\nSUMMARY:Choir\nDTSTART:20260105T183000\nRRULE:{rule}\nEND:VEVENT\n"
    assert (
        f"; How often: {words}; Repeats: freq=" in texts(read("c.ics", f"BEGIN:VCALENDAR\n{event}END:VCALENDAR\n"))[1]
    )


# Sheets


def test_numbers_shown_in_per_cent_are_read_so(read: Read) -> None:
    data = io.BytesIO()
    book = xlsxwriter.Workbook(data)
    sheet = book.add_worksheet("Loans")
    rate, share = book.add_format({"num_format": "0.00%"}), book.add_format({"num_format": '0.0##%" p.a."'})
    sheet.write_row(1, 1, ("Bank", "Rate", "Share", "Sum"))
    sheet.write(2, 1, "Harbour Bank")
    sheet.write(2, 2, 0.035, rate)
    sheet.write(2, 3, 0.07, share)
    sheet.write(2, 4, 0.5)
    book.close()
    row = texts(read("loans.xlsx", data.getvalue()))[-1]
    assert row == "Bank: Harbour Bank; Rate: 3.5%; Share: 7%; Sum: 0.5"


def test_numbers_of_an_open_sheet_shown_in_per_cent_are_read_so(read: Read) -> None:
    book, data = odfdo.Document("spreadsheet"), io.BytesIO()
    book.body.clear()
    table = odfdo.Table("Loans", width=3, height=2)
    for column, name in enumerate(("Bank", "Rate", "Sum")):
        table.set_value((column, 0), name)
    table.set_value((0, 1), "Harbour Bank")
    table.set_cell((1, 1), odfdo.Cell(Decimal("0.035"), cell_type="percentage"))
    table.set_value((2, 1), 0.5)
    book.body.append(table)
    book.save(data)
    assert texts(read("loans.ods", data.getvalue()))[-1] == "Bank: Harbour Bank; Rate: 3.5%; Sum: 0.5"
