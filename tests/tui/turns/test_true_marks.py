"""Marks and times that are still true later: files that change after an answer, and a wait before it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering.events import Absence, Missing
from desk_rag.answering.writing.remarks import stale_notice
from desk_rag.tui.screens import turn_screen
from desk_rag.tui.turns.source_files import compared
from desk_rag.tui.widgets.answer_view import AnswerView
from tests.tui.conftest import Run, ask, text_of, until
from tests.tui.scripted import CLOCK, QUOTE, SOURCES, ScriptedBackend, answer, play

Q = "when does the boiler warranty end?"


def read(file: Path) -> tuple[int, int, int]:
    """What the index notes of a file."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def test_the_state_of_a_file_is_what_it_is_now(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    file = folder / "a.md"
    file.write_text("one")
    source = replace(SOURCES[0], path=file, file=read(file), indexed_at=1e9)
    unknown = SOURCES[2]
    assert compared((source, unknown), [folder]) == (source, unknown)
    file.write_text("other")
    (changed,) = compared((source,), [folder])
    assert stale_notice(changed) == "its file has changed since it was read"
    file.unlink()
    (gone,) = compared((changed,), [folder])
    assert stale_notice(gone) == "its file is gone; from the index of 2001-09-09"
    folder.rmdir()
    (away,) = compared((gone,), [folder])
    assert away.absence == Absence(Missing.FOLDER_AWAY, 1e9)
    assert Absence(Missing.FILE_GONE, 0.0).notice == "its file is gone"


async def test_an_answer_is_marked_when_its_file_changes_later_and_unmarked_when_it_is_back(
    running: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_screen, "_COMPARE_SECONDS", 0.1)
    file = tmp_path / "boiler.md"
    file.write_text("The warranty ends in 2028.")
    source = replace(SOURCES[0], path=file, file=read(file), indexed_at=1e9)
    final = answer(Q, "In 2028 [1].", sources=(source,), citations=(replace(QUOTE, path=file),))
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: [view.over for view in app._chat.query(AnswerView)] == [True])
        await ask(pilot, "another question")
        await until(pilot, lambda: [view.over for view in app._chat.query(AnswerView)] == [True, True])
        assert "[1]" not in text_of(app, ".note")
        file.rename(tmp_path / "elsewhere.md")
        await pilot.press("alt+up")
        await until(pilot, lambda: "! [1] its file is gone; from the index of 2001-09-09" in text_of(app, ".note"))
        (tmp_path / "elsewhere.md").rename(file)
        await until(pilot, lambda: "[1]" not in text_of(app, ".note"))


async def test_a_wait_before_the_question_is_asked_is_told_apart(running: Run) -> None:
    gate = threading.Event()
    async with running(ScriptedBackend(start_gate=gate), ready=False) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "waits for the model" in text_of(app, ".note"))
        CLOCK.now += 48
        gate.set()
        await until(pilot, lambda: "quotes from" in text_of(app, "TimingLine"))
        assert text_of(app, "TimingLine").startswith("waited 48 s · first word after 0.19 s · ")
        await ask(pilot, Q)
        await until(pilot, lambda: text_of(app, "TimingLine").count("quotes from") == 2)
        assert text_of(app, "TimingLine").count("waited") == 1
