"""A cited file is asked itself: unchanged, changed with the quote in it or without, gone, or not to be read."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering.events import AnswerText, Citation, Evidence, Source
from desk_rag.answering.evidence.citation_check import CitationCheck, lines_of
from desk_rag.documents.chunking import ChunkId, Location

TEXT = "# Boiler\n\nThe yearly service costs\n128 crowns.\n"
QUOTE = "The yearly service costs 128 crowns."
READ_AT = 1_790_000_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "boiler.md"
    path.write_text(TEXT, encoding="utf-8")
    return path


def source(path: Path, *, digest: str | None = None) -> Source:
    now = path.stat()
    known = hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()
    where = Location("Boiler", None, None, 3, 4)
    return Source(
        1, ChunkId("0" * 32), path, "Boiler", where, QUOTE, 1.0, True, False,
        known if digest is None else digest, (now.st_size, now.st_mtime_ns, now.st_ino), READ_AT,
    )  # fmt: skip


def citation(of: Source) -> Citation:
    return Citation(1, of.path, of.location, QUOTE)


def test_an_unchanged_file_holds_its_quotes_whatever_its_time(file: Path) -> None:
    known = source(file)
    os.utime(file, ns=(1, 1))
    check = CitationCheck([known])
    assert check.citation(citation(known)) == citation(known)
    assert check.event(AnswerText("x")) == AnswerText("x")


def test_a_quote_that_moved_gets_its_present_lines(file: Path) -> None:
    known = source(file)
    file.write_text("A new first line.\n\n" + TEXT, encoding="utf-8")
    event = CitationCheck([known]).event(Evidence(citation(known)))
    assert isinstance(event, Evidence)
    assert (event.citation.location.line_start, event.citation.location.line_end) == (5, 6)
    assert event.citation.origin == ""


@pytest.mark.parametrize("now", ["928 crowns.", "128 crownsfold."])
def test_a_quote_that_the_file_no_longer_holds_is_from_the_index(file: Path, now: str) -> None:
    known = source(file)
    times = file.stat()
    file.write_text(TEXT.replace("128 crowns.", now), encoding="utf-8")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # not even its time has changed
    checked = CitationCheck([known]).citation(citation(known))
    assert checked.as_of == READ_AT and checked.origin.startswith("no longer in the file; from the index of 2026-09-")


def test_a_file_that_cannot_be_read_leaves_the_quote_to_the_index(file: Path) -> None:
    known = source(file)
    file.unlink()
    assert CitationCheck([known]).citation(citation(known)).as_of == READ_AT
    os.mkfifo(file)
    assert CitationCheck([known]).citation(citation(known)).as_of == READ_AT
    assert CitationCheck([known], seconds=0.0).citation(citation(known)).as_of == READ_AT


def test_a_large_file_is_asked_for_its_identity(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("desk_rag.answering.evidence.citation_check._MOST_BYTES", 10)
    known = source(file)
    assert CitationCheck([known]).citation(citation(known)).as_of is None
    other = replace(known, file=(known.file[0], known.file[1], known.file[2] + 1))
    assert CitationCheck([other]).citation(citation(known)).as_of == READ_AT


def test_a_changed_file_that_is_no_text_is_not_searched(file: Path) -> None:
    pdf = file.with_suffix(".pdf")
    pdf.write_text(TEXT, encoding="utf-8")
    known = source(pdf, digest="0" * 64)
    assert CitationCheck([known]).citation(citation(known)).as_of == READ_AT


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
