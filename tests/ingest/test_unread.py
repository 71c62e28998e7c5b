"""Files that were not read are counted by kind, with SQL that stays fast when there are many."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.config import Settings
from desk_rag.documents.status import FileState
from desk_rag.ingest import explanation, unread
from desk_rag.store.store import Store
from desk_rag.store.types import FOLDER
from tests.store import made

KIND = "not a kind of file that desk-rag reads"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (f"{KIND} ('.PNG')", "images"),
        (f"{KIND} ('.zip')", "archives"),
        (f"{KIND} (binary)", "binary files"),
        (f"{KIND} ('.odd)(name')", "binary files"),
        ("larger than 50 MiB", "too large"),
        ("secret: *.pem", "that may hold secrets"),
        (".gitignore: *.log", "by your rules"),
        ("default: .git/", "of tools"),
        ("empty", "empty"),
        ("link to a folder", "others"),
    ],
)
def test_reason_belongs_to_a_kind(reason: str, kind: str) -> None:
    assert unread.kind_of(reason) == kind


def test_why_says_what_would_make_a_file_readable(tmp_path: Path) -> None:
    old = tmp_path / "charter.doc"
    old.write_bytes(b"\xd0\xcf\x11\xe0")
    assert "save it as .docx" in explanation.explain(None, old, Settings()).reason
    with Store.open(tmp_path / "data", made.settings(), writer=True) as store:
        store.record_outcome(old, FileState.SKIPPED, f"{KIND} ('.doc')", None)
        assert "save it as .docx" in explanation.explain(store, old, Settings()).reason


def test_only_the_asked_folders_are_counted(tmp_path: Path) -> None:
    home = Path("/home/ada")
    outcomes = {
        home / "docs" / "a.png": (FileState.SKIPPED, f"{KIND} ('.png')"),
        home / "docs" / "b.gif": (FileState.SKIPPED, f"{KIND} ('.gif')"),
        home / "docs" / "c.exe": (FileState.SKIPPED, f"{KIND} ('.exe')"),
        home / "docs" / "d.pdf": (FileState.FAILED, f"{home / 'docs' / 'd.pdf'} is damaged"),
        home / "docs-2" / "e.png": (FileState.SKIPPED, f"{KIND} ('.png')"),
        home / "tools" / "f.exe": (FileState.SKIPPED, f"{KIND} ('.exe')"),
    }
    with Store.open(tmp_path, made.settings(), writer=True) as store:
        for path, (state, reason) in outcomes.items():
            store.record_outcome(path, state, reason, None)
        docs = unread.may_hold_answer(store, [home / "docs"])
        assert docs == unread.UnreadFiles(4, (("images", 2), ("that could not be read", 1), ("programs", 1)))
        assert docs.summary == "4 files not read: 2 images, 1 that could not be read, 1 program"
        skipped = unread.skipped_files(store, [home / "docs"])
        assert skipped.summary == "3 files left out: 2 images, 1 program"
        assert unread.skipped_files(store, []).files == 5
        only_programs = unread.may_hold_answer(store, [home / "tools"])
        assert only_programs is not None and only_programs.summary == "1 file not read: 1 program"
        assert only_programs.hint == "desk-rag why FOLDER lists it"
        assert unread.may_hold_answer(store, [home / "elsewhere"]) is None


def test_a_single_folder_is_named_and_many_are_counted(tmp_path: Path) -> None:
    desk = Path("/desk")
    with Store.open(tmp_path, made.settings(), writer=True) as store:
        store.record_outcome(desk / "private", FileState.SKIPPED, "exclude: private/", FOLDER)
        only = unread.may_hold_answer(store, [desk])
        assert only is not None and only.summary == "1 folder not read: /desk/private/ and what is in it"
        assert only.hint == "desk-rag why FOLDER lists it"
        for name in ("a", "b"):
            store.record_outcome(desk / name, FileState.SKIPPED, "hidden: .*", FOLDER)
            store.record_outcome(desk / name / ".git", FileState.SKIPPED, "default: .git/", FOLDER)
        store.record_outcome(desk / "x.md", FileState.SKIPPED, "exclude: *.md", None)
        left_out = unread.skipped_files(store, [])
        folders = "2 folders of tools, 2 hidden folders, /desk/private/ and what is in it"
        assert left_out.summary == f"1 file and 5 folders left out: 1 by your rules, {folders}"
        named = unread.named_in("What is in private?", store, [desk], by_kind=True)
        assert named == ["private/ and what is in it were not read: exclude: private/"]


def test_what_cannot_hold_an_answer_is_not_counted_and_the_line_stays_short(tmp_path: Path) -> None:
    links = ("link to a folder", "link to nothing that is read", "not a regular file", "loop of mounts")
    others = ("empty", "default: .git/", "cache folder: CACHEDIR.TAG")
    with Store.open(tmp_path, made.settings(), writer=True) as store:
        for number, reason in enumerate((*links, *others)):
            store.record_outcome(Path(f"/desk/{number}"), FileState.SKIPPED, reason, None)
        assert unread.may_hold_answer(store, []) is None
        assert unread.skipped_files(store, []).kinds == (("of tools", 2), ("empty", 1))
        for number, suffix in enumerate((*[".png"] * 4, *[".zip"] * 3, *[".doc"] * 2, ".mp3", ".mobi")):
            store.record_outcome(Path(f"/desk/x{number}"), FileState.SKIPPED, f"{KIND} ('{suffix}')", None)
        counted = unread.may_hold_answer(store, [])
        assert counted is not None
        kinds = "4 images, 3 archives, 2 old Office and iWork files, 2 of other kinds"
        assert counted.brief == f"11 files not read: {kinds}" and counted.summary.count(",") == 4
