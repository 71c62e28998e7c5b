"""The program in a real terminal: bytes on the wire, signals, and that the terminal is left as it was."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.tui.terminal import OSC, Terminal


def commands(raw: bytes) -> list[bytes]:
    """Operating system commands on the wire, but for Textual's own shape of the mouse pointer."""
    return [found for found in OSC.findall(raw) if not found.startswith(b"\x1b]22;")]


@pytest.fixture
def hostile() -> Iterator[Terminal]:
    terminal = Terminal(["-m", "tests.tui.scripted"], env={"TMUX": ""})
    try:
        terminal.until(lambda: "Ask about your files" in terminal.text and "watching" in terminal.text)
        yield terminal
    finally:
        terminal.close()


def test_no_escape_of_a_document_reaches_the_wire(hostile: Terminal) -> None:
    hostile.send("hostile\r")
    hostile.until(lambda: "first word" in hostile.text)
    hostile.until(lambda: "[bold]not bold[/bold]" in hostile.text)
    hostile.resize(160, 48)
    hostile.until(lambda: "漢" in hostile.text and "⟨U+202E⟩" in hostile.text)
    hostile.send("\x11")
    assert hostile.wait() == 0
    assert commands(hostile.raw) == [], "no operating system command of any kind is sent"
    for payload in (
        b"cm0gLXJm",
        b"evil.example",
        b"owned",
        b"\x1b[2J\x1b]",
        b"\xe2\x80\xae",
        b"\xe2\x80\x8b",
        b"\xc2\x9b",
    ):
        assert payload not in hostile.raw, payload
    assert hostile.was_restored()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_leave_the_terminal_clean(hostile: Terminal, number: signal.Signals, code: int) -> None:
    hostile.signal(number)
    assert hostile.wait() == code
    assert hostile.was_restored()
    assert b"Traceback" not in hostile.raw


def test_ctrl_c_twice_quits(hostile: Terminal) -> None:
    hostile.send("\x03")
    hostile.until(lambda: "Press Ctrl+C again to quit" in hostile.text)
    hostile.send("\x03")
    assert hostile.wait() == 0
    assert hostile.was_restored()


def test_copying_sends_only_what_is_shown(hostile: Terminal) -> None:
    """The one operating system command we do send: the clipboard, base64 of cleaned text, at the user's wish."""
    import base64

    hostile.send("hostile\r")
    hostile.until(lambda: "first word" in hostile.text)
    hostile.send("\x1bc")
    hostile.until(lambda: "Answer sent to the terminal" in hostile.text and "OSC 52" in hostile.text)
    (command,) = commands(hostile.raw)
    assert command.startswith(b"\x1b]52;c;")
    copied = base64.b64decode(command.removeprefix(b"\x1b]52;c;")).decode()
    assert "before" in copied and "\x1b" not in copied and "\u202e" not in copied


def test_in_tmux_a_copy_says_what_tmux_must_allow() -> None:
    terminal = Terminal(["-m", "tests.tui.scripted"], env={"TMUX": "/tmp/tmux-1000/default,1,0"})
    try:
        terminal.until(lambda: "Ask about your files" in terminal.text and "watching" in terminal.text)
        terminal.send("hostile\r")
        terminal.until(lambda: "first word" in terminal.text)
        terminal.send("\x1bc")
        terminal.until(lambda: "Answer sent to tmux" in terminal.text)
        assert "tmux set -s set-clipboard on" in " ".join(terminal.text.split()) and "copied" not in terminal.text
    finally:
        terminal.close()


def test_nothing_is_drawn_while_nothing_changes(hostile: Terminal) -> None:
    hostile.send("hostile\r")
    hostile.until(lambda: "first word" in hostile.text)
    hostile.pause(2.0)
    drawn = len(hostile.raw)
    hostile.pause(3.0)
    assert hostile.raw[drawn:] == b"", "not even the cursor of the prompt blinks"
