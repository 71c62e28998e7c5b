"""A cited file is asked itself: unchanged, changed with the quote in it or without, gone, or not to be read."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering.events import AnswerText, Citation, Evidence, Source
from desk_rag.answering.evidence.citation_check import CitationCheck
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
    assert checked.as_of == READ_AT and checked.origin.startswith("from the index of 2026-09-")


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
