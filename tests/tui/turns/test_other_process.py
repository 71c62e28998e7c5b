"""Answers through a process that watches and has the models loaded, until this one has loaded its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.events import Finished
from desk_rag.config import Settings
from desk_rag.tui.backend import Started
from desk_rag.tui.live_backend import LiveBackend
from desk_rag.tui.management.session import Session
from desk_rag.tui.widgets.answer_view import AnswerView
from tests.tui.conftest import Run, ask, text_of, until
from tests.tui.scripted import ScriptedBackend
from tests.tui.terminal import ROOT

Q = "What colour is the kitchen door?"
_BORROWS = """
import sys
from pathlib import Path
from desk_rag.config import Settings
from desk_rag.tui.live_backend import LiveBackend
from desk_rag.tui.management.session import Session
backend = LiveBackend(Session(Settings(data_dir=Path(sys.argv[1])), [Path(sys.argv[2])]))
print(backend.borrow().device)
status = backend.status()
print(status.files, status.writer, status.with_vectors == status.chunks)
print(list(backend.ask(sys.argv[3], lambda: False))[-1].answer.text)
print("torch" in sys.modules)
backend.stop()
"""


async def test_a_question_is_asked_of_it_before_the_model_is_loaded(running: Run) -> None:
    gate = threading.Event()
    backend = ScriptedBackend(start_gate=gate, borrowed=Started("embedded reader", "process 7 answers"))
    async with running(backend, ready=False) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "14 March 2028" in text_of(app, ".words"))
        assert "process 7 answers" in text_of(app, "#model")
        gate.set()
        await until(pilot, lambda: text_of(app, "#model").strip() == "embedded reader · CPU")
        assert app._chat.query_one(AnswerView).over
        assert "loading" not in text_of(app, "#status")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, subprocess.Popen[str]]]:
    """A real `desk-rag watch` that has read its folder."""
    root = tmp_path_factory.mktemp("watched")
    docs, data = root / "docs", root / "data"
    docs.mkdir()
    (docs / "doors.md").write_text("# Doors\n\nThe kitchen door is painted green. The front door is painted black.\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "desk_rag", "watch", str(docs), "--data-dir", str(data)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(("vectors 1/1", "up to date")):
            break
    yield docs, data, process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_watch_answers_and_the_screen_loads_no_libraries_for_it(
    watched: tuple[Path, Path, subprocess.Popen[str]],
) -> None:
    docs, data, process = watched
    done = subprocess.run(
        [sys.executable, "-c", _BORROWS, str(data), str(docs), Q], cwd=ROOT, capture_output=True, text=True, check=True
    )
    device, counts, answer, has_torch = done.stdout.splitlines()
    assert device == f"process {process.pid} answers while this one loads"
    assert counts == f"1 {process.pid} True"
    assert "green" in answer and has_torch == "False"


@pytest.mark.slow
def test_indexing_stays_with_the_watch_and_its_end_loses_no_question(
    watched: tuple[Path, Path, subprocess.Popen[str]],
) -> None:
    docs, data, process = watched
    settings = Settings(data_dir=data)
    other_model = settings.model_copy(update={"answer": settings.answer.model_copy(update={"max_new_tokens": 7})})
    assert LiveBackend(Session(other_model, [docs])).borrow() is None, "it would answer otherwise than this one"
    backend = LiveBackend(Session(settings, [docs]))
    assert backend.borrow() is not None
    starting = threading.Thread(target=backend.start, args=(lambda text: None, lambda event: None))
    try:
        events = backend.ask(Q, lambda: False)  # asked of it when the first event is wanted
        process.kill()
        process.wait()
        starting.start()
        last = list(events)[-1]
        assert isinstance(last, Finished) and "green" in last.answer.text
        starting.join(60)
        assert not starting.is_alive() and "green" in list(backend.ask(Q, lambda: False))[-1].answer.text  # type: ignore[union-attr]
    finally:
        backend.stop()
