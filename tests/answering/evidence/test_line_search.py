"""The lines of a quote are found in its file, whatever was taken out or reworded, and nothing is guessed."""

from __future__ import annotations

import pytest

from desk_rag.answering.evidence.citation_check import lines_of


@pytest.mark.parametrize(
    ("quote", "text", "lines"),
    [
        ("It was built in 1998.", "# Weir\n\nThe weir is old. It was\nbuilt in *1998*.\nEnd.\n", (3, 4)),
        ("Dog: Freya; Chip: 9944; Owner: Tom", "Dog;Chip;Owner\nBalder;9812;Ida\nFreya;9944;Tom\n", (3, 3)),
        ("database.port: 6543", "cache:\n  port: 6380\ndatabase:\n  name: x\n  port: 6543\n", (5, 5)),
        (
            "members: name: Ida; phone: 555",
            '[\n {\n  "name": "Ida",\n  "phone": "555"\n },\n {"name": "Tom"}\n]\n',
            (3, 4),
        ),
    ],
)
def test_lines_of_a_quote(quote: str, text: str, lines: tuple[int, int]) -> None:
    assert lines_of(quote, text, 2, text.count("\n")) == lines


def test_a_quote_that_stands_twice_or_nowhere_has_no_lines() -> None:
    assert lines_of("It rained.", "It rained.\n\nIt rained.\n", 1, 3) is None
    assert lines_of("The sun shone all day.", "It rained.\n\nWe left.\n", 1, 3) is None


def test_a_row_as_good_as_another_has_no_lines() -> None:
    assert lines_of("Dog: Freya; Chip: 9944", "Dog;Chip\nFreya;9944\n", 1, 2) is None


def test_only_the_lines_of_the_chunk_are_looked_through() -> None:
    assert lines_of("It rained.", "It rained.\n\nIt rained.\n", 2, 3) == (3, 3)
