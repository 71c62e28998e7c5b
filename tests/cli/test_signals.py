"""The first signal asks, the second ends, and a process that cannot end by itself is ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from desk_rag.cli.signals import STOPPED, stoppable
from desk_rag.config import StoreSettings
from desk_rag.store.store import Store

if sys.platform != "win32":
    from tests.tui.terminal import ROOT, Terminal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    report: list[str] = []
    with pytest.raises(KeyboardInterrupt), stoppable(lambda: report.append("stopping")) as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop() and report == ["stopping"]
        os.kill(os.getpid(), number)
        pytest.fail("went on after the second signal")
    assert report == ["stopping"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


class Hanging:
    """A command in a terminal whose import of a library never ends."""

    def __init__(self, place: Path, library: str, command: str) -> None:
        package = place / "slow" / library
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"import time\nprint('importing {library}')\ntime.sleep(600)\n")
        self.data, documents = place / "data", place / "documents"
        documents.mkdir()
        (documents / "note.md").write_text("The spare key lies under the third flower pot.\n")
        words = ["ask", "Where is the key?", "--folder"] if command == "ask" else [command]
        environment = {"PYTHONPATH": f"{package.parent}:{ROOT}", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        arguments = ["-m", "desk_rag", "--data-dir", str(self.data), *words, str(documents)]
        self.terminal = Terminal(arguments, env=environment)
        self.terminal.until(lambda: f"importing {library}".encode() in self.terminal.raw, 60)
        self.children = psutil.Process(self.terminal.pid).children(recursive=True)


@pytest.fixture
def hanging(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hanging]:
    command = Hanging(tmp_path, *request.param)
    yield command
    command.terminal.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("by_key", [True, False], ids=["Ctrl+C", "SIGTERM"])
@pytest.mark.parametrize(
    ("hanging", "code", "words"),
    [
        (("typer", "index"), 130, "Stopped."),
        (("torch", "index"), 130, STOPPED),
        (("torch", "ask"), 130, "Stopped. What was read is kept."),
        (("torch", "watch"), 0, "stopped"),
    ],
    indirect=["hanging"],
    ids=["typer", "index", "ask", "watch"],
)
def test_a_command_ends_in_the_midst_of_an_import(hanging: Hanging, code: int, words: str, by_key: bool) -> None:
    if by_key:
        hanging.terminal.send("\x03")
    else:
        hanging.terminal.signal(signal.SIGTERM)
    assert hanging.terminal.wait() == code
    assert words in [line.strip().removeprefix("^C") for line in hanging.terminal.text.splitlines()]
    assert b"Traceback" not in hanging.terminal.raw
    _, alive = psutil.wait_procs(hanging.children, timeout=10)
    assert not alive
    with Store.open(hanging.data, StoreSettings(), writer=True) as store:
        assert not store.verify().problems
        assert len(store.documents()) == 1 or words != STOPPED
