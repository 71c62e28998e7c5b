"""Rules of `exclude` that name one path hold for it and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.config import IndexSettings
from desk_rag.documents.discovery import FoundFile, LeftOut, examine
from desk_rag.documents.rules.one_path import holding_in, rule_for_path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_path_below_the_home_directory_is_named_shortly(home: Path, tmp_path: Path) -> None:
    assert rule_for_path(home / "notes" / "private", is_folder=True) == "~/notes/private/"
    assert rule_for_path(tmp_path / "srv" / "a.md", is_folder=False) == f"/{tmp_path.as_posix()}/srv/a.md"
    rules = ["*.bak", "~/notes/private/", "!~/notes/private/open.md", "~/other/x.md"]
    held = holding_in(home / "notes", rules)
    assert held == {
        "*.bak": "*.bak", "/private/": "~/notes/private/", "!/private/open.md": "!~/notes/private/open.md"
    }  # fmt: skip
    assert holding_in(home, ["~/notes/private/"]) == {"/notes/private/": "~/notes/private/"}
    assert holding_in(Path("/"), [f"/{home.as_posix()}/a/"]) == {f"{home.as_posix()}/a/": f"/{home.as_posix()}/a/"}


@pytest.mark.parametrize("name", ["private", "od[d] #1", "!x", "star*", "end ", "tab\tname"])
def test_a_rule_leaves_out_its_folder_and_no_other_of_the_name(home: Path, name: str) -> None:
    for root in ("notes", "stick", "notes/work"):
        (home / root / name).mkdir(parents=True)
        (home / root / name / "a.md").write_text("text")
    settings = IndexSettings(exclude=(rule_for_path(home / "notes" / name, is_folder=True),))
    assert isinstance(examine(home / "notes", home / "notes" / name / "a.md", settings), LeftOut)
    assert isinstance(examine(home, home / "notes" / name / "a.md", settings), LeftOut)
    assert isinstance(examine(home / "stick", home / "stick" / name / "a.md", settings), FoundFile)
    assert isinstance(examine(home / "notes", home / "notes" / "work" / name / "a.md", settings), FoundFile)
