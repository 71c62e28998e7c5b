"""Several keys in one burst, as a paste and Enter or a slow connection send them: each does what it does alone.

Textual runs bindings before the letters that were typed earlier have reached their input; `tui.keys.order` prevents it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tui.terminal import Terminal

PROMPT = "Ask about your files"
_PASTE = "\x1b[200~{}\x1b[201~"


@pytest.fixture
def first_run(tmp_path: Path) -> Iterator[Terminal]:
    """The first run with the home directory marked, which holds two folders."""
    for name in ("desk", "letters"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.md").write_text(f"All about the {name}.\n")
    arguments = ["-m", "tests.tui.management.hostile_program", str(tmp_path), "first"]
    terminal = Terminal(arguments, columns=118, rows=40, env={"HOME": str(tmp_path)})
    try:
        terminal.until(lambda: "Which folder" in terminal.text and "sample_docs" in terminal.text, 60)
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize(
    "typed", ["{}\r", _PASTE + "\r", "x\x15{}\r", "/\x7f{}\r"], ids=["keys", "paste", "ctrl+u", "erased"]
)
def test_enter_looks_at_the_folder_that_was_typed_and_not_at_the_marked_one(
    first_run: Terminal, tmp_path: Path, typed: str
) -> None:
    first_run.send(typed.format(tmp_path / "desk"))
    first_run.until(lambda: "will read" in first_run.text)
    assert "1 file," in first_run.text and "~/desk" not in first_run.text.split("will read")[1]
    assert f"{tmp_path}/desk" in first_run.text.replace("~", str(tmp_path))


def test_a_folder_that_does_not_exist_is_said_to_be_missing(first_run: Terminal, tmp_path: Path) -> None:
    first_run.send(f"\x15{tmp_path}/dsek\r")
    first_run.until(lambda: "There is no folder" in first_run.text and "dsek" in first_run.text)
    assert "will read" not in first_run.text and "no file in it" not in first_run.text


def test_enter_never_starts_with_a_folder_that_was_typed_over(first_run: Terminal, tmp_path: Path) -> None:
    first_run.send(f"{tmp_path}/desk\r")
    first_run.until(lambda: "will read" in first_run.text)
    first_run.send(f"\x15{_PASTE.format(tmp_path / 'dsek')}\r")
    first_run.until(lambda: "There is no folder" in first_run.text)
    assert "Which folder" in first_run.text


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """The program with one saved answer."""
    place = tmp_path_factory.mktemp("bursts")
    terminal = Terminal(["-m", "tests.tui.wire.program", str(place)], columns=130, rows=46, env={"HOME": str(place)})
    try:
        terminal.until(lambda: PROMPT in terminal.text and "watching" in terminal.text, 60)
        terminal.send("when does the warranty end?\r")
        terminal.until(lambda: "first word" in terminal.text)
        yield terminal
    finally:
        terminal.close()


def test_ctrl_c_clears_what_was_typed_just_before_it(program: Terminal) -> None:
    program.send("/cellar\x03")
    program.pause(0.5)
    program.send("abx\x7fc")
    program.until(lambda: "abc" in program.text)
    assert "cellar" not in program.text and "Press Ctrl+C again" not in program.text
    program.send("\x03")
    program.until(lambda: PROMPT in program.text)


def test_letters_after_a_key_that_opens_a_screen_arrive_there(program: Terminal) -> None:
    program.send("\x1bORnotes\r")
    program.until(lambda: "The spare key lies" in program.text)
    program.send("\x1b")
    program.until(lambda: "The spare key lies" not in program.text)
    program.send("\x1bOQsweep_sec\r")
    program.until(lambda: "Enter takes it" in program.text)
    program.send("\x1b")
    program.until(lambda: "Enter takes it" not in program.text)
    program.send("\x1bOQ")
    program.until(lambda: PROMPT in program.text)


def test_the_palette_runs_the_command_that_was_typed(program: Terminal) -> None:
    program.send("half\x10doctor\r")
    program.until(lambda: "nothing is wrong" in program.text)
    program.send("\x1b")
    program.until(lambda: "half" in program.text)
    program.send("\x03")
    program.until(lambda: PROMPT in program.text)


def test_a_model_is_looked_for_by_the_name_that_was_typed(program: Terminal) -> None:
    program.send("\x1blno-such-model\r")
    program.until(lambda: "'no-such-model' is neither" in program.text)
    program.send("\x15\x1bl")
    program.until(lambda: PROMPT in program.text)


def test_the_chat_with_the_typed_words_is_opened(program: Terminal) -> None:
    program.send("\x0e")
    program.until(lambda: "New chat." in program.text)
    program.send("and until when?\r")
    program.until(lambda: "asked as" in program.text)
    program.send("\x12yearly\r")
    program.until(lambda: "when does the warranty end?" in program.text and "Saved chats" not in program.text)
    assert "asked as" not in program.text, "the newest chat stands first in the list without words"


def test_a_long_text_that_is_typed_at_once_arrives_whole_and_in_order(program: Terminal) -> None:
    words = "".join(f"word{number:04} " for number in range(1500))  # 13,500 characters, as a clipboard tool sends them
    program.send("begin ")
    for first in range(0, len(words), 1000):
        program.send(words[first : first + 1000])
        program.pause(0.01)
    program.send("the end of it\x7f\x7f")
    program.until(lambda: "word1498 word1499 the end of " in program.text and "end of it" not in program.text)
    program.send("\x03")
    program.until(lambda: PROMPT in program.text)


def test_many_letters_at_once_where_there_is_no_input_are_keys(program: Terminal) -> None:
    program.send("\x1bORnotes\x0f")
    program.until(lambda: "Exclude it" in program.text)
    program.send("zzzzzzzzzx")  # only the last is a key of this choice
    program.until(lambda: "is added to `exclude`" in program.text)
    program.send("\x1b\x1b\x1bOQ")
    program.send("\x1b")
    program.until(lambda: PROMPT in program.text)
