"""Keys of conversations as bytes to the real program, and hostile text through every screen of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tui.terminal import Terminal

_ALT = "\x1b"
_FORBIDDEN = (b"]52;c;cm0g", b"]0;owned", b"evil.example\x1b", "\u202e".encode(), b"\x9b31m")
"""What the hostile text of the script tries to send to the terminal."""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    program = Terminal(["-m", "tests.tui.conversation.program", str(tmp_path / "data")], columns=118, rows=40)
    try:
        program.until(lambda: "Ask about your files" in program.text and "watching" in program.text)
        yield program
    finally:
        program.close()


def test_every_key_of_conversations_and_no_hostile_byte(terminal: Terminal, tmp_path: Path) -> None:
    terminal.send("hostile\r")
    terminal.until(lambda: "asked as: before" in terminal.text and "searched only" in terminal.text)
    terminal.send(f"{_ALT}w")
    terminal.until(lambda: terminal.text.count("[bold]not bold[/bold]") > 2)
    terminal.send("\x03")
    terminal.until(lambda: "Ask about your files" in terminal.text)
    terminal.send("see @bad")
    terminal.until(lambda: "@badger.md" in terminal.text and '@"bad' in terminal.text)
    terminal.send("\x1b[B\x1b[A\t")
    terminal.until(lambda: "see @" in terminal.text and "@bad\n" not in terminal.text)
    terminal.send("\x03")
    terminal.until(lambda: "Ask about your files" in terminal.text)
    terminal.send("\x06zero\x1b[B")
    terminal.until(lambda: "1 of 1 turn" in terminal.text)
    terminal.send("\x1b")
    terminal.until(lambda: "1 of 1 turn" not in terminal.text)
    place = tmp_path / "out.md"
    terminal.send(f"{_ALT}s")
    terminal.until(lambda: "Export this conversation" in terminal.text)
    terminal.send(f"\x15{place}\r")
    terminal.until(lambda: "Written to" in terminal.text)
    assert "\x1b" not in place.read_text(encoding="utf-8")
    terminal.send(f"{_ALT}s")
    terminal.until(lambda: "Export this conversation" in terminal.text)
    terminal.send(f"\x15{place}\r")
    terminal.until(lambda: "Choose another name" in terminal.text and "Export this conversation" in terminal.text)
    terminal.send("\x15\x1b")
    terminal.until(lambda: "Export this conversation" not in terminal.text)
    terminal.send("\x0e")
    terminal.until(lambda: "New chat." in terminal.text)
    terminal.send("\x1b[A")
    terminal.until(lambda: "hostile" in terminal.text)
    terminal.send("\x03\x12")
    terminal.until(lambda: "Saved chats" in terminal.text and "1 turn" in terminal.text)
    terminal.send("zero")
    terminal.until(lambda: "before" in terminal.text)
    terminal.send("\r")
    terminal.until(lambda: "asked as: before" in terminal.text and "Saved chats" not in terminal.text)
    terminal.send("\x12")
    terminal.until(lambda: "Saved chats" in terminal.text and "1 turn" in terminal.text)
    terminal.send("\x14")
    terminal.until(lambda: "Title of the chat" in terminal.text)
    terminal.send("\x15harmless words\r")
    terminal.until(lambda: "Title of the chat" not in terminal.text and "harmless words" in terminal.text)
    terminal.send("zzzz")
    terminal.until(lambda: "No chat contains these words" in terminal.text)
    terminal.send("\x15harmless")
    terminal.until(lambda: "harmless words" in terminal.text and "No chat contains" not in terminal.text)
    terminal.send("\x15\x1b[3~")
    terminal.until(lambda: "Press Delete again to delete “harmless words”" in terminal.text)
    terminal.send("\x1b[3~")
    terminal.until(lambda: "is deleted" in terminal.text or "no saved chats yet" in terminal.text)
    terminal.send("\x1b")
    for bad in _FORBIDDEN:
        assert bad not in bytes(terminal.raw), bad
    assert "Traceback" not in terminal.text
