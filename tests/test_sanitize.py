"""Text of documents and models cannot command the terminal, and none of its ordinary text is lost."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desk_rag.sanitize import clean, clean_name, home_path, quoted_path, shown_path

ESC, BEL, ST, C1_ST = "\x1b", "\x07", "\x1b\\", "\x9c"


@pytest.mark.parametrize(
    "text",
    [
        "plain words, 100 % of them",
        "two\nlines\tand a tab",
        "Grüße aus Łódź, 東京, Ελλάδα, עברית, العربية",
        "fractions ½ and signs § 12 (3) – “quoted” … €",
        "🙂 and e\u0301",
        "[0m is no escape sequence without its escape",
        "",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        (f"a{ESC}[31mred{ESC}[0m", "ared"),
        (f"a{ESC}[2J{ESC}[1;1Hb", "ab"),
        (f"a{ESC}[?1049hb", "ab"),
        (f"a{ESC}]0;title{BEL}b", "ab"),
        (f"a{ESC}]52;c;ZXZpbA=={ST}b", "ab"),
        (f"{ESC}]8;;http://evil.example{ST}text{ESC}]8;;{ST}", "text"),
        (f"a{ESC}P1;2|data{ST}b", "ab"),
        (f"a{ESC}_apc{ST}b", "ab"),
        (f"a{ESC}^pm{ST}b", "ab"),
        (f"a{ESC}cb", "ab"),
        (f"a{ESC}(0b", "ab"),
        ("a\x9b31mb", "ab"),
        (f"a\x9d0;title{C1_ST}b", "ab"),
        (f"a\x90q{BEL}b", "ab"),
        ("a\x08\x08b", "ab"),
        ("a\x00b\x7fc\x85d", "abcd"),
        (f"a{ESC}", "a"),
    ],
)
def test_escape_sequences_and_controls_are_taken_out(hostile: str, shown: str) -> None:
    assert clean(hostile) == shown


@pytest.mark.parametrize("opener", [*(ESC + kind for kind in "]P_^X"), "\x9d", "\x90", "\x98", "\x9e", "\x9f"])
def test_a_string_that_never_ends_hides_nothing_that_follows(opener: str) -> None:
    """Wrongly decoded text is full of C1 codes: UTF-8 for ” read as Latin-1 holds U+009D. Only the code itself goes."""
    assert clean(f"before {opener}after\nnext line") == "before after\nnext line"


def test_a_terminator_in_another_line_does_not_make_the_text_between_a_command() -> None:
    assert clean(f"â\x80\x9dyes\nâ\x80\x9cno{BEL}") == "âyes\nâno"


@pytest.mark.parametrize("code", ["\u202e", "\u202a", "\u2066", "\u200b", "\u200e", "\ufeff", "\u00ad", "\U000e0041"])
def test_invisible_characters_become_visible(code: str) -> None:
    assert clean(f"a{code}b") == f"a⟨U+{ord(code):04X}⟩b"


def test_line_ends_are_made_one_kind() -> None:
    assert clean("a\r\nb\rc\nd") == "a\nb\nc\nd"


def test_a_carriage_return_cannot_overwrite_a_line() -> None:
    assert clean("safe text\rEVIL") == "safe text\nEVIL"


def test_single_line_joins_all_white_space() -> None:
    assert clean("  a\n\n b\t\u00a0c \r\n", single_line=True) == "a b c"
    assert clean("a\u2028b", single_line=True) == "a⟨U+2028⟩b"


def test_lone_surrogates_of_file_names_can_be_written() -> None:
    name = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
    assert clean(name).encode("utf-8")
    assert clean(name).startswith("caf")


_DANGEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_PARTS = st.sampled_from([*"[]0;m\\Pa\n\r\x1b\x07\x9c\x9d\u202e"])


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(_PARTS, max_size=12).map("".join)))
def test_nothing_dangerous_is_ever_left_and_cleaning_twice_changes_nothing(text: str) -> None:
    once = clean(text)
    assert not _DANGEROUS.search(once)
    assert clean(once) == once
    once.encode("utf-8")


@settings(max_examples=200, deadline=None)
@given(st.lists(_PARTS, max_size=12).map("".join), st.integers(0, 12))
def test_text_that_arrives_in_two_pieces_is_as_safe(text: str, cut: int) -> None:
    assert not _DANGEROUS.search(clean(text[:cut]) + clean(text[cut:]))


def test_paths_read_the_same_in_the_home_folder_as_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings_file, project = tmp_path / ".config" / "desk-rag" / "config.toml", tmp_path / "project"
    project.mkdir()
    for here in (tmp_path, tmp_path.parent, Path("/")):
        monkeypatch.chdir(here)
        assert shown_path(settings_file) == "~/.config/desk-rag/config.toml"
    monkeypatch.chdir(project)
    assert shown_path(settings_file) == "~/.config/desk-rag/config.toml" and shown_path(project / "a.md") == "a.md"
    assert shown_path(settings_file, [tmp_path / ".config"]) == "desk-rag/config.toml"
    assert home_path(tmp_path / "new\nline.txt") == "~/new⟨U+000A⟩line.txt"


def test_a_path_in_a_command_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("plain", "mail/01 windows late.eml", "it's $HOME.txt"):
        path = tmp_path / name
        pasted = subprocess.run(
            ["sh", "-c", f"printf %s {quoted_path(path)}"], capture_output=True, text=True, check=True
        )
        assert pasted.stdout == str(path)
    assert quoted_path(Path("/a b")) == "'/a b'"


def test_blanks_and_newlines_of_a_file_name_are_shown() -> None:
    assert clean_name("  two\nlines .txt") == "  two⟨U+000A⟩lines .txt"
