"""Values as the user reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.content import Content

from desk_rag.documents.status import IndexStage
from desk_rag.tui.backend import Freshness, Status
from desk_rag.tui.widgets.index_status import line
from desk_rag.tui.wording import MOST_CHARS, about, brief, count, fit, fit_path, gib, percent, safe, seconds, short_path
from tests.tui.scripted import WARMING, WATCHING


@pytest.mark.parametrize(("value", "text"), [(0.004, "0.00 s"), (0.19, "0.19 s"), (4.31, "4.3 s"), (12.4, "12 s")])
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.2, "1 s"), (42, "42 s"), (90, "2 min"), (7_300, "2 h"), (400_000, "5 days")]
)
def test_about(value: float, text: str) -> None:
    assert about(value) == text


def test_counts_and_sizes() -> None:
    assert [count(n, "file") for n in (0, 1, 12_431)] == ["0 files", "1 file", "12,431 files"]
    assert [brief(n) for n in (950, 1_000, 12_431, 3_100_000)] == ["950", "1k", "12.4k", "3.1M"]
    assert [gib(n) for n in (0, 12 * 1024**2, 1024**3 * 3 // 2, 38 * 1024**3)] == [
        "0 MiB",
        "12 MiB",
        "1.5 GiB",
        "38 GiB",
    ]
    assert [percent(*pair) for pair in ((0, 0), (999, 1000), (5, 5))] == [0, 99, 100]


def test_short_path() -> None:
    one, two = Path("/home/ada/Notes"), Path("/mnt/Papers")
    assert short_path(one / "a" / "b.md", [one]) == "a/b.md"
    assert short_path(two / "p.pdf", [one, two]) == "Papers/p.pdf"
    assert short_path(Path("/else/x.md"), [one]) == "/else/x.md"
    assert short_path(one / "a\x1b[31m\n.md", [one]) == "a .md"


@pytest.mark.parametrize("width", [1, 5, 12, 20, 60])
@pytest.mark.parametrize(
    "text", ["short.md", "very/long/folder/names/here/report.pdf", "漢字/かな交じり文書.md", "x" * 100]
)
def test_fit_path_is_exactly_as_wide_as_asked(text: str, width: int) -> None:
    assert fit_path(text, width).cell_length == width


def test_fit_path_keeps_the_name() -> None:
    assert fit_path("very/long/folder/report.pdf", 20).plain == "…/folder/report.pdf "


def test_fit_pads_and_cuts() -> None:
    assert fit(Content("ab"), 4).plain == "ab  "
    assert fit(Content("abcdef"), 4).plain == "abc…"


def test_safe_bounds_and_keeps_markup_literal() -> None:
    assert safe("[b]x[/b] [/]").plain == "[b]x[/b] [/]"
    assert safe("[b]x[/b]").spans == []
    assert len(safe("z" * 10 * MOST_CHARS)) == MOST_CHARS + 2


def test_status_bar_in_words() -> None:
    assert line(WATCHING, "", 3).plain == (
        "● watching · 12,431 files · 3 failed · vectors 100% · warm 61% · cache 38 GiB of 60 GiB"
    )
    moving = replace(WARMING, waiting="")
    assert "warming chunks 900 of 32,000, 2 h left" in line(moving, "", 3).plain
    assert "waiting: the GPU is busy (43 %)" in line(WARMING, "", 3).plain
    assert line(replace(WATCHING, writer="process 4321"), "", 3).plain.startswith("● watching by process 4321 · ")
    assert line(Status(Freshness.UNATTENDED), "", 3).plain.startswith("○ not watching · 0 files")
    assert line(Status(), "loading the model", 3).plain == "◌ loading the model"


@pytest.mark.parametrize("stage", list(IndexStage))
def test_status_bar_fits_80_columns(stage: IndexStage) -> None:
    status = replace(WARMING, stage=stage, waiting="", files=1_234_567, failed=1_000)
    assert line(status, "", 0).cell_length <= 78
    assert line(WATCHING, "", 0).plain == "● watching · 12.4k · v100 k61 · 38GiB"
