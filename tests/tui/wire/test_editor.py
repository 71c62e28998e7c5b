"""An editor that cannot be started: the app says which, takes the terminal back and goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tui.terminal import Terminal

WRITE = "\x1bx"


@pytest.mark.parametrize(
    ("script", "message"),
    [(None, "is not installed"), ("#!/nowhere/shell\n", "could not edit the question")],
    ids=["missing", "broken"],
)
def test_an_editor_that_cannot_be_started_leaves_the_app_alive(
    tmp_path: Path, script: str | None, message: str
) -> None:
    editor = tmp_path / "editor-of-a-test"
    if script:
        editor.write_text(script)
        editor.chmod(0o700)
    env = {"VISUAL": editor.name, "PATH": f"{tmp_path}:{os.environ['PATH']}"}  # a message with a path would be broken
    terminal = Terminal(["-m", "tests.tui.scripted"], columns=160, env=env)
    try:
        terminal.until(lambda: "Ask about your files" in terminal.text and "watching" in terminal.text)
        terminal.send(WRITE)
        terminal.until(lambda: message in terminal.text and "VISUAL or EDITOR" in terminal.text)
        terminal.send("hostile\r")
        terminal.until(lambda: "first word" in terminal.text)
        terminal.send("\x11")
        assert terminal.wait() == 0
        assert terminal.was_restored()
    finally:
        terminal.close()
