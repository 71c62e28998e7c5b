"""`ask` and `search` say the same with and without a running desk-rag, through real processes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import psutil
import pytest

from desk_rag.cli import main
from desk_rag.indexer.resident.transports import unix_socket
from tests.cli.test_main import ROOT, Ran

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="uses signals and Unix sockets")]

DOOR, PIANO = "What colour is the kitchen door?", "When was the piano tuned?"
_TIMES = (
    "ttft_seconds", "first_text_seconds", "stages", "decode_seconds", "warm_chunks", "cold_chunks", "loaded_bytes",
    "sources", "chat",
)  # fmt: skip


class Place:
    """Documents, a data directory and commands about them."""

    def __init__(self, root: Path) -> None:
        self.docs, self.data = root / "docs", root / "data"
        self.docs.mkdir()
        (self.docs / "door.md").write_text("# Doors\n\nThe kitchen door is painted green. The front door is black.\n")
        (self.docs / "roof.txt").write_text("The roof was repaired in May 2021. The roofer left a ladder.\n")

    def run(self, *words: str) -> Ran:
        """Run a command in this process, which imports the libraries only once."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main.main(["--data-dir", str(self.data), *words])
        return Ran(code, out.getvalue(), err.getvalue())

    def watch(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "desk_rag", "--data-dir", str(self.data), "watch", str(self.docs)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("watching"):
                break
        threading.Thread(target=process.stdout.read, daemon=True).start()
        return process


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    world = Place(tmp_path_factory.mktemp("resident"))
    assert world.run("index", str(world.docs)).code == 0
    return world


@pytest.fixture(scope="module")
def alone(place: Place) -> dict[str, Ran]:
    """Output of the commands while nothing runs."""
    return {" ".join(words): place.run(*words) for words in COMMANDS}


@pytest.fixture(scope="module")
def resident(place: Place, alone: dict[str, Ran]) -> Iterator[subprocess.Popen[str]]:
    process = place.watch()
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert not (place.data / "run" / unix_socket.SOCKET).exists()


COMMANDS = [
    ("ask", DOOR),
    ("ask", PIANO),
    ("ask", DOOR, "--json"),
    ("search", "roof ladder"),
    ("search", "roof", "--words", "--json"),
    ("search", "xyzzy", "--words"),
    ("ask", DOOR, "--folder", "/nowhere/at/all"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_output_is_the_same(
    place: Place, alone: dict[str, Ran], resident: subprocess.Popen[str], words: tuple[str, ...]
) -> None:
    before, now = alone[" ".join(words)], place.run(*words)
    assert (now.code, *map(comparable, (now.out, now.err))) == (before.code, *map(comparable, (before.out, before.err)))


def comparable(out: str) -> object:
    """The output without what is measured anew each time."""
    if out.startswith("{"):
        return {key: value for key, value in json.loads(out).items() if key not in _TIMES}
    return re.sub(r"(?m)(first word|answered) after .*$", "", out)


def test_a_client_loads_no_model_library(place: Place, resident: subprocess.Popen[str]) -> None:
    program = (
        "import sys; from desk_rag.cli.main import main\n"
        f"code = main(['--data-dir', {str(place.data)!r}, 'ask', {DOOR!r}])\n"
        "print(code, *(name in sys.modules for name in ('torch', 'transformers', 'numpy', 'tokenizers')))"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "green" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "0 False False False False"


def test_a_change_is_in_the_answer_at_once(place: Place, resident: subprocess.Popen[str]) -> None:
    (place.docs / "piano.md").write_text("# Piano\n\nThe piano was tuned on 3 May 2026 by Mr. Okafor.\n")
    assert "3 May 2026" in place.run("ask", PIANO).out
    (place.docs / "piano.md").unlink()


def test_other_settings_are_answered_alone_and_it_says_so(place: Place, resident: subprocess.Popen[str]) -> None:
    ran = place.run("--device", "cpu", "ask", DOOR)
    assert "Answering without the desk-rag that is running: it has other settings." in ran.err
    assert "green" in ran.out


def test_after_a_kill_everything_works_alone_again(place: Place, alone: dict[str, Ran], tmp_path: Path) -> None:
    other = Place(tmp_path)
    process = other.watch()
    process.kill()
    process.wait()
    assert (other.data / "run" / unix_socket.SOCKET).exists()
    assert other.run("index", str(other.docs), "--no-kv").code == 0
    ran = other.run("search", "ladder", "--words")
    assert "roof.txt" in ran.out and not ran.err


def test_a_kept_process_answers_until_a_command_has_to_write(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = place.run("ask", DOOR, "--keep", "--folder", str(place.docs), "--private")  # indexes first, then leaves it
    assert "green" in first.out, first.err
    second = place.run("ask", DOOR, "--keep", "--private")
    status = json.loads(place.run("status", "--json").out)
    process = psutil.Process(status["kept_process"])
    assert (second.code, comparable(second.out)) == (0, comparable(place.run("ask", DOOR, "--private").out))
    assert process.is_running()
    (place.docs / "door.md").write_text("# Doors\n\nThe kitchen door is painted blue. The front door is black.\n")
    assert "blue" in place.run("ask", DOOR, "--private").out
    assert place.run("index", str(place.docs)).code == 0
    psutil.wait_procs([process], timeout=30)
    assert json.loads(place.run("status", "--json").out)["kept_process"] is None
