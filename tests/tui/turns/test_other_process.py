"""Answers by a process that watches and has the models loaded; an engine of this UI once that has ended."""

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
from desk_rag.tui.live_backend import LiveBackend
from desk_rag.tui.management.session import Session
from desk_rag.tui.turns.other_process import OtherProcess
from tests.tui.terminal import ROOT

Q = "What colour is the kitchen door?"
BESIDE = "In which colour was the front door of the house painted?"
_ASKS = """
import sys
from pathlib import Path
from desk_rag.config import Settings
from desk_rag.tui.backend import Wanted
from desk_rag.tui.live_backend import LiveBackend
from desk_rag.tui.management.session import Session
backend = LiveBackend(Session(Settings(data_dir=Path(sys.argv[1])), [Path(sys.argv[2])]))
print(backend.start(lambda text: None, lambda event: None).device)
status = backend.status()
print(status.files, status.writer, status.with_vectors == status.chunks)
wanted = [Wanted(turn, question) for turn, question in enumerate(sys.argv[3:])]
for turn, events in backend.ask_all(wanted, lambda: False, wait=lambda: True, earlier=()):
    print(turn, list(events)[-1].answer.text)
print("torch" in sys.modules)
backend.stop()
"""


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
        [sys.executable, "-c", _ASKS, str(data), str(docs), Q, BESIDE], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    device, counts, answer, beside, has_torch = done.stdout.splitlines()
    assert device == f"process {process.pid}"
    assert counts == f"1 {process.pid} True"
    assert answer.startswith("0 ") and "green" in answer and beside.startswith("1 ") and "black" in beside
    assert has_torch == "False"


@pytest.mark.slow
def test_indexing_stays_with_the_watch_and_its_end_loses_no_question(
    watched: tuple[Path, Path, subprocess.Popen[str]],
) -> None:
    docs, data, process = watched
    settings = Settings(data_dir=data)
    backend, changed = LiveBackend(Session(settings, [docs])), settings.answer.model_copy(update={"max_new_tokens": 7})
    assert OtherProcess.of(settings.model_copy(update={"answer": changed})) is None, "it answers otherwise"
    assert backend.start(_nothing, _nothing).device == f"process {process.pid}" and not backend.has_ended()
    again = threading.Thread(target=backend.start, args=(_nothing, _nothing))
    try:
        events = backend.ask(Q, lambda: False)  # asked of it when the first event is wanted
        process.kill()
        process.wait()
        assert backend.has_ended()
        again.start()
        last = list(events)[-1]
        assert isinstance(last, Finished) and "green" in last.answer.text
        again.join(60)
        assert not backend.has_ended() and backend.indexes
    finally:
        backend.stop()


def _nothing(_: object) -> None:
    pass
