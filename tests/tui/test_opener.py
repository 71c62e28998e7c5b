"""Which program opens a source: argument lists, hostile names, refused programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.documents.chunking import Location
from desk_rag.documents.formats import PlaceUnits
from desk_rag.errors import ConfigError, DocumentError, UnreadableDocument
from desk_rag.tui.opener import Opening, edit, editor_for_text, opening

LINES = Location("", None, None, 12, 40)


def at(path: Path, location: Location = LINES) -> tuple[Path, Location]:
    return path, location


@pytest.mark.parametrize("name", ["-rf", "$(x).md", "a;b", "sp ace.md", "new\nline.md", "'quote'.md"])
def test_hostile_names_stay_one_absolute_argument(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    command = opening(*at(Path(name)), {"EDITOR": "vim -R"})
    assert command == Opening(("vim", "-R", "+12", str(tmp_path / name)), in_terminal=True)


@pytest.mark.parametrize(
    ("editor", "arguments", "in_terminal"),
    [
        ("nano", ["+12", "{}"], True),
        ("/usr/bin/hx", ["{}:12"], True),
        ("code --wait", ["--goto", "{}:12"], False),
        ("unheard-of", ["{}"], True),
    ],
)
def test_line_in_the_editors_own_way(tmp_path: Path, editor: str, arguments: list[str], in_terminal: bool) -> None:
    file = tmp_path / "a.md"
    file.write_text("x")
    command = opening(*at(file), {"VISUAL": editor, "EDITOR": "ignored"})
    assert list(command.argv) == editor.split() + [argument.format(file) for argument in arguments]
    assert command.in_terminal is in_terminal


def test_page_documents_go_to_the_desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "xdg-open"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    file = tmp_path / "-a.pdf"
    file.write_bytes(b"%PDF")
    command = opening(*at(file, Location("", 4, 4)), {"EDITOR": "vim", "DISPLAY": ":0"})
    assert command == Opening((str(tool), str(file)), in_terminal=False)
    assert opening(*at(file, Location("", 4, 4)), {"EDITOR": "vim"}) is None, "its text is shown inside"
    (tmp_path / "xdg-mime").write_text("#!/bin/sh\necho org.gnome.Evince.desktop\n")
    (tmp_path / "evince").write_text("#!/bin/sh\n")
    for name in ("xdg-mime", "evince"):
        (tmp_path / name).chmod(0o700)
    command = opening(*at(file, Location("", 4, 4)), {"DISPLAY": ":0"})
    assert command == Opening((str(tmp_path / "evince"), "--page-index=4", str(file)), in_terminal=False)


def test_rows_of_a_sheet_are_no_lines_for_an_editor(tmp_path: Path) -> None:
    file = tmp_path / "prices.xlsx"
    file.write_bytes(b"PK")
    rows = Location("Sheet", None, None, 12, 40, PlaceUnits("sheet", "sheets", "row", "rows"))
    assert opening(*at(file, rows), {"EDITOR": "vim"}) is None


@pytest.mark.parametrize("name", ["run.desktop", "a.EXE", "b.jar"])
def test_programs_are_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("x")
    with pytest.raises(DocumentError, match="can be run as a program"):
        opening(*at(file, Location()), {"DISPLAY": ":0"})


def test_executable_bit_stops_no_document(tmp_path: Path) -> None:
    file = tmp_path / "from-a-stick.pdf"
    file.write_bytes(b"%PDF-1.7")
    file.chmod(0o700)
    assert opening(*at(file, Location("", 1, 1)), {}) is None


def test_a_program_under_another_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "innocent.pdf"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o700)
    with pytest.raises(DocumentError, match="can be run as a program"):
        opening(*at(file, Location("", 1, 1)), {"DISPLAY": ":0"})


def test_vanished_file(tmp_path: Path) -> None:
    with pytest.raises(UnreadableDocument, match="not there any more"):
        opening(*at(tmp_path / "gone.md"), {"EDITOR": "vim"})


def _editor(place: Path, name: str, script: str) -> Path:
    program = place / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return program


def test_a_question_is_edited_in_the_users_editor(tmp_path: Path) -> None:
    editor = _editor(tmp_path, "ed it", 'printf "%s\\nin May?\\n\\n" "$(cat "$2")" > "$2"')
    assert edit("Who came", editor_for_text({"EDITOR": f"'{editor}' -x"})) == "Who came\nin May?"


def test_an_editor_with_a_window_is_waited_for(tmp_path: Path) -> None:
    editor = _editor(tmp_path, "code", f'echo "$@" > {tmp_path}/arguments; echo done > "$2"')
    assert edit("", editor_for_text({"VISUAL": str(editor)})) == "done"
    assert (tmp_path / "arguments").read_text().startswith("--wait /")
    assert edit("", editor_for_text({"VISUAL": f"{editor} --wait"})) == "done", "it is asked for once"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "No editor is named"),
        ({"EDITOR": "/nowhere/nano"}, "/nowhere/nano is not installed"),
        ({"EDITOR": "false"}, r"ended with an error \(1\)"),
        ({"EDITOR": "rm"}, "could not edit the question: No such file"),
    ],
)
def test_an_editor_that_fails_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        edit("Who came?", editor_for_text(environment))
    assert raised.value.remedy
