"""What a terminal sends, byte for byte, to the real program: keys, bursts and pastes that a test by key names hides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tui.terminal import Terminal

_ALT = "\x1b"


@pytest.fixture(scope="module")
def program() -> Iterator[Terminal]:
    """The UI with one answered question, whose sources are four."""
    terminal = Terminal(["-m", "tests.tui.scripted", "plain"], columns=118, rows=40)
    try:
        terminal.until(lambda: "Ask about your files" in terminal.text and "watching" in terminal.text)
        terminal.send("when does the warranty end?\r")
        terminal.until(lambda: "first word" in terminal.text and "4.2 Term" in terminal.text)
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def terminal(program: Terminal) -> Iterator[Terminal]:
    """The same program with an empty prompt."""
    yield program
    program.send("§")
    program.until(lambda: "§" in program.text)
    program.send("\x03")
    program.until(lambda: "Ask about your files" in program.text)


@pytest.mark.parametrize("number", ["2", "4", "3", "1"])
def test_alt_and_a_digit_select_a_source(terminal: Terminal, number: str) -> None:
    texts = {"1": "4.2 Term", "2": "Keep the inspection log", "3": "is booked for May", "4": "Set the date"}
    terminal.send(f"{_ALT}{number}")
    terminal.until(lambda: texts[number] in terminal.text)
    assert "Ask about your files" in terminal.text, "nothing was typed into the prompt"


@pytest.mark.parametrize("elsewhere", ["\t", "\t\t", "\t\t\t"], ids=["transcript", "sources", "preview"])
def test_letters_go_to_the_prompt_from_everywhere(terminal: Terminal, elsewhere: str) -> None:
    terminal.send(elsewhere)
    terminal.until(lambda: "esc Back" in terminal.text)
    terminal.send("find my keys, not yours")
    terminal.until(lambda: "find my keys, not yours" in terminal.text)
    assert terminal.text.count("first word") == 1, "no letter was a command"
    assert "Traceback" not in terminal.text


def test_a_new_line_keeps_its_place_in_a_burst(terminal: Terminal) -> None:
    for keys in ("abc\x0adef", f"abc{_ALT}\rdef"):
        terminal.send(keys)
        terminal.until(lambda: "abc" in terminal.text and "def" in terminal.text)
        rows = [row for row in terminal.text.splitlines() if "abc" in row or "def" in row]
        assert len(rows) == 2 and "abc" in rows[0] and "def" in rows[1], rows
        terminal.send("\x03")
        terminal.until(lambda: "Ask about your files" in terminal.text)


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"], ids=["cr", "lf", "crlf"])
@pytest.mark.parametrize("cut", [0, 4, 17, 30, 48])
def test_a_paste_with_escapes_is_one_paste_and_sends_nothing(terminal: Terminal, end: str, cut: int) -> None:
    """Also if reads cut it in two, within its markers as well."""
    paste = f"\x1b[200~one \x1b[31mred\x1b[0m two{end}\x1b three\x1b[20{end}four\x1b[201~"
    for part in (paste[:cut], paste[cut:]) if cut else (paste,):
        terminal.send(part)
        terminal.pause(0.02)
    terminal.until(lambda: "one red two" in terminal.text and "four" in terminal.text)
    assert terminal.text.count("first word") == 1 and "›" in terminal.text
    rows = [row.strip() for row in terminal.text.splitlines()[-7:]]
    assert any("one red two" in row for row in rows) and any(row.endswith("four") for row in rows), rows


def test_typing_goes_on_after_a_paste(terminal: Terminal) -> None:
    terminal.send("a\x1b[200~b\x1b]0;title\x07c\x1b[201~d")
    terminal.until(lambda: "abcd" in terminal.text)


def test_a_paste_goes_to_the_prompt_from_everywhere(terminal: Terminal) -> None:
    terminal.send("\t")
    terminal.until(lambda: "esc Back" in terminal.text)
    terminal.send("\x1b[200~pasted from afar\x1b[201~")
    terminal.until(lambda: "pasted from afar" in terminal.text)


def test_escape_alone_is_still_a_key(terminal: Terminal) -> None:
    terminal.send("\t")
    terminal.until(lambda: "esc Back" in terminal.text)
    terminal.send("\x1b")
    terminal.until(lambda: "esc Back" not in terminal.text)


def test_alt_and_a_letter_act_and_type_nothing(terminal: Terminal) -> None:
    terminal.send(f"{_ALT}t")
    terminal.until(lambda: "read the question" in terminal.text)
    terminal.send(f"{_ALT}t")
    terminal.until(lambda: "read the question" not in terminal.text)
    terminal.send(f"{_ALT}m")
    terminal.until(lambda: "Compare with full prefill" in terminal.text)
    terminal.send("\x1b")
    terminal.until(lambda: "Compare with full prefill" not in terminal.text)
    assert "Ask about your files" in terminal.text


def test_bytes_that_are_no_text_do_no_harm(terminal: Terminal) -> None:
    terminal.send_bytes(b"\xff\xfe\x80ok")
    terminal.until(lambda: "ok" in terminal.text)
