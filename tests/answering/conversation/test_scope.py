"""Folders and files named in a question."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desk_rag.answering.conversation.scope import UnknownName, mentions, resolve, token, without_names
from desk_rag.answering.conversation.turns import Request, Turn

BASE = Path("/desk")
FILES = [
    BASE / name
    for name in ("letters/lease.md", "letters/my boiler.md", "home/lease.md", "home/letters/old.txt", "notes.md")
]


def limited(question: str) -> tuple[str, list[str]]:
    """The question without names, and the paths below the desk."""
    scope = resolve(question, lambda: FILES, [BASE])
    return scope.question, [path.relative_to(BASE).as_posix() for path in scope.paths]


@pytest.mark.parametrize(
    ("question", "rest", "paths"),
    [
        ("@letters/ when does the lease end?", "when does the lease end?", ["letters"]),
        ("When does it end in @notes.md?", "When does it end?", ["notes.md"]),
        ("What does @notes.md say?", "What does notes.md say?", ["notes.md"]),
        ('@"my boiler.md" how old?', "how old?", ["letters/my boiler.md"]),
        (r"@my\ boiler.md how old?", "how old?", ["letters/my boiler.md"]),
        ("@home/lease.md when?", "when?", ["home/lease.md"]),
        ("When, in @notes.md and @home/?", "When?", ["notes.md", "home"]),
        ("@NOTES.MD when?", "when?", ["notes.md"]),
        ("@lease.md when?", "when?", ["letters/lease.md", "home/lease.md"]),
        ("@/desk/home when?", "when?", ["home"]),
        ("@home @home/lease.md when?", "when?", ["home"]),
    ],
)
def test_names_limit_the_search(question: str, rest: str, paths: list[str]) -> None:
    assert limited(question) == (rest, paths)


def test_without_a_name_nothing_is_listed() -> None:
    def never() -> list[Path]:
        raise AssertionError("the files were listed")

    for question in ("Write to ana@example.org?", r"Who is \@ana?", "Meet me @ noon"):
        scope = resolve(question, never, [BASE])
        assert scope.paths == (BASE,) and not scope.named
        assert "\\" not in scope.question


def test_unknown_name_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(UnknownName) as caught:
        limited("@leese.md when?")
    assert caught.value.message == "No indexed folder or file is called 'leese.md'."
    assert "@lease.md" in caught.value.remedy and "\\@leese.md" in caught.value.remedy
    with pytest.raises(UnknownName) as caught:
        limited("@\u001b]52;c;x\u0007 when?")
    assert "\u001b" not in str(caught.value)


def test_file_that_exists_but_is_not_indexed_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "new.md").write_text("x")
    with pytest.raises(UnknownName, match="exists but is not in the index"):
        limited(f"@{tmp_path / 'new.md'} when?")


@given(st.text(alphabet="ab .'\"@\\()?é", min_size=1, max_size=12).filter(lambda name: name not in (".", "..")))
def test_every_name_can_be_written_as_a_token(name: str) -> None:
    file = BASE / "x" / name
    if file.name != name or name != name.strip():
        return
    written = token(file, is_folder=False, bases=[BASE])
    scope = resolve(f"{written} when?", lambda: [file], [BASE])
    assert scope.paths == (file,) and scope.question == "when?"


@given(st.text(max_size=60))
def test_any_text_is_parsed(question: str) -> None:
    assert len(mentions(question)) <= question.count("@")
    without_names(question)


def test_paths_of_a_continued_chat_are_shown_as_in_its_first_answer() -> None:
    def turn(question: str, *limited_to: Path) -> Turn:
        return Turn(question, question, "3 May", found=True, limited_to=limited_to)

    folder, inner = Path("/home/ines/boats"), Path("/home/ines/boats/letters")
    earlier = (turn("When was the Heron built?", folder), turn("@letters/ Who wrote it?", inner))
    assert Request("And who owns it?", earlier).shown_from == (folder,)
    assert Request("And who owns it?", earlier, limit=(inner,)).shown_from == (inner,)
    assert Request("Who owns it?", (turn("@letters/ Who wrote it?", inner),)).shown_from == ()
