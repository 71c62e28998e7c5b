"""The end of the program: whatever the terminal does meanwhile, no process is left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.tui.terminal import Terminal


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal(["-m", "tests.tui.scripted", "plain"])
    try:
        terminal.until(lambda: "Ask about your files" in terminal.text and "watching" in terminal.text)
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3])
def test_a_terminal_that_dies_while_the_program_quits_leaves_nothing_behind(terminal: Terminal, pause: float) -> None:
    terminal.send("\x11")
    terminal.pause(pause)
    terminal.hang_up()
    assert terminal.wait(30.0) in (0, 128 + signal.SIGHUP, -signal.SIGHUP)


def test_a_terminal_that_is_closed_ends_the_program(terminal: Terminal) -> None:
    terminal.send("half a question")
    terminal.until(lambda: "half a question" in terminal.text)
    terminal.hang_up()
    assert terminal.wait(30.0) in (128 + signal.SIGHUP, -signal.SIGHUP)
