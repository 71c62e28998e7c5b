"""Pictures of the screens at three sizes. After a wanted change: pytest tests/tui/test_snapshots.py --snapshot-update,
and look at what changed before keeping it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.metadata import version

import pytest
from textual.pilot import Pilot

from desk_rag.answering.events import Retrieved
from desk_rag.errors import ModelNotFound
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.themes import LIGHT
from desk_rag.tui.widgets.answer_view import AnswerView
from tests.tui.conftest import ask, text_of, until
from tests.tui.scripted import (
    FOLDERS,
    SOURCES,
    WARMING,
    ScriptedBackend,
    answer,
    hostile_backend,
    play,
)

pytestmark = pytest.mark.skipif(version("textual") != "8.2.8", reason="the pictures are of Textual 8.2.8")

SIZES = [(80, 24), (100, 30), (160, 48)]
Q = "when does the boiler warranty end?"
Snap = Callable[..., bool]


async def answered(pilot: Pilot[int], question: str = Q, turns: int = 1) -> None:
    await until(pilot, lambda: "·" in text_of(pilot.app, "#model"))
    await ask(pilot, question)
    await until(pilot, lambda: [view.over for view in pilot.app._chat.query(AnswerView)] == [True] * turns)
    await pilot.wait_for_animation()


@pytest.mark.parametrize("size", SIZES)
def test_welcome(snap_compare: Snap, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "watching" in text_of(pilot.app, "#status"))

    assert snap_compare(DeskRagApp(ScriptedBackend(), FOLDERS), terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES)
def test_answer(snap_compare: Snap, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[int]) -> None:
        await answered(pilot)
        await until(pilot, lambda: size[0] < 100 or "4.3 Claims" in text_of(pilot.app, "#after"))

    assert snap_compare(DeskRagApp(ScriptedBackend(), FOLDERS), terminal_size=size, run_before=before)


def test_sources_tab(snap_compare: Snap) -> None:
    async def before(pilot: Pilot[int]) -> None:
        await answered(pilot)
        await pilot.press("ctrl+b")
        await until(pilot, lambda: "4.3 Claims" in text_of(pilot.app, "#after"))

    assert snap_compare(DeskRagApp(ScriptedBackend(), FOLDERS), terminal_size=(80, 24), run_before=before)


@pytest.mark.parametrize("size", SIZES)
def test_both_times(snap_compare: Snap, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[int]) -> None:
        await answered(pilot)
        await pilot.press("f7")
        await until(pilot, lambda: "23 times" in text_of(pilot.app, ".bars"))
        await until(pilot, lambda: pilot.app._chat.query_one(AnswerView).over)

    assert snap_compare(DeskRagApp(ScriptedBackend(), FOLDERS), terminal_size=size, run_before=before)


def test_not_found_while_warming(snap_compare: Snap) -> None:
    final = answer(Q, "I could not find that in the documents.", found=False)

    async def before(pilot: Pilot[int]) -> None:
        await answered(pilot)
        await until(pilot, lambda: "waiting" in text_of(pilot.app, "#status"))

    app = DeskRagApp(ScriptedBackend({Q: play(final)}, now=WARMING), FOLDERS)
    assert snap_compare(app, terminal_size=(100, 30), run_before=before)


def test_streaming_with_a_question_waiting(snap_compare: Snap) -> None:
    gate = threading.Event()
    final = answer(Q, "The warranty ends on 14 March 2028.")
    steps = play(final)
    backend = ScriptedBackend({Q: [*steps[:6], gate, *steps[6:]], "new": [Retrieved(SOURCES)]})

    async def before(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "·" in text_of(pilot.app, "#model"))
        await ask(pilot, Q)
        await until(pilot, lambda: "warranty ends" in text_of(pilot.app, ".words"))
        await ask(pilot, "and who do I call?")
        await until(pilot, lambda: "waits for the answer above" in text_of(pilot.app, ".note"))
        await pilot.press(*"typing on")
        await pilot.pause()

    try:
        assert snap_compare(DeskRagApp(backend, FOLDERS), terminal_size=(100, 30), run_before=before)
    finally:
        gate.set()


def test_failed_start(snap_compare: Snap) -> None:
    error = ModelNotFound(
        "No weights in /models/nothing.", remedy="Name a directory with weights, or leave --model out."
    )

    async def before(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "could not start" in text_of(pilot.app, "#welcome"))

    app = DeskRagApp(ScriptedBackend(start_error=error), FOLDERS)
    assert snap_compare(app, terminal_size=(100, 30), run_before=before)


def test_hostile(snap_compare: Snap) -> None:
    async def before(pilot: Pilot[int]) -> None:
        await answered(pilot, "hostile")

    assert snap_compare(DeskRagApp(hostile_backend(), FOLDERS), terminal_size=(160, 48), run_before=before)


def test_help(snap_compare: Snap) -> None:
    async def before(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "watching" in text_of(pilot.app, "#status"))
        await pilot.press("f1")

    assert snap_compare(DeskRagApp(ScriptedBackend(), FOLDERS), terminal_size=(100, 30), run_before=before)


def test_light_theme(snap_compare: Snap) -> None:
    async def before(pilot: Pilot[int]) -> None:
        pilot.app.theme = LIGHT.name
        await answered(pilot)
        await until(pilot, lambda: "4.3 Claims" in text_of(pilot.app, "#after"))

    assert snap_compare(DeskRagApp(ScriptedBackend(), FOLDERS), terminal_size=(100, 30), run_before=before)


def test_no_color(snap_compare: Snap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def before(pilot: Pilot[int]) -> None:
        await answered(pilot)
        await until(pilot, lambda: "4.3 Claims" in text_of(pilot.app, "#after"))

    assert snap_compare(DeskRagApp(ScriptedBackend(), FOLDERS), terminal_size=(100, 30), run_before=before)
