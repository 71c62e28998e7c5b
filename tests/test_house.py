"""Rules for where files lie: few at the top, few in a folder, every folder explained, ARCHITECTURE.md true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = {"__init__", "__main__", "assets", "config", "device_lock", "errors", "owned_directory", "owned_folder",
       "sanitize", "settings_file", "timing"}
MOST = 13
"""Modules in one folder, `__init__` and `conftest` left out."""


def folders(*packages: str) -> list[Path]:
    """All folders that hold Python files."""
    return sorted({file.parent for package in packages for file in (ROOT / package).rglob("*.py")})


def test_the_top_of_the_package_stays_short() -> None:
    assert {file.stem for file in (ROOT / "desk_rag").glob("*.py")} <= TOP


@pytest.mark.parametrize(
    "folder", folders("desk_rag", "indexer", "tui", "tests"), ids=lambda it: str(it.relative_to(ROOT))
)
def test_no_folder_is_crowded(folder: Path) -> None:
    modules = sorted(file.stem for file in folder.glob("*.py") if file.stem not in ("__init__", "conftest"))
    assert len(modules) <= MOST, f"make a room inside: {', '.join(modules)}"


@pytest.mark.parametrize("folder", folders("desk_rag", "indexer", "tui"), ids=lambda it: str(it.relative_to(ROOT)))
def test_every_folder_says_in_one_line_what_it_is_for(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert said and "\n" not in said


def test_ui_and_watcher_have_one_name() -> None:
    """A checkout also has `tui` and `indexer`, which are not the modules `desk_rag.tui` and `desk_rag.indexer`."""
    wrong = re.compile(r"^[^#\n]*\b(?:from|import) (?:tui|indexer)\b", re.MULTILINE)
    files = [file for package in ("desk_rag", "indexer", "tui", "tests") for file in (ROOT / package).rglob("*.py")]
    assert len(files) > 400
    assert not [str(file) for file in files if wrong.search(file.read_text(encoding="utf-8"))]


def test_architecture_names_every_room_and_nothing_that_is_gone() -> None:
    text = (ROOT / "desk_rag" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(?:\.\./)?(\w+)/` \|", text, re.MULTILINE))
    rooms = {folder.name for folder in folders("desk_rag") if folder.parent == ROOT / "desk_rag"}
    assert rows == rooms | {"indexer", "tui"}
    places = set(
        re.findall(
            r"(?<![\w./])(?:indexer|tui|kv|store|documents|model|retrieval|answering|ingest|cli|bench)/[\w/]+", text
        )
    )
    assert len(places) > 20
    gone = {
        place
        for place in places
        for base in [ROOT if place.split("/")[0] in ("indexer", "tui") else ROOT / "desk_rag"]
        if not (base / f"{place}.py").exists() and not (base / place).is_dir() and not (base / f"{place}.md").exists()
    }
    assert not gone, f"ARCHITECTURE.md names what is not there: {sorted(gone)}"


def test_docstrings_say_what_a_thing_is() -> None:
    """No fragment that parses only with the name above it, and no list of what a module knows."""
    fragments = re.compile(r'"""Of [a-z`]|\bKnows [^.]*; knows ')
    questions = re.compile(r'"""(?:How|What|Where|Whether|Which|Who|When) ')
    places = re.compile(r'"""(?:As|At|Behind|By|For|From|In|Most|On|Per|To|Why|With) [a-z`\[(]')
    tidy = ("kv", "store", "ingest", "retrieval", "cli", "finetune", "bench", "indexer")
    rooms = {questions: ("documents", "model", *tidy), places: tidy}

    def applies(pattern: re.Pattern[str], file: Path) -> bool:
        folders = (base / room for room in rooms.get(pattern, ()) for base in (ROOT / "desk_rag", ROOT))
        return pattern is fragments or any(file.is_relative_to(folder) for folder in folders)

    wrong = [
        f"{file.relative_to(ROOT)}: {match.group()}"
        for package in ("desk_rag", "indexer", "tui", "tests")
        for file in (ROOT / package).rglob("*.py")
        for pattern in (fragments, questions, places)
        if applies(pattern, file)
        for match in pattern.finditer(file.read_text(encoding="utf-8"))
        if file != Path(__file__).resolve()
    ]
    assert not wrong, "begin with an imperative or a noun: " + "; ".join(wrong)
