"""The keys that F1 names on each screen beside the chat, and at each place of the chat, as bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from desk_rag.tui.panels.download import DownloadScreen
from desk_rag.tui.panels.first_run import FirstRunScreen
from desk_rag.tui.panels.registry import PANELS
from desk_rag.tui.screens.help import HERE
from tests.tui.terminal import Terminal
from tests.tui.wire.test_documented_keys import PROMPT, Walker

_UP, _DOWN, _PAGE_DOWN, _BACKSPACE, _ENTER, _ESCAPE, _TAB = (
    "\x1b[A", "\x1b[B", "\x1b[6~", "\x7f", "\r", "\x1b", "\t",
)  # fmt: skip
Check = Callable[[Walker], None]


def _at(screen: str, sign: str, check: Check) -> Check:
    """Open a screen, check a key there, and leave it."""

    def run(walker: Walker) -> None:
        walker.press(screen)
        walker.sees(sign)
        check(walker)
        if PROMPT not in walker.terminal.text:
            walker.press(screen)
        walker.sees(PROMPT)

    return run


def _filters(words: str, gone: str) -> Check:
    def check(walker: Walker) -> None:
        walker.send(words)
        walker.sees_no(gone)
        walker.send(_ESCAPE)  # clears the filter; the screen stays
        walker.sees(gone)

    return check


def _leaves(walker: Walker) -> None:
    walker.send(_ESCAPE)
    walker.sees(PROMPT)


def _moves(below: str, above: str) -> Check:
    def check(walker: Walker) -> None:
        walker.send(_DOWN)
        walker.sees(below)
        walker.send(_UP)
        walker.sees(above)

    return check


def _pauses_and_goes_on(walker: Walker) -> None:
    walker.sees("Pause …")
    walker.send(_ENTER)
    walker.sees("Pause the indexing")
    walker.send(_ENTER)
    walker.sees_no("Pause the indexing")
    _is_paused(walker)


def _is_paused(walker: Walker) -> None:
    """The status line of the chat says so, until the key for it."""
    walker.press("activity")
    walker.sees(PROMPT, "paused")
    walker.press("pause")
    walker.sees("watching")


def _pause_key(walker: Walker) -> None:
    walker.press("pause")
    _is_paused(walker)


def _work_now(walker: Walker) -> None:
    walker.press("work_now")
    walker.sees("Only when idle")
    walker.press("work_now")
    walker.sees("Work now")


def _verifies(walker: Walker) -> None:
    walker.send(_ENTER)
    walker.sees("nothing is wrong")


def _to_settings(walker: Walker) -> None:
    walker.press("settings")
    walker.sees("model.name")
    walker.press("settings")
    walker.sees(PROMPT)


def _checks_again(walker: Walker) -> None:
    walker.sees("of all")
    looks = re.search(r"time (\d+) of all", walker.terminal.text)
    assert looks is not None
    walker.send(_ENTER)
    walker.sees(f"time {int(looks[1]) + 1} of all")


def _scrolls(walker: Walker) -> None:
    """Up and Down are taken by the screen: nothing closes, and no letter of theirs is shown."""
    before = walker.terminal.text
    walker.send(_DOWN + _UP)
    walker.press("help")
    walker.sees("scroll")
    walker.send(_ESCAPE)
    walker.terminal.until(lambda: walker.terminal.text.splitlines()[0] == before.splitlines()[0])


def _changes_a_setting(walker: Walker) -> None:
    walker.send("top_k")
    walker.sees_no("model.name")
    walker.send(_ENTER)
    walker.sees("Enter")
    walker.send(_ESCAPE)
    walker.sees("answer.top_k")
    walker.send(_ESCAPE)
    walker.sees("model.name")


def _chooses_a_model(walker: Walker) -> None:
    walker.sees("ships with desk-rag")
    walker.send("/nowhere/model")
    walker.sees("/nowhere/model")
    walker.send(_ENTER)
    walker.sees("neither a model directory")
    walker.send(_ESCAPE)
    walker.sees("ships with desk-rag")


def _filters_models(walker: Walker) -> None:
    walker.sees("ships with desk-rag")
    walker.send("nosuchmodel")
    walker.sees_no("ships with desk-rag")
    walker.send(_ESCAPE)
    walker.sees("ships with desk-rag")


def _moves_in_models(walker: Walker) -> None:
    walker.sees("ships with desk-rag")
    walker.send(_DOWN + _UP)
    walker.sees("needs no download")


def _library_moves(walker: Walker) -> None:
    walker.sees("house", "notes.md")
    walker.send("\x1b[1;5F")  # Ctrl+End
    walker.sees("1 chunk")
    walker.send("\x1b[1;5H" + _PAGE_DOWN + _UP + _DOWN)
    walker.sees("1 chunk")


def _into_and_out_of_a_folder(walker: Walker) -> None:
    walker.sees("house", "notes.md")
    walker.send("\x1b[1;5H" + _ENTER)
    walker.sees_no("notes.md")
    walker.sees("doors.md")
    walker.send(_BACKSPACE)
    walker.sees("notes.md")


def _opens_an_entry(walker: Walker) -> None:
    """What the footer calls "Open": a folder, and the text of a file, without a menu between."""
    _into_and_out_of_a_folder(walker)
    walker.send("doors" + _ENTER)  # faster than the list
    walker.sees("house/doors.md · as desk-rag read it", "The kitchen door is painted green.")
    walker.send(_ESCAPE)
    walker.sees_no("as desk-rag read it")
    walker.send(_ESCAPE)
    walker.sees("notes.md")
    walker.send("broken" + _ENTER)
    walker.sees("There is no text of this file in the index.", "failed: ")
    walker.send(_ESCAPE)
    walker.sees_no("There is no text of this file in the index.")
    walker.send(_ESCAPE)
    walker.sees("notes.md")


def _entry_actions(walker: Walker) -> None:
    walker.sees("house", "notes.md")
    walker.press("entry_actions")
    walker.sees("Copy its path")
    walker.send(_ESCAPE)
    walker.sees_no("Copy its path")


def _show(walker: Walker) -> None:
    walker.sees("all files")
    for sign in ("read ", "failed ", "left out ", "all files"):
        walker.press("show")
        walker.sees(sign)


def _undo(walker: Walker) -> None:
    walker.press("undo")
    walker.sees("There is nothing to undo")


def _prompt_letters(walker: Walker) -> None:
    walker.send("half")
    walker.sees("half")
    walker.send("\x03")
    walker.sees(PROMPT)


def _prompt_history(walker: Walker) -> None:
    walker.send(_UP)
    walker.sees_no(PROMPT)
    walker.send(_DOWN)
    walker.sees(PROMPT)


def _from(tabs: int, check: Check) -> Check:
    """Go from the prompt to a place of the chat by Tab, check, and return."""

    def run(walker: Walker) -> None:
        walker.send(_TAB * tabs)
        walker.sees("esc Back")
        check(walker)
        walker.send(_ESCAPE)
        walker.sees_no("esc Back")

    return run


def _transcript_moves(walker: Walker) -> None:
    """The answer above is selected: it alone is what the menu is about."""
    walker.send(_UP + _ENTER)
    walker.terminal.until(lambda: walker.terminal.text.count("when does the warranty end?") == 2)
    walker.send(_ESCAPE)
    walker.terminal.until(lambda: walker.terminal.text.count("when does the warranty end?") == 1)
    walker.send(_DOWN)


def _transcript_menu(walker: Walker) -> None:
    walker.send(_ENTER)
    walker.sees("Copy the quotes")
    walker.send(_ESCAPE)
    walker.sees_no("Copy the quotes")


def _nothing(walker: Walker) -> None:
    """What `_from` does is the check: Esc goes back."""


def _sources_move(walker: Walker) -> None:
    walker.send(_UP * 4)
    walker.sees("4.2 Term")
    walker.send(_DOWN)
    walker.sees("Keep the inspection log")


def _sources_read_on(walker: Walker) -> None:
    walker.send(_ENTER)
    walker.press("help")
    walker.sees("The source", "scroll")
    walker.send(_ESCAPE)
    walker.sees_no("Keys of the chat")


def _opens(walker: Walker) -> None:
    walker.press("source_1", "open_source")
    walker.sees("there any more")


CHECKS: dict[tuple[str, str], Check] = {
    ("activity", "Enter"): _at("activity", "found by words", _pauses_and_goes_on),
    ("activity", "work_now"): _at("activity", "found by words", _work_now),
    ("activity", "pause"): _at("activity", "found by words", _pause_key),
    ("activity", "Esc"): _at("activity", "found by words", _leaves),
    ("cache", "Enter"): _at("cache", "of 1.0 GiB", _verifies),
    ("cache", "Up, Down"): _at("cache", "of 1.0 GiB", _scrolls),
    ("cache", "settings"): _at("cache", "of 1.0 GiB", _to_settings),
    ("cache", "Esc"): _at("cache", "of 1.0 GiB", _leaves),
    ("doctor", "Enter"): _at("doctor", "nothing is wrong", _checks_again),
    ("doctor", "Up, Down"): _at("doctor", "nothing is wrong", _scrolls),
    ("doctor", "Esc"): _at("doctor", "nothing is wrong", _leaves),
    ("settings", "letters"): _at("settings", "model.name", _filters("top_k", "model.name")),
    ("settings", "Up, Down"): _at("settings", "model.name", _moves("model.adapter", "model.name")),
    ("settings", "Enter"): _at("settings", "model.name", _changes_a_setting),
    ("settings", "Esc"): _at("settings", "model.name", _leaves),
    ("models", "letters"): _at("models", "name another model", _filters_models),
    ("models", "Up, Down"): _at("models", "name another model", _moves_in_models),
    ("models", "Enter"): _at("models", "name another model", _chooses_a_model),
    ("models", "Esc"): _at("models", "name another model", _leaves),
    ("library", "letters"): _at("library", "notes.md", _filters("roof", "notes.md")),
    ("library", "Up, Down"): _at("library", "notes.md", _library_moves),
    ("library", "Enter"): _at("library", "notes.md", _opens_an_entry),
    ("library", "entry_actions"): _at("library", "notes.md", _entry_actions),
    ("library", "Backspace"): _at("library", "notes.md", _into_and_out_of_a_folder),
    ("library", "show"): _at("library", "notes.md", _show),
    ("library", "undo"): _at("library", "notes.md", _undo),
    ("library", "Esc"): _at("library", "notes.md", _leaves),
    ("prompt", "letters"): _prompt_letters,
    ("prompt", "Up, Down"): _prompt_history,
    ("transcript", "Up, Down"): _from(1, _transcript_moves),
    ("transcript", "Enter"): _from(1, _transcript_menu),
    ("transcript", "Esc"): _from(1, _nothing),
    ("sources", "Up, Down"): _from(2, _sources_move),
    ("sources", "Enter"): _from(2, _sources_read_on),
    ("sources", "open_source"): _from(2, _opens),
    ("preview-text", "Up, Down"): _from(3, _nothing),
    ("preview-text", "open_source"): _from(3, _opens),
    ("preview-text", "Esc"): _from(3, _nothing),
}


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walker]:
    """The program with two answers on its screen."""
    place = tmp_path_factory.mktemp("screens")
    terminal = Terminal(
        ["-m", "tests.tui.wire.program", str(place)],
        columns=130,
        rows=46,
        env={"HOME": str(place), "TMPDIR": str(place)},
    )
    try:
        terminal.until(lambda: PROMPT in terminal.text and "watching" in terminal.text, 60)
        for number, question in enumerate(("when does the warranty end?", "who repaired it?"), 1):
            terminal.send(f"{question}\r")
            terminal.until(lambda: terminal.text.count("first word") == number and "4.2 Term" in terminal.text)  # noqa: B023
        yield Walker(terminal, place)
    finally:
        terminal.close()


@pytest.mark.parametrize(("screen", "key"), CHECKS, ids=lambda value: value)
def test_a_key_of_a_screen_does_what_f1_says(walker: Walker, screen: str, key: str) -> None:
    CHECKS[screen, key](walker)
    assert "Traceback" not in walker.terminal.text


def test_every_key_that_f1_names_is_tried() -> None:
    named = {(name, key) for name, panel in PANELS.items() for key, _ in panel.load(name).KEYS}
    named |= {(name, key) for name, (_, keys) in HERE.items() for key, _ in keys}
    assert named == CHECKS.keys()
    assert {key for key, _ in FirstRunScreen.KEYS} == {
        "letters", "Up, Down", "Tab", "Enter", "other_model", "leave_out", "Esc",
    }  # fmt: skip
    assert {key for key, _ in DownloadScreen.KEYS} == {"Enter", "Esc"}, "tests/tui/management/test_download.py"


def test_the_keys_of_the_first_run(tmp_path: Path) -> None:
    """All that F1 names there, in the program as it is installed."""
    for name in ("alpha", "beta"):
        (tmp_path / "papers" / name).mkdir(parents=True)
        (tmp_path / "papers" / name / "note.md").write_text("The gate is green.\n")
    (tmp_path / "papers" / "beta" / "weather.log").write_text("It rained.\n" * 150_000)
    home = {
        "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "DESK_RAG_DATA_DIR": str(tmp_path / "data"),
    }  # fmt: skip
    terminal = Terminal(["-m", "desk_rag"], columns=130, rows=46, env=home)
    walker = Walker(terminal, tmp_path)
    try:
        terminal.until(lambda: "Which folder" in terminal.text, 60)
        walker.send("~/papers/")
        walker.sees("~/papers/alpha", "~/papers/beta")
        walker.send(_DOWN + _DOWN + _UP + _DOWN + _TAB)
        terminal.until(lambda: terminal.text.count("~/papers/beta/") == 1 and "~/papers/alpha" not in terminal.text)
        walker.send(_ENTER)
        walker.sees("will read", "2 files", "leaves weather.log out")
        walker.send(_ESCAPE)
        walker.sees_no("will read")
        walker.press("other_model")
        walker.sees("ships with desk-rag")
        walker.send(_ESCAPE)
        walker.sees("Which folder")
        walker.send(_ENTER)
        walker.sees("will read", "leaves weather.log out")
        walker.send("\x14")
        walker.sees("1 file", "weather.log, by your choice")
        walker.send(_ENTER)
        walker.sees(PROMPT)
        assert "weather.log" in (tmp_path / "desk-rag" / "config.toml").read_text()
        terminal.send("\x11")
        assert terminal.wait() == 0
    finally:
        terminal.close()
