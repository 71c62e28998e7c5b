"""Every key that the help names, as bytes to the real program; a documented key without a check is a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from desk_rag.tui.keys.actions import FIXED_KEYS, KEY_ACTIONS
from desk_rag.tui.keys.keymap import KeyMap
from tests.tui.terminal import Terminal
from tests.tui.wire.keys import sent
from tests.tui.wire.program import FOLLOW_UP

KEYMAP = KeyMap()
TEXTS = {1: "4.2 Term", 2: "Keep the inspection log", 3: "is booked for May", 4: "Set the date"}
PROMPT = "Ask about your files"


class Walker:
    """Presses keys by the name of their action and waits for what they show."""

    def __init__(self, terminal: Terminal, place: Path) -> None:
        self.terminal, self.place = terminal, place

    def press(self, *names: str) -> None:
        self.terminal.send("".join(sent(KEYMAP.key(name)) for name in names))

    def send(self, text: str) -> None:
        self.terminal.send(text)

    def sees(self, *texts: str) -> None:
        self.terminal.until(lambda: all(text in self.terminal.text for text in texts))

    def sees_no(self, text: str) -> None:
        self.terminal.until(lambda: text not in self.terminal.text)

    def opens(self, name: str, sign: str) -> None:
        """The key opens a screen and leaves it again."""
        self.press(name)
        self.sees(sign)
        self.press(name)
        self.sees_no(sign)

    def last_question(self) -> None:
        """Select the answer of the follow-up, whatever was selected before."""
        self.press("turn_below", "turn_below")


def _undo(walker: Walker) -> None:
    walker.press("library")
    walker.sees("Type to filter", "house", "notes.md")
    walker.send("notes")
    walker.sees("1 chunk")
    walker.press("entry_actions")
    walker.sees("Exclude it")
    walker.send("x")
    walker.sees("is added to")
    walker.send("y")
    walker.sees("F9 undoes it")
    walker.press("library")
    walker.sees(PROMPT)
    walker.press("undo")
    walker.sees("is no longer excluded")


def _export(walker: Walker) -> None:
    walker.press("export")
    walker.sees("Export this conversation")
    file = walker.place / "chat.md"
    walker.send(f"\x15{file}\r")
    walker.sees_no("Export this conversation")
    walker.terminal.until(file.exists)


def _new_chat(walker: Walker) -> None:
    walker.press("new_chat")
    walker.sees_no("asked as")
    walker.press("chats")
    walker.sees("Saved chats", "2 turns")
    walker.send("\r")
    walker.sees("asked as", "1 ◐", PROMPT)
    walker.press("ask_again")
    walker.sees("first word")


def _back(walker: Walker) -> None:
    walker.send("\t")
    walker.sees("esc Back")
    walker.press("back")
    walker.sees_no("esc Back")


def _jump(walker: Walker) -> None:
    walker.press("jump")
    walker.sees(" a  when does", " s ●", " d ")
    walker.send("9")
    walker.sees_no(" a  when does")


def _copy(walker: Walker) -> None:
    walker.press("copy")
    walker.terminal.until(lambda: b"\x1b]52;c;" in walker.terminal.raw)
    walker.sees("Answer sent to")


def _edit(walker: Walker) -> None:
    walker.last_question()
    walker.press("edit")
    walker.sees_no(PROMPT)
    walker.send("\x03")
    walker.sees(PROMPT)


def _edit_searched(walker: Walker) -> None:
    walker.last_question()
    walker.press("edit_searched")
    walker.terminal.until(lambda: walker.terminal.text.count("Until when does the warranty") == 2)
    walker.send("\x03")
    walker.sees(PROMPT)


def _write(walker: Walker) -> None:
    walker.send("Who signed")
    walker.sees("Who signed")
    walker.press("write")
    walker.sees("Who signed the lease?")
    written = walker.place / "written.txt"
    assert written.read_text() == "700\n", "nobody else may read the question meanwhile"
    assert not list(walker.place.glob("desk-rag-question-*")), "nor is it left behind, nor the editor's own copy"
    walker.send("\x03")
    walker.sees(PROMPT)


def _timing(walker: Walker) -> None:
    walker.press("timing")
    walker.sees("first token 0.19 s")
    walker.press("timing")
    walker.sees_no("first token 0.19 s")


def _find(walker: Walker) -> None:
    walker.press("find")
    walker.send("warranty\x1b[B")
    walker.sees("of 2 turns")
    walker.send("\x1b")
    walker.sees_no("of 2 turns")


def _turns(walker: Walker) -> None:
    walker.last_question()
    walker.press("turn_above")
    walker.press("edit")
    walker.terminal.until(lambda: walker.terminal.text.count("when does the warranty end?") == 2)
    walker.send("\x03")
    walker.sees(PROMPT)
    walker.press("turn_below")
    walker.press("edit")
    walker.terminal.until(lambda: walker.terminal.text.count(FOLLOW_UP) == 2)
    walker.send("\x03")
    walker.sees(PROMPT)


def _sources(walker: Walker) -> None:
    walker.press("sources")
    walker.sees_no("4 sources")
    walker.press("sources")
    walker.sees("4 sources")


def _open_source(walker: Walker) -> None:
    walker.press("open_source")
    walker.sees("there any more")


def _read_source(walker: Walker) -> None:
    walker.press("source_1")
    walker.press("read_source")
    walker.sees("5 Payment", "alt+c Copy")
    walker.send("\x1b")
    walker.sees(PROMPT)


def _compare(walker: Walker) -> None:
    walker.press("turn_above")
    walker.press("compare")
    walker.sees("Both give the same words")
    walker.last_question()


def _pause(walker: Walker) -> None:
    walker.press("pause")
    walker.sees("paused")
    walker.press("pause")
    walker.sees("watching")


def _show(walker: Walker) -> None:
    walker.press("library")
    walker.sees("all files")
    for shown in ("read ", "failed ", "left out ", "all files"):
        walker.press("show")
        walker.sees(shown)
    walker.press("library")
    walker.sees(PROMPT)


def _entry_actions(walker: Walker) -> None:
    walker.press("library")
    walker.sees("Type to filter", "house", "notes.md")
    walker.press("entry_actions")
    walker.sees("Copy its path")
    walker.send("\x1b")
    walker.sees_no("Copy its path")
    walker.press("library")
    walker.sees(PROMPT)


def _work_now(walker: Walker) -> None:
    walker.press("activity")
    walker.sees("found by words")
    walker.press("work_now")
    walker.sees("Only when idle")
    walker.press("work_now")
    walker.sees("Work now")
    walker.press("activity")
    walker.sees(PROMPT)


def _letters(walker: Walker) -> None:
    walker.send("\t")
    walker.sees("esc Back")
    walker.send("letters")
    walker.sees("letters")
    walker.sees_no("esc Back")
    walker.send("\x03")
    walker.sees(PROMPT)


def _enter(walker: Walker) -> None:
    walker.send("\r")
    walker.sees(PROMPT)


def _new_line(walker: Walker) -> None:
    for keys in ("up\nper", "up\x1b\rper"):
        walker.send(keys)
        walker.terminal.until(lambda: any(row.strip(" ▎▏▌▐█│┃") == "per" for row in walker.terminal.text.splitlines()))
        walker.send("\x03")
        walker.sees(PROMPT)


def _history(walker: Walker) -> None:
    walker.send("\x1b[A")
    walker.sees_no(PROMPT)
    walker.send("\x1b[B")
    walker.sees(PROMPT)


def _tab(walker: Walker) -> None:
    walker.send("\t")
    walker.sees("esc Back")
    walker.send("\x1b")
    walker.sees_no("esc Back")


def _at(walker: Walker) -> None:
    walker.send("@house")
    walker.sees("@house.md")
    walker.send("\t")
    walker.terminal.until(lambda: walker.terminal.text.count("@house.md") == 1)
    walker.send("\x03")
    walker.sees(PROMPT)


def _slash(walker: Walker) -> None:
    walker.send("/boiler")
    walker.sees("/boiler")
    walker.send("\x03")
    walker.sees(PROMPT)


def _copy_or_clear(walker: Walker) -> None:
    walker.send("half a question")
    walker.sees("half a question")
    walker.send("\x03")
    walker.sees(PROMPT)
    walker.send("\x03")
    walker.sees("Press Ctrl+C again")


def _palette(walker: Walker) -> None:
    walker.send("\x10")
    walker.sees("Search for commands")
    walker.send("undo the las")
    walker.send("\x1b")
    walker.sees_no("Search for commands")


def _source(number: int) -> Callable[[Walker], None]:
    def check(walker: Walker) -> None:
        walker.press("source_2" if number != 2 else "source_3")
        walker.sees(TEXTS[2] if number != 2 else TEXTS[3])
        walker.press(f"source_{number}")
        walker.sees(TEXTS.get(number, TEXTS[2]))  # there are four; a higher number changes nothing

    return check


def _steps(walker: Walker) -> None:
    walker.press("source_1", "next_source")
    walker.sees(TEXTS[2])
    walker.press("previous_source")
    walker.sees(TEXTS[1])


def _actions(walker: Walker) -> None:
    walker.press("actions")
    walker.sees("Copy the quotes")
    walker.press("actions")
    walker.sees_no("Copy the quotes")


def _ask_again(walker: Walker) -> None:
    drawn = len(walker.terminal.raw)
    walker.press("ask_again")
    walker.terminal.until(lambda: len(walker.terminal.raw) > drawn)
    walker.sees("first word")


def _pages(walker: Walker) -> None:
    walker.terminal.resize(130, 16)
    walker.last_question()
    walker.sees_no("› when does the warranty end?")
    walker.send("\x1b[5~" * 3)
    walker.sees("› when does the warranty end?")
    walker.send("\x1b[6~" * 3)
    walker.sees_no("› when does the warranty end?")
    walker.terminal.resize(130, 46)
    walker.sees("› when does the warranty end?")


CHECKS: dict[str, Callable[[Walker], None]] = {
    "help": lambda walker: walker.opens("help", "Keys of the chat"),
    "settings": lambda walker: walker.opens("settings", "model.name"),
    "library": lambda walker: walker.opens("library", "Type to filter"),
    "activity": lambda walker: walker.opens("activity", "found by words"),
    "cache": lambda walker: walker.opens("cache", "of 1.0 GiB"),
    "doctor": lambda walker: walker.opens("doctor", "nothing is wrong"),
    "models": lambda walker: walker.opens("models", "name another model"),
    "pause": _pause,
    "undo": _undo,
    "jump": _jump,
    "back": _back,
    "actions": _actions,
    "turn_above": _turns,
    "turn_below": _turns,
    **{f"source_{number}": _source(number) for number in range(1, 10)},
    "next_source": _steps,
    "previous_source": _steps,
    "sources": _sources,
    "read_source": _read_source,
    "open_source": _open_source,
    "copy": _copy,
    "ask_again": _ask_again,
    "edit": _edit,
    "edit_searched": _edit_searched,
    "write": _write,
    "timing": _timing,
    "compare": _compare,
    "new_chat": _new_chat,
    "chats": _new_chat,
    "find": _find,
    "export": _export,
    "entry_actions": _entry_actions,
    "show": _show,
    "work_now": _work_now,
    "letters": _letters,
    "Enter": _enter,
    "Ctrl+J": _new_line,
    "Up, Down": _history,
    "Page Up, Page Down": _pages,
    "Tab": _tab,
    "@": _at,
    "/": _slash,
    "Ctrl+C": _copy_or_clear,
    "Ctrl+P": _palette,
}
ELSEWHERE = {
    "quit": "tests/tui/wire/test_pty.py",
    "other_model": "tests/tui/management/test_bytes.py",
    "leave_out": "tests/tui/wire/test_screen_keys.py",
}
"""Keys that end the program or belong to its first run, and the tests that press them."""


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walker]:
    """The program with two answers on its screen."""
    place = tmp_path_factory.mktemp("keys")
    editor = place / "editor"
    editor.write_text(
        "#!/bin/sh\n"
        f'stat -c %a "$(dirname "$1")" > {place}/written.txt\n'
        'printf "%s the lease?\\n" "$(cat "$1")" > "$1"\n'
        'touch "$1~"\n'
    )
    editor.chmod(0o700)
    home = {"HOME": str(place), "VISUAL": str(editor), "TMPDIR": str(place)}
    terminal = Terminal(["-m", "tests.tui.wire.program", str(place)], columns=130, rows=46, env=home)
    try:
        terminal.until(lambda: PROMPT in terminal.text and "watching" in terminal.text, 60)
        terminal.send("when does the warranty end?\r")
        terminal.until(lambda: "first word" in terminal.text)
        terminal.send(f"{FOLLOW_UP}\r")
        terminal.until(lambda: terminal.text.count("first word") == 2 and "4.2 Term" in terminal.text)
        yield Walker(terminal, place)
    finally:
        terminal.close()


@pytest.mark.parametrize("name", CHECKS)
def test_a_documented_key_does_what_the_help_says(walker: Walker, name: str) -> None:
    CHECKS[name](walker)
    assert "Traceback" not in walker.terminal.text


def test_every_documented_key_is_tried() -> None:
    documented = {action.name for action in KEY_ACTIONS} | {key for key, _ in FIXED_KEYS}
    assert documented == CHECKS.keys() | ELSEWHERE.keys()
    for name, file in ELSEWHERE.items():
        source = (Path(__file__).resolve().parents[3] / file).read_text(encoding="utf-8")
        assert repr(sent(KEYMAP.key(name))).strip("'") in source, f"{file} does not press {name}"
