"""Faults that were met in daily use of the program, each as the bytes that showed it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.tui.wording import reading_seconds
from tests.tui.terminal import Terminal
from tests.tui.wire.program import SLOW
from tests.tui.wire.test_documented_keys import PROMPT, Walker

LONG = f"{'long name of a file ' * 5}that fits nowhere.md"


def _program(place: Path, **env: str) -> Terminal:
    docs = place / "docs"
    docs.mkdir()
    (docs / ".env").write_text("password: hunter2\n")
    (docs / ".git").mkdir()
    (docs / LONG).write_text("# Fence\n\nThe fence is 23 metres long.\n")
    return Terminal(
        ["-m", "tests.tui.wire.program", str(place)],
        columns=80,
        rows=24,
        env={"HOME": str(place), "TMPDIR": str(place), **env},
    )


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walker]:
    """The program in a terminal of 80x24, over a home of its own."""
    place = tmp_path_factory.mktemp("daily")
    terminal = _program(place)
    try:
        terminal.until(lambda: PROMPT in terminal.text and "watching" in terminal.text, 60)
        yield Walker(terminal, place)
    finally:
        terminal.close()


def test_a_notice_takes_the_width_of_a_narrow_terminal(walker: Walker) -> None:
    walker.press("export")
    walker.sees("There is nothing to export yet: no question of this chat has been")
    assert reading_seconds("New chat.") < 4 < reading_seconds("There is nothing to export yet: no question …")


def test_the_footer_shows_the_keys_that_fit_whole(walker: Walker) -> None:
    def footer() -> str:
        return walker.terminal.text.splitlines()[-1]

    walker.terminal.until(lambda: footer().startswith("⏎ Ask ^r Chats ^q Quit f1 Help f3 Library f6 Pause "))
    assert footer().rstrip().endswith(" ▏^p palette"), "at 80 columns, too"
    walker.terminal.resize(60, 24)
    walker.terminal.until(lambda: footer().startswith("⏎ Ask ^q Quit f1 Help f3 Library f6 Pause "))
    assert footer().rstrip().endswith(" ▏^p palette"), "at 60 columns, too"
    walker.terminal.resize(80, 24)
    walker.terminal.until(lambda: "f3 Library" in footer())
    walker.press("library")
    walker.terminal.until(lambda: "^t Show" in footer())
    assert "f3 Library" not in footer(), "the key of the screen one is on"
    walker.press("library")
    walker.sees(PROMPT)


def test_activity_names_the_files_that_could_not_be_read(walker: Walker) -> None:
    walker.press("activity")
    walker.sees("is not a PDF that can be opened (damaged?): broken.pdf")
    walker.press("activity")
    walker.sees(PROMPT)


def test_the_library_says_what_a_rule_is_about(walker: Walker) -> None:
    walker.press("library")
    walker.sees("may hold secrets: .env", "belongs to tools: .git/")
    walker.send(".env")
    walker.sees("left out: may hold secrets: .env")
    walker.send("\x1b")
    walker.sees("notes.md")
    walker.press("library")
    walker.sees(PROMPT)


def test_a_wrong_value_is_called_wrong_without_the_path_of_the_settings(walker: Walker) -> None:
    walker.press("settings")
    walker.sees("model.name")
    walker.send("answer.top_k\r")
    walker.sees("Enter takes it")
    walker.send("x\r")
    walker.sees("'answer.top_k': must be a whole number.")
    assert "config.toml: '" not in walker.terminal.text
    walker.send("\x1b")
    walker.sees_no("Enter takes it")
    walker.press("settings")
    walker.sees(PROMPT)


def test_models_are_listed_before_their_speed_is_measured(walker: Walker) -> None:
    walker.press("models")
    walker.terminal.until(lambda: "ships with desk-rag" in walker.terminal.text, 120)
    assert "measuring how fast they are here …" in " ".join(walker.terminal.text.split())
    walker.terminal.until(lambda: "measuring" not in walker.terminal.text, 120)
    walker.sees("tokens per second")
    walker.press("models")
    walker.sees(PROMPT)


def test_enter_asks_about_a_folder_whose_name_is_typed_in_full(walker: Walker) -> None:
    walker.send("what is green? @house")
    walker.sees("@house.md")
    walker.send("/")
    walker.sees_no("@house.md")
    walker.terminal.until(lambda: walker.terminal.text.count("@house/") == 2)  # it is offered, and marked
    walker.send("\r")
    walker.sees("› what is green? @house/", "first word")


def test_signs_of_the_help_stand_apart_from_their_meaning(walker: Walker) -> None:
    walker.press("help")
    walker.sees("Keys of the chat", "Page Up, Page Down ")
    walker.send("\x1b[F")
    walker.sees("another process ", "it keeps the index fresh")
    assert "processit" not in walker.terminal.text
    walker.send("\x1b")
    walker.sees(PROMPT)


def test_an_export_is_named_after_the_title_that_a_chat_was_given(walker: Walker) -> None:
    walker.press("chats")
    walker.sees("Saved chats", "what is green? @house/")
    walker.send("\x14")
    walker.sees("Title of the chat")
    walker.send("\x15The colour of doors\r")
    walker.sees_no("Title of the chat")
    walker.send("\x1b")
    walker.sees_no("Saved chats")
    walker.press("export")
    walker.sees("~/chat-the-colour-of-doors.md")
    walker.send("\x1b")
    walker.sees_no("Export this conversation")


def test_esc_withdraws_questions_one_by_one_while_an_answer_stops(walker: Walker) -> None:
    walker.press("new_chat")
    for question in (SLOW, "who is next?", "who is last?"):
        walker.send(f"{question}\r")
        walker.sees(f"› {question}")
    walker.send("\x1b")
    walker.sees("stopping …", "esc Withdraw")
    walker.send("\x1b")
    walker.sees_no("› who is last?")
    walker.sees("› who is next?", "▌ who is last?")
    walker.send("\x1b")
    walker.sees_no("› who is next?")
    walker.sees(f"› {SLOW}", "▌ who is last?")
    (walker.place / "go").touch()
    walker.sees_no("stopping …")
    walker.send("\x03")
    walker.sees(PROMPT)


def test_ascii_signs_are_like_what_they_stand_for(tmp_path: Path) -> None:
    terminal = _program(tmp_path, LC_ALL="C", TERM="linux")
    try:
        terminal.until(lambda: "enter Ask" in terminal.text and "watching" in terminal.text, 60)
        terminal.send("when does the warranty end?\r")
        terminal.until(lambda: "first word" in terminal.text)
        assert terminal.text.isascii()
        rows = terminal.text.splitlines()
        assert any(row.startswith("|> when does the warranty end?") for row in rows)
        assert any(row.startswith(f"| {PROMPT}") for row in rows)
    finally:
        terminal.close()
