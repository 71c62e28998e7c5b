"""Quotes that open with a dash: a list's line is found, and a minus is no list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering.events import Source
from desk_rag.answering.evidence.quote_matching import QuoteFinder
from desk_rag.documents.chunking import ChunkId
from desk_rag.documents.location import Location, Part

TEXT = (
    "The saddle\n- tyres 3.2 front, 3.8 rear\n- cable of the well-\nknown kind\nIt was 5 degrees outside\n"
    "- boats at sea."
)
PLACE = Location("", None, None, 1, 6, parts=(Part(0, None, 1, 6),))
SOURCE = Source(1, ChunkId("0" * 32), Path("/a.txt"), "", PLACE, TEXT, 1.0, True, False)


@pytest.mark.parametrize(
    ("quote", "found", "line"),
    [
        ("- tyres 3.2 front, 3.8 rear", "tyres 3.2 front, 3.8 rear", 2),
        ("- boats at sea.", "boats at sea.", 6),
        ("- tyres 3.2 front, 3.8 rear.", "tyres 3.2 front, 3.8 rear", 2),
        ("- cable of the wellknown kind", "cable of the well-\nknown kind", 3),
        ("It was 5 degrees outside", "It was 5 degrees outside", 5),
    ],
)
def test_a_line_of_a_list_is_found(quote: str, found: str, line: int) -> None:
    citation = QuoteFinder([SOURCE]).find(quote)
    assert citation is not None
    assert citation.quote == found and citation.location.line_start == line


@pytest.mark.parametrize(
    ("quote", "found", "line"),
    [
        ("Fear of Death \u2014", "Fear of Death", 1),
        ("Total cost -", "Total cost", 3),
        ("the docu-", "the docu", 4),
        ("- the docu-.", "the docu", 4),
    ],
)
def test_a_dash_that_closes_a_line_is_no_hindrance(quote: str, found: str, line: int) -> None:
    text = "Fear of Death \u2014\nHe had none\nTotal cost -\n- the docu-\nment says"
    source = replace(SOURCE, text=text, location=Location("", None, None, 1, 5, parts=(Part(0, None, 1, 5),)))
    citation = QuoteFinder([source]).find(quote)
    assert citation is not None
    assert citation.quote == found and citation.location.line_start == line


@pytest.mark.parametrize("quote", ["-5 degrees outside", "- tyres 3.2 front, 3.9 rear", "-- tyres 3.2 rear"])
def test_nothing_else_is(quote: str) -> None:
    assert QuoteFinder([SOURCE]).find(quote) is None


@pytest.mark.parametrize(
    ("quote", "found"),
    [
        ('"The Salt Path" to Beatriz, March 2026', '"The Salt Path" to Beatriz, March 2026'),
        ("The Salt Path", "The Salt Path"),
        ('lent to Callum: "A Pattern Language"', 'lent to Callum: "A Pattern Language"'),
        ("«Middlemarch» to Nadia", "«Middlemarch» to Nadia"),
        ("a board of 12", "a board of 12"),
    ],
)
def test_a_quote_keeps_both_marks_of_a_title(quote: str, found: str) -> None:
    lines = (
        '"The Salt Path" to Beatriz, March 2026', 'lent to Callum: "A Pattern Language"', "«Middlemarch» to Nadia",
        'a board of 12" width',
    )  # fmt: skip
    text = "\n".join(lines)
    citation = QuoteFinder([replace(SOURCE, text=text)]).find(quote)
    assert citation is not None and citation.quote == found
