"""Notices outside the window when something long has ended, for those who want them."""

from __future__ import annotations

import pytest

from desk_rag.config import UISettings
from desk_rag.documents.status import IndexStage
from desk_rag.ingest.events import IndexFinished, StageProgress
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.management.session import Session
from desk_rag.tui.terminal import notices
from desk_rag.tui.terminal.notices import LongWork, signal_of
from tests.tui.conftest import Run, ask, text_of, until
from tests.tui.scripted import FOLDERS, NOWHERE, ScriptedBackend


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(notices, "monotonic", lambda: now[0])
    return now


def test_only_long_answers_are_signalled(clock: list[float]) -> None:
    work = LongWork()
    work.asked()
    clock[0] += notices.LONG_ANSWER_SECONDS - 1
    assert work.answered() == ""
    clock[0] += 1
    assert work.answered() == "desk-rag: the answer is there"


def test_only_long_rounds_of_reading_are_signalled(clock: list[float]) -> None:
    work, finished = LongWork(), IndexFinished(0, 0, 0, 0, 0, 0, 0, 0.0)
    reading = StageProgress(IndexStage.WORDS, 1, 9, "files", 1.0, 8.0)
    warming = StageProgress(IndexStage.WARM, 1, 9, "chunks", 1.0, 8.0)
    for event, notice in ((reading, ""), (warming, "")):
        work.indexed(event)
        clock[0] += notices.LONG_INDEX_SECONDS
        assert work.indexed(event) == notice
    assert work.indexed(finished) == "desk-rag: the files are read"
    assert work.indexed(finished) == "", "once a round"
    work.indexed(warming)
    clock[0] += notices.LONG_INDEX_SECONDS
    assert work.indexed(finished) == "", "filling caches is no reading"


def test_what_is_written_to_the_terminal() -> None:
    assert signal_of("bell", "done") == "\a"
    assert signal_of("osc9", "done") == "\x1b]9;done\x1b\\"
    assert signal_of("off", "done") == signal_of("bell", "") == ""


@pytest.mark.parametrize(("kind", "written"), [("bell", "\a"), ("osc9", "\x1b]9;desk-rag: the answer"), ("off", "")])
async def test_the_end_of_a_long_answer_reaches_the_terminal(
    running: Run, monkeypatch: pytest.MonkeyPatch, kind: str, written: str
) -> None:
    monkeypatch.setattr(notices, "LONG_ANSWER_SECONDS", 0.0)
    settings = NOWHERE.model_copy(update={"ui": UISettings(notify=kind)})  # type: ignore[arg-type]
    backend = ScriptedBackend(session=Session(settings, FOLDERS, NOWHERE.data_dir / "config.toml"))
    sent: list[str] = []
    async with running(backend) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp) and app._driver is not None
        monkeypatch.setattr(app._driver, "write", sent.append)
        await ask(pilot, "how long?")
        await until(pilot, lambda: "first word" in text_of(app, "TimingLine"))
        await until(pilot, lambda: app._chat._answering is None)
    signals = [text for text in sent if text.startswith(("\a", "\x1b]9"))]
    assert (signals[0].startswith(written) if written else not signals) and len(signals) == bool(written)
