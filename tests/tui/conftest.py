"""How the UI tests run an app: without colour settings of the machine, with clocks that stand still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from desk_rag.tui import app
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.turns import comparison
from desk_rag.tui.widgets import answer_view
from desk_rag.tui.widgets.answer_text import AnswerText
from tests.tui.scripted import CLOCK, FOLDERS, ScriptedBackend

Run = Callable[..., AbstractAsyncContextManager[Pilot[int]]]


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same picture on every machine."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(TextArea.cursor_blink, "_default", False)
    monkeypatch.setattr(Input.cursor_blink, "_default", False)
    monkeypatch.setattr(app, "_RESTING_SECONDS", 0.2)
    for module in (answer_view, comparison):
        monkeypatch.setattr(module, "perf_counter", CLOCK)


@pytest.fixture
def running() -> Run:
    """Run an app on a scripted backend, ready to be asked."""

    @asynccontextmanager
    async def run(
        backend: ScriptedBackend, size: tuple[int, int] = (118, 32), ready: bool = True
    ) -> AsyncIterator[Pilot[int]]:
        window = DeskRagApp(backend, FOLDERS)
        async with window.run_test(size=size, notifications=True) as pilot:
            if ready:
                await until(pilot, lambda: "·" in text_of(window, "#model"))
            yield pilot
        assert backend.start_gate is None or backend.start_gate.is_set()

    return run


def text_of(app: DeskRagApp, selector: str) -> str:
    """The plain text of every matching Static, or answer text, on the chat screen, top to bottom."""
    from textual.widgets import Static

    shown = [widget for widget in app._chat.query(selector) if widget.display]
    return "\n".join(
        widget.text if isinstance(widget, AnswerText) else str(widget.visual)
        for widget in shown
        if isinstance(widget, AnswerText | Static)
    )


def screen_text(app: DeskRagApp) -> str:
    """What the terminal shows now, row by row."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[int], condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Let the app run until `condition` holds; fails after `seconds`."""
    for _ in range(int(seconds / 0.02)):
        await pilot.pause(0.02)
        if condition():
            await pilot.pause()
            return
    raise AssertionError(f"did not happen within {seconds} s; the screen:\n{screen_text(pilot.app)}")  # type: ignore[arg-type]


async def ask(pilot: Pilot[int], question: str) -> None:
    """Type a question and send it."""
    from desk_rag.tui.widgets.question_input import QuestionInput

    prompt = pilot.app.screen.query_one(QuestionInput)
    prompt.focus()
    prompt.text = question
    await pilot.press("enter")
