"""Values as the user reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.content import Content

from desk_rag.documents.status import IndexStage
from desk_rag.store.types import Counts
from desk_rag.tui.backend import Freshness, Status
from desk_rag.tui.management.cache import room_missing
from desk_rag.tui.terminal.plain import to_ascii
from desk_rag.tui.widgets.index_status import MOST_DETAIL, line
from desk_rag.tui.wording import (
    MOST_CHARS,
    about,
    brief,
    count,
    fit,
    fit_path,
    gib,
    hanging,
    mark,
    notice,
    percent,
    safe,
    seconds,
    short_path,
)
from tests.tui.scripted import SOURCES, WARMING, WATCHING


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
    assert short_path(one / "a\x1b[31mred\n.md", [one]) == "a⟨ESC⟩red⟨U+000A⟩.md"


@pytest.mark.parametrize("width", [1, 5, 12, 20, 60])
@pytest.mark.parametrize(
    "text", ["short.md", "very/long/folder/names/here/report.pdf", "漢字/かな交じり文書.md", "x" * 100]
)
def test_fit_path_is_exactly_as_wide_as_asked(text: str, width: int) -> None:
    assert fit_path(text, width).cell_length == width


def test_fit_path_keeps_the_name() -> None:
    assert fit_path("very/long/folder/report.pdf", 20).plain == "…/folder/report.pdf "
    assert fit_path("very/long/reports/", 12).plain == "…/reports/  "
    assert fit_path("a folder with a long name/", 12).plain == "a folder wi…"


def test_fit_pads_and_cuts() -> None:
    assert fit(Content("ab"), 4).plain == "ab  "
    assert fit(Content("abcdef"), 4).plain == "abc…"


def test_safe_bounds_and_keeps_markup_literal() -> None:
    assert safe("[b]x[/b] [/]").plain == "[b]x[/b] [/]"
    assert safe("[b]x[/b]").spans == []
    assert len(safe("z" * 10 * MOST_CHARS)) == MOST_CHARS + 2


def bar(status: Status, said: str = "", width: int = 78) -> str:
    """The fullest text that fits, as the widget chooses it."""
    choices = [line(status, said, detail) for detail in range(MOST_DETAIL, -1, -1)]
    return next(choice.plain for choice in choices if choice.cell_length <= width)


def test_status_bar_in_words() -> None:
    assert bar(WATCHING, width=118) == (
        "● watching · 3 failed · 12,431 files · found by meaning 100% · read ahead 61% · disk 38 GiB of 60 GiB"
    )
    moving = replace(WARMING, waiting="")
    assert "filling caches 900 of 32,000, 2 h left" in bar(moving, width=118)
    assert "caches wait: the GPU is busy; questions are answered" in bar(WARMING, width=118)
    assert bar(Status(Freshness.UNATTENDED), width=118).startswith("○ not watching · 0 files")
    assert bar(Status(), "loading the model") == "◌ loading the model"


def test_status_bar_names_the_other_process() -> None:
    watching = replace(WATCHING, writer=4321)
    assert bar(watching, width=118).startswith("● another process (pid 4321) is watching · 3 failed · 12,431 files")
    assert " questions are answered (by pid 4321) · " in bar(replace(WARMING, writer=4321), width=138)
    ended = replace(watching, freshness=Freshness.UNATTENDED)
    assert bar(ended, width=118).startswith("○ another process (pid 4321) was watching and has ended · ")


@pytest.mark.parametrize("stage", list(IndexStage))
@pytest.mark.parametrize("width", [38, 58, 78])
def test_status_bar_never_drops_what_needs_attention(stage: IndexStage, width: int) -> None:
    status = replace(WARMING, stage=stage, waiting="", files=1_234_567, failed=1_000)
    assert "1,000 failed" in bar(status, width=width)
    gone = replace(WATCHING, absent=(Path("/media/stick"),), failed=1)
    shown = bar(gone, notice(gone), width=78)
    assert shown.startswith("! stick is not there now; nothing of it is removed · 1 failed")


def test_status_bar_at_80_columns_is_in_words() -> None:
    assert bar(WATCHING) == "● watching · 3 failed · 12,431 files · found by meaning 100% · read ahead 61%"
    assert bar(replace(WARMING, failed=3)) == "◐ caches wait: the GPU is busy · 3 failed · 12.4k files"


def test_a_full_disk_is_said_before_all_else() -> None:
    full = "disk full: 9,000 chunks without cache, so answers are slower"
    status = replace(WATCHING, no_caches=full, absent=(Path("/x"),))
    assert notice(status) == f"! {full}"
    assert bar(status, notice(status)) == f"! {full} · 3 failed", "80 columns hold all of it"


def test_room_is_missing_only_where_the_disk_is_the_limit() -> None:
    counts = Counts(files=3, failed=0, skipped=0, chunks=9, with_vectors=9, warm=0, kv_bytes=0, budget_bytes=0)
    assert room_missing(counts, 20.0) == "disk full: 9 chunks without cache, so answers are slower"
    assert room_missing(replace(counts, warm=9), 20.0) == ""
    assert room_missing(replace(counts, budget_bytes=20 * 1024**3), 20.0) == ""
    room = replace(counts, warm=3, kv_bytes=3 * 2**20, budget_bytes=2**30)
    assert room_missing(room, 20.0) == "", "there is room for more"
    assert room_missing(replace(room, budget_bytes=3 * 2**20), 20.0).startswith("disk full: 6 chunks")
    eager = replace(room, budget_bytes=int(3.5 * 2**20))
    assert room_missing(eager, 20.0).startswith("disk full: 6 chunks"), "no cache is made for the fifth that is left"


def test_a_source_that_no_model_read_is_neither_warm_nor_cold() -> None:
    assert [mark(replace(SOURCES[0], stale=False, warm=warm))[0] for warm in (True, False, None)] == ["●", "○", "·"]


def test_a_text_is_wrapped_beside_its_label() -> None:
    said = hanging(Content(" kept in  "), Content("one two three four"), 20)
    assert said.plain == " kept in  one two\n          three four"


def test_cut_paths_and_work_that_goes_on_keep_their_meaning_in_ascii() -> None:
    assert to_ascii("…/notes.md  loading …   ") == "*/notes.md  loading ... "
    assert to_ascii("a long na…") == "a long na~"
    assert to_ascii("▂▄▆") == "   ", "the ends of a scrollbar"
    assert to_ascii("↳ asked as: …") == "> asked as: ~"
