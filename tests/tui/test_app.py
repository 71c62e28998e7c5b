"""What happens around the screens: imports, signals' exit codes, logging."""

from __future__ import annotations

import asyncio
import gc
import logging
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.events import Evidence, Finished
from desk_rag.errors import ModelNotFound
from desk_rag.tui import messages as m
from desk_rag.tui.app import DeskRagApp, run_with
from desk_rag.tui.logfile import log_to_file
from desk_rag.tui.turns.comparison import Comparison, TimedAnswer
from desk_rag.tui.widgets.answer_view import AnswerView
from tests.tui.conftest import Run, ask, screen_text, until
from tests.tui.scripted import FOLDERS, QUOTE, ScriptedBackend, answer

ROOT = Path(__file__).resolve().parents[2]


def test_importing_the_app_loads_nothing_heavy() -> None:
    """The window is drawn before the model loads, so its import must not wait for torch."""
    heavy = "{'torch', 'transformers', 'sentence_transformers', 'numpy', 'safetensors', 'hnswlib'}"
    code = f"import sys, desk_rag.tui.app; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_the_window_is_there_before_the_backend() -> None:
    import threading

    gate = threading.Event()
    app = DeskRagApp(ScriptedBackend(start_gate=gate), FOLDERS)
    async with app.run_test() as pilot:
        await pilot.pause()
        assert "Ask about your files" in screen_text(app)
        gate.set()


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        if handler not in before:
            root.removeHandler(handler)
            handler.close()
    for handler in before:
        if handler not in root.handlers:
            root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.mark.usefixtures("untouched_logging")
def test_log_file_is_private_and_rotates(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "logs"
    file = log_to_file(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for _ in range(30):
        logging.getLogger("desk_rag.test").warning("x" * 200_000)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    files = sorted(path.name for path in directory.iterdir())
    assert files == ["tui.log", "tui.log.1", "tui.log.2"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in directory.iterdir())
    assert not any(
        isinstance(h, logging.StreamHandler) and h.stream is sys.stderr for h in logging.getLogger().handlers
    )


def test_a_failed_start_gives_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend(start_error=ModelNotFound("none"))

    def headless(app: DeskRagApp, loop: asyncio.AbstractEventLoop) -> None:
        async def quit_when_failed(pilot) -> None:  # type: ignore[no-untyped-def]
            from tests.tui.conftest import until

            await until(pilot, lambda: app.failure is not None)
            app.exit(0)

        run(app, headless=True, auto_pilot=quit_when_failed, loop=loop)

    run = DeskRagApp.run
    monkeypatch.setattr(DeskRagApp, "run", headless)
    assert run_with(backend, FOLDERS) == 5
    assert backend.stops == 1


def test_leaving_does_not_wait_for_a_step_that_cannot_be_interrupted() -> None:
    """A long prefill must not keep the terminal's owner waiting; the exit code stays the one that was meant."""
    code = (
        "import sys, threading, time\n"
        "from desk_rag.tui.shutdown import leave_at_once, new_loop, threads_ended\n"
        "loop = new_loop()\n"
        "loop.run_in_executor(None, time.sleep, 60)\n"
        "loop.close()\n"
        "assert not threads_ended(0.2)\n"
        "leave_at_once(143)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30, check=False).returncode == 143


def test_idle_workers_count_as_ended() -> None:
    from desk_rag.tui.shutdown import new_loop, threads_ended

    loop = new_loop()
    loop.run_until_complete(loop.run_in_executor(None, lambda: None))
    loop.close()
    assert threads_ended(5.0)


async def test_what_arrives_of_an_answer_while_the_app_quits_is_let_go() -> None:
    """Nothing can be mounted then; the program ended with a traceback that held the document's text."""
    app = DeskRagApp(ScriptedBackend(), FOLDERS)
    async with app.run_test() as pilot:
        await ask(pilot, "When does the boiler warranty end?")
        view = app._chat.query_one(AnswerView)
        await until(pilot, lambda: view.over)
        app.exit(0)
        app._chat.on_answer_event_came(m.AnswerEventCame(view.turn, Evidence(QUOTE)))
        app._chat.on_answer_event_came(m.AnswerEventCame(view.turn, Finished(answer("Q", "A.", citations=(QUOTE,)))))
        timed = TimedAnswer(answer("Q", "A."), 0.2)
        app._chat.on_comparison_came(m.ComparisonCame(view.turn, Comparison(timed, timed)))
    assert app.return_code == 0 and len(view.citations) == 1


async def test_an_engine_that_does_not_start_again_is_told_while_no_question_waits() -> None:
    app = DeskRagApp(ScriptedBackend(), FOLDERS)
    async with app.run_test() as pilot:
        await ask(pilot, "When does the boiler warranty end?")
        await until(pilot, lambda: app._chat.query_one(AnswerView).over)
        app._chat.post_message(m.BackendFailed(m.Problem("It has ended.", "Choose another."), True))
        await until(
            pilot, lambda: any("It has ended. Choose another." in note.message for note in app._notifications), 5
        )
        assert "could not start" in screen_text(app)


@pytest.mark.parametrize("is_alone", [True, False])
async def test_the_garbage_collector_passes_over_what_was_loaded_if_nothing_else_runs_here(
    running: Run, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(DeskRagApp, "is_alone", is_alone)
    async with running(ScriptedBackend()) as pilot:
        await pilot.pause()
        assert frozen == [True] * is_alone
