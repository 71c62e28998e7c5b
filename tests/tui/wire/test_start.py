"""The first second of the real program: a frame before everything else is loaded, and no key is lost."""

from __future__ import annotations

import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.tui.terminal.first_frame import frame
from tests.tui.terminal import ROOT, Terminal

WHOLE = "f1 Help"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Terminal]:
    folder = tmp_path / "my notes"
    folder.mkdir()
    (folder / "a.md").write_text("# A\n\nThe gate is green.\n")
    env = {"DESK_RAG_DATA_DIR": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    terminal = Terminal(["-m", "desk_rag", str(folder)], env=env)
    try:
        yield terminal
    finally:
        terminal.close()


def test_what_is_typed_at_the_first_frame_reaches_the_prompt_and_enter_asks(started: Terminal) -> None:
    before = termios.tcgetattr(started._fd)
    started.until(lambda: "Ask about your files" in started.text and "my notes" in started.text)
    assert WHOLE not in started.text, "the frame comes before the screen"
    started.send("what colour is the gate?\r")
    started.until(lambda: WHOLE in started.text)
    started.until(lambda: "waits for the model to load" in started.text)
    assert started.text.count("what colour is the gate?") == 1, "asked, and not echoed by the terminal"
    started.send("\x11")
    assert started.wait() == 0
    assert started.was_restored()
    assert termios.tcgetattr(started._fd)[3] == before[3], "echo and line editing are as they were"


def test_an_error_after_the_first_frame_gives_the_terminal_back(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    config = tmp_path / "config.toml"
    config.write_text('[ui]\nkeys = { copy = "ctrl+m" }\n')
    env = {"DESK_RAG_DATA_DIR": str(tmp_path / "data")}
    terminal = Terminal(["-m", "desk_rag", "--config", str(config), str(tmp_path / "docs")], env=env)
    before = termios.tcgetattr(terminal._fd)
    try:
        assert terminal.wait(30) == 2
        assert "terminals send it as Enter" in " ".join(terminal.text.split())
        assert b"\x1b[?1049h" in terminal.raw and terminal.raw.rfind(b"\x1b[?1049l") > terminal.raw.rfind(b"1049h")
        assert termios.tcgetattr(terminal._fd)[3] == before[3]
    finally:
        terminal.close()


def test_hostile_folder_names_are_cleaned_in_the_first_frame() -> None:
    drawn = frame([Path("/a/b\x1b]52;c;cm0=\x07\u202egnp")], "desk-rag", 80, 24)
    assert "\x1b]" not in drawn and "\x07" not in drawn and "\u202e" not in drawn


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("desk_rag.tui.terminal.first_frame", {"textual", "rich", "pydantic", "sqlite3"}),
        ("desk_rag.tui.live_backend", {"torch", "transformers", "numpy", "safetensors", "sqlite3"}),
        ("desk_rag.answering.conversation.plain_search", {"torch", "transformers", "numpy", "tokenizers"}),
    ],
)
def test_nothing_heavy_is_imported_before_the_screen_is_there(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
