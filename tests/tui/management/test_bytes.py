"""Hostile names and contents through every screen beside the chat, in a real terminal: what reaches the wire."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tui.terminal import Terminal
from tests.tui.wire.test_pty import commands

F = {2: "\x1bOQ", 3: "\x1bOR", 4: "\x1bOS", 5: "\x1b[15~", 8: "\x1b[19~", 9: "\x1b[20~"}
PAYLOADS = (
    b"cm0gLXJm", b"evil.example", b"owned", b"\x1b[2J\x1b]", b"\xe2\x80\xae", b"\xe2\x80\x8b", b"\xc2\x9b", b"\x9b31m",
)  # fmt: skip


def assert_clean(terminal: Terminal) -> None:
    assert commands(terminal.raw) == [], "no operating system command of any kind is sent"
    for payload in PAYLOADS:
        assert payload not in terminal.raw, payload
    assert terminal.was_restored()
    assert b"Traceback" not in terminal.raw


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., Terminal]:
    terminals: list[Terminal] = []

    def start(*more: str) -> Terminal:
        arguments = ["-m", "tests.tui.management.hostile_program", str(tmp_path), *more]
        terminals.append(Terminal(arguments, columns=150, rows=40, env={"HOME": str(tmp_path)}))
        return terminals[-1]

    yield start  # type: ignore[misc]
    for terminal in terminals:
        terminal.close()


def test_panels_send_nothing_of_a_file_but_its_letters(started: Callable[..., Terminal]) -> None:
    terminal = started()
    terminal.until(lambda: "watching" in terminal.text, 60)
    terminal.send(F[3])
    terminal.until(lambda: "⟨U+202E⟩" in terminal.text and "note before" in terminal.text)
    terminal.send("broken")
    terminal.until(lambda: "failed: " in terminal.text)
    terminal.send("\x1b")
    terminal.until(lambda: "dir before" in terminal.text)
    terminal.send("bytes")
    terminal.until(lambda: "indexed: 1 chunk" in terminal.text)
    terminal.send("\x0f")
    terminal.until(lambda: "Exclude it" in terminal.text)
    terminal.send("x")
    terminal.until(lambda: "is added to" in terminal.text)
    terminal.send("y")
    terminal.until(lambda: "is excluded" in terminal.text)
    terminal.send(F[9])
    terminal.until(lambda: "no longer excluded" in terminal.text)
    terminal.send("\x1b")
    terminal.until(lambda: "dir before" in terminal.text)
    terminal.send("note")
    terminal.send("\r")  # the list may still be on its way
    terminal.until(lambda: "The gate is green." in terminal.text)
    terminal.send("\x1b")
    terminal.until(lambda: "The gate is green." not in terminal.text)
    terminal.send("\x0f")
    terminal.until(lambda: "Forget it" in terminal.text)
    terminal.send("f")
    terminal.until(lambda: "cannot be undone" in terminal.text)
    terminal.send("n")
    for number, sign in ((4, "last read"), (5, "Deleted next"), (8, "1 check: 1 failed")):
        terminal.until(lambda: "cannot be undone" not in terminal.text)
        terminal.send(F[number])
        terminal.until(lambda: sign in terminal.text)  # noqa: B023
    terminal.send(F[2])
    terminal.until(lambda: "model.name" in terminal.text)
    terminal.send("adapter")
    terminal.until(lambda: "Directory of an adapter" in terminal.text)
    terminal.send("\r")
    terminal.until(lambda: "Enter takes it" in terminal.text)
    terminal.send("\x1b[200~no\u202ete\x9b31m\x1b[201~")
    terminal.until(lambda: "no⟨U+202E⟩te" in terminal.text)
    terminal.send("\x1b")
    terminal.until(lambda: "Enter takes it" not in terminal.text)
    terminal.resize(80, 24)
    terminal.send(F[3])
    terminal.until(lambda: "dir before" in terminal.text)
    terminal.send("\x11")
    assert terminal.wait() == 0
    assert_clean(terminal)


def test_first_run_over_hostile_folders(started: Callable[..., Terminal], tmp_path: Path) -> None:
    terminal = started("first")
    terminal.until(lambda: "Which folder" in terminal.text, 60)
    terminal.send(f"{tmp_path}/top")
    terminal.until(lambda: "top before" in terminal.text)
    terminal.send("\t")
    terminal.until(lambda: "dir before" in terminal.text)
    terminal.send("\r")
    terminal.until(lambda: "will read" in terminal.text)
    terminal.send("\r")
    terminal.until(lambda: "Ask about your files" in terminal.text)
    terminal.send("\x11")
    assert terminal.wait() == 0
    assert_clean(terminal)


def test_a_paste_into_the_filter_is_cleaned(started: Callable[..., Terminal]) -> None:
    terminal = started()
    terminal.until(lambda: "watching" in terminal.text, 60)
    terminal.send(F[3])
    terminal.until(lambda: "Type to filter" in terminal.text)
    terminal.send("\x1b[200~no\u202ete\x1b[201~")
    terminal.until(lambda: "no⟨U+202E⟩te" in terminal.text)
    terminal.send("\x11")
    assert terminal.wait() == 0
    assert_clean(terminal)
