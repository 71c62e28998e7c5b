"""A question is sent before the command line is parsed, and only if the command line would send the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from desk_rag.cli.questions import early
from desk_rag.config import StoreSettings
from desk_rag.indexer.resident import protocol
from desk_rag.indexer.resident.protocol import Message, NoResident
from desk_rag.indexer.resident.server import Server
from desk_rag.store.store import Store
from tests.cli.test_main import ROOT

pytestmark = pytest.mark.skipif(os.name == "nt", reason="uses signals and Unix sockets")


class Listener:
    """Notes what it is asked, and declines everything."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.requests: list[Message] = []

    def __call__(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        self.requests.append(request)
        raise NoResident("it only listens")
        yield {}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "desk_rag", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    Store.open(tmp_path / "data", StoreSettings(reserve_gib=0), writer=True).close()
    handle = Listener(tmp_path / "data")
    server = Server(handle.data, handle)
    assert server.start() == ""
    yield handle
    server.stop()


def sent(listener: Listener, *words: str) -> Message | None:
    question = early.send(words)
    if question is None:
        return None
    with question.connection:
        question.connection.settimeout(20)
        assert b"it only listens" in protocol.Lines(question.connection, 1000).read()
    return listener.requests[-1]


def test_a_plain_question_is_sent_with_all_that_decides_the_answer(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "my.toml").write_text("")
    data = str(listener.data)
    request = sent(
        listener, "--data-dir", data, "ask", " Where? ", "-f", "docs", "--top-k=3", "--mode", "full", "--no-wait",
        "--config", "my.toml", "--private",
    )  # fmt: skip
    assert request is not None
    assert request["request"] == {
        "question": "Where?", "limit": [str(tmp_path / "docs")], "mode": "full", "top_k": 3,
    }  # fmt: skip
    assert (request["wait"], request["index_first"]) == (False, True)
    assert request["settings_file"] == {"path": str(tmp_path / "my.toml"), "cwd": str(tmp_path)}


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("when", "is", "the", "dentist", "appointment"), "when is the dentist appointment"),
        (("when", "is", "it", "due?"), "when is it due?"),
        (("--no-wait", "what", "does", "bench", "cost", "--private"), "what does bench cost"),
        (("who", "signed", "@lease.md", "and", "ask", "why"), "who signed @lease.md and ask why"),
        (("when does it end?", "  "), "when does it end?"),
    ],
)
def test_words_without_quotation_marks_are_one_question(
    listener: Listener, words: tuple[str, ...], question: str
) -> None:
    request = sent(listener, "--data-dir", str(listener.data), "ask", *words)
    assert request is not None and request["request"]["question"] == question  # type: ignore[index]


@pytest.mark.parametrize(
    "words",
    [
        ("search", "ask"),
        ("ask", "-"),
        ("ask", ""),
        ("ask", "Where?", "--continue"),
        ("ask", "Where?", "--keep"),
        ("ask", "Where?", "--recompute", "0.1"),
        ("ask", "Where?", "--top-k", "many"),
        ("ask", "Where?", "--folder", "/nowhere/at/all"),
        ("ask", "Where?", "--folder"),
        ("ask", "Where?", "--model", "other"),
        ("ask", "Where?", "--help"),
        ("--data-dir",),
    ],
    ids=" ".join,
)
def test_what_only_the_command_line_understands_is_left_to_it(listener: Listener, words: tuple[str, ...]) -> None:
    assert sent(listener, "--data-dir", str(listener.data), *words) is None
    assert not listener.requests


def test_the_settings_file_names_the_data_directory(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'data_dir = "{listener.data}"\n')
    monkeypatch.delenv("DESK_RAG_DATA_DIR", raising=False)
    monkeypatch.setenv("DESK_RAG_CONFIG", str(config))
    request = sent(listener, "ask", "Where?")
    assert request is not None and request["settings_file"] == {"path": str(config), "cwd": str(Path.cwd())}
    config.write_text("data_dir = [")
    assert early.send(["ask", "Where?"]) is None, "the command line says what is wrong with the file"


def test_a_declined_question_is_answered_by_the_command_itself(listener: Listener) -> None:
    ran = listener.run("--data-dir", str(listener.data), "ask", "Where?", "--no-index")
    assert [request["do"] for request in listener.requests] == ["ask"], "asked once"
    assert "it only listens" in ran.stderr and "Nothing is indexed yet." in ran.stderr


def test_the_command_line_has_the_last_word(listener: Listener) -> None:
    ran = listener.run("--data-dir", str(listener.data), "ask", "Where?", "--mode", "quickly")
    assert ran.returncode == 2 and "quickly" in ran.stderr
