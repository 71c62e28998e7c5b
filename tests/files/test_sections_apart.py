"""Sheets of a workbook and messages of a mailbox keep their own names and places, however small they are."""

from __future__ import annotations

import io
import mailbox
from dataclasses import replace
from pathlib import Path

import openpyxl
import pytest

from desk_rag.config import IndexSettings
from desk_rag.documents.chunking import Chunk, ChunkSize, split
from desk_rag.documents.document import Document, parse
from desk_rag.documents.formats import place_units
from tests.documents import desk_files

_SETTINGS = IndexSettings(parser_seconds=20)


class _Words:
    def count(self, text: str) -> int:
        return len(text.split())


def chunks(document: Document) -> list[Chunk]:
    return split(document, _Words(), ChunkSize(20, 60, 120))


def place(document: Document, chunk: Chunk) -> str:
    return str(replace(chunk.location, units=place_units(document.source.path.name)))


@pytest.fixture
def budget(tmp_path: Path) -> Document:
    """Two sheets of the same shape."""
    workbook = openpyxl.Workbook()
    for year, rent in (("2023", 900), ("2024", 950)):
        sheet = workbook.active if year == "2023" else workbook.create_sheet()
        sheet.title = f"Budget {year}"
        for row in (("Item", "Month", "Price"), ("Rent", "May", rent), ("Food", "May", 300)):
            sheet.append(row)
    out = io.BytesIO()
    workbook.save(out)
    (tmp_path / "budget.xlsx").write_bytes(out.getvalue())
    return parse(tmp_path / "budget.xlsx", _SETTINGS)


def test_sheets_of_the_same_shape_are_told_apart(budget: Document) -> None:
    first, second = chunks(budget)
    assert first.text.splitlines()[0] == "Budget 2023" and second.text.splitlines()[0] == "Budget 2024"
    assert "Sheet: Budget 2024; Item: Rent; Month: May; Price: 950" in second.text
    assert place(budget, second) == "Budget 2024, rows 1-3"


def test_a_workbook_of_one_sheet_names_it_once(tmp_path: Path) -> None:
    (tmp_path / "trip.ods").write_bytes(desk_files.ods())
    (chunk,) = chunks(parse(tmp_path / "trip.ods", _SETTINGS))
    assert chunk.text.count("Harvest") == 1


def test_every_message_of_a_mailbox_has_its_own_chunk_and_place(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "inbox.mbox")
    for day, (subject, body) in enumerate((("Boiler", "It works."), ("Key", "Below the pot."), ("Dog", "Fed.")), 1):
        box.add(desk_files.message(subject, body, day=day))
    box.flush()
    document = parse(tmp_path / "inbox.mbox", _SETTINGS)
    parts = chunks(document)
    assert [chunk.text.splitlines()[0] for chunk in parts] == [
        "Ana Novak, 1 May 2025: Boiler", "Ana Novak, 2 May 2025: Key", "Ana Novak, 3 May 2025: Dog"]  # fmt: skip
    assert place(document, parts[0]) == "Ana Novak, 1 May 2025: Boiler"
    assert document.title == ""


def test_a_message_in_a_mailbox_of_thunderbird_is_named_by_its_sender(tmp_path: Path) -> None:
    sent = "From - Tue Jun 02 10:11:12 2026\nX-Mozilla-Status: 0001\nFrom: Ida <i@x.org>\nSubject: Heating\nDate: "
    (tmp_path / "Sent").write_text(f"{sent}Tue, 2 Jun 2026 10:11:12 +0200\n\nThe radiator is cold.\n")
    document = parse(tmp_path / "Sent", _SETTINGS)
    (chunk,) = chunks(document)
    assert place(document, chunk) == "Ida, 2 June 2026: Heating"


@pytest.mark.parametrize("separator", ["From sender@example", "From - ", "From ana@example.org on Monday", "From ana"])
def test_messages_are_read_apart_where_separators_have_no_date(tmp_path: Path, separator: str) -> None:
    mails = [
        desk_files.message("Fair", "Colin runs the stall.\n\nFrom noon on we sell cakes.\nFrom: the school\n", day=3),
        desk_files.message("Re: Fair", "Ida runs the stall.", sender="Ida Holt <ida@example.org>", day=9),
    ]
    text = "\n".join(f"{separator}\n{bytes(mail).decode()}" for mail in mails)
    (tmp_path / "fair.mbox").write_text(text.replace("\r\n", "\n"), encoding="utf-8")
    document = parse(tmp_path / "fair.mbox", _SETTINGS)
    places = {place(document, chunk): chunk.text for chunk in chunks(document)}
    assert list(places) == ["Ana Novak, 3 May 2025: Fair", "Ida Holt, 9 May 2025: Re: Fair"]
    assert "Ida runs" in places["Ida Holt, 9 May 2025: Re: Fair"]
    assert "From noon on we sell cakes." in places["Ana Novak, 3 May 2025: Fair"]
