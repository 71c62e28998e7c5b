"""Charts, cells merged downwards, headers and footers of files that LibreOffice wrote are read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import docx
import pytest
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml
from pptx import Presentation

from desk_rag.documents.parsers.building import Parsed
from desk_rag.documents.parsers.office import opendocument, sheets, slides, word

_FILES = Path(__file__).parent


def texts(parsed: Parsed) -> list[str]:
    return [block.text for block in parsed.blocks]


def office_presentation() -> bytes:
    """Return the file of LibreOffice in the format of PowerPoint, of which python-pptx wrote the charts."""
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    slide.shapes.title.text = "Visitors"
    data = CategoryChartData()
    data.categories = ["January", "February"]
    data.add_series("Museum", (120, 140))
    data.add_series("Garden", (12.5, None))
    chart = slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, 100, 100, data).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "Visitors by month"
    chart.category_axis.axis_title.text_frame.text = "Month"
    out = io.BytesIO()
    presentation.save(out)
    return out.getvalue()


_ROWS = ["Category: January; Museum: 120; Garden: 12.5", "Category: February; Museum: 140"]


def test_a_chart_on_a_slide_has_title_axes_and_values() -> None:
    assert texts(slides.parse(office_presentation())) == [
        "Visitors", "Chart: Visitors by month; axes: Month", *_ROWS,
    ]  # fmt: skip
    parsed = opendocument.parse((_FILES / "visitors.odp").read_bytes())
    found = texts(parsed)
    assert found[found.index("Chart: Visitors by month") + 1 :][:2] == _ROWS
    assert [block.page for block in parsed.blocks if "Larch" in block.text] == [2]


def test_a_chart_in_a_word_document_stands_where_it_was_put() -> None:
    chart = next(
        shape.chart for shape in Presentation(io.BytesIO(office_presentation())).slides[0].shapes if shape.has_chart
    )
    letter = docx.Document()
    letter.add_paragraph("Before.")
    part = Part(PackURI("/word/charts/chart1.xml"), chart.part.content_type, chart.part.blob, letter.part.package)
    number = letter.part.relate_to(part, RELATIONSHIP_TYPE.CHART)
    letter.add_paragraph().add_run()._r.append(parse_xml(
        '<w:drawing xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
        '<c:chart xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" xmlns:r='
        f'"http://schemas.openxmlformats.org/officeDocument/2006/relationships" r:id="{number}"/></w:drawing>'
    ))  # fmt: skip
    letter.add_paragraph("After.")
    out = io.BytesIO()
    letter.save(out)
    assert texts(word.parse(out.getvalue())) == ["Before.", "Chart: Visitors by month; axes: Month", *_ROWS, "After."]


def test_a_sheet_names_its_charts_and_repeats_a_cell_merged_downwards() -> None:
    parsed = sheets.parse((_FILES / "yield.ods").read_bytes(), 10**6)
    assert [(block.text, block.page, block.line_start) for block in parsed.blocks] == [
        ("Hives", 1, None),
        ("Region; Hive; Honey kg", 1, 1),
        ("Sheet: Hives; Region: Meadow; Hive: A; Honey kg: 12", 1, 2),
        ("Sheet: Hives; Region: Meadow; Hive: B; Honey kg: 15.5", 1, 3),
        ("Comment on C3: weighed twice", 1, 3),
        ("Sheet: Hives; Region: Meadow; Hive: C; Honey kg: 9", 1, 4),
        ("Sheet: Hives; Region: Forest; Hive: D; Honey kg: 20", 1, 5),
        ("Chart: Honey per hive; axes: Hive letter; series: Honey of 2025", 1, None),
        ("Overview", 2, None),
        ("Chart: Overview of all hives; series: Honey kg", 2, None),
    ]


def test_charts_of_excel_are_named_without_their_values() -> None:
    import xlsxwriter

    out = io.BytesIO()
    with xlsxwriter.Workbook(out) as workbook:
        sheet = workbook.add_worksheet("Hives")
        for row, cells in enumerate((["Hive", "Honey"], ["A", 12], ["B", 15.5])):
            sheet.write_row(row, 0, cells)
        chart = workbook.add_chart({"type": "column"})
        chart.add_series({"name": "Honey of 2025", "categories": "=Hives!$A$2:$A$3", "values": "=Hives!$B$2:$B$3"})
        chart.set_title({"name": "Honey per hive"})
        sheet.insert_chart("D2", chart)
    assert texts(sheets.parse(out.getvalue(), 10**6)) == [
        "Hives", "Hive; Honey", "Hive: A; Honey: 12", "Hive: B; Honey: 15.5",
        "Chart: Honey per hive; series: Honey of 2025",
    ]  # fmt: skip


def test_headers_footers_and_merged_cells_of_an_open_document_text() -> None:
    assert texts(opendocument.parse((_FILES / "lease.odt").read_bytes())) == [
        "File number L-2231", "Draft of 3 May", "Lease", "The rent is 900 euro.",
        "Floor: Ground; Room: Kitchen; Area: 12", "Floor: Ground; Room: Hall; Area: 8",
        "Floor: First; Room: Bath; Area: 6", "Notary Hale, Bridge Street 4",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "part"), [("visitors.odp", "Object 1/content.xml"), ("lease.odt", "styles.xml")])
def test_a_damaged_part_is_told_or_costs_only_itself(name: str, part: str) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(_FILES / name) as source, zipfile.ZipFile(out, "w") as target:
        assert part in source.namelist()
        for member in source.namelist():
            target.writestr(member, b"<chart" if member == part else source.read(member))
    found = texts(opendocument.parse(out.getvalue()))
    assert "Visitors" in found or "The rent is 900 euro." in found
