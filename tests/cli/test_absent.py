"""Messages about absent folders and vanished files in ask, status, deletions and index, with the real model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from desk_rag.cli.main import main
from desk_rag.sanitize import shown_path
from desk_rag.store.store import Store
from tests.store import made

QUESTION = "Where does the spare key lie?"


class Desk:
    """Commands on one folder, run in this process."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.docs, self.data, self._capsys = place / "docs", place / "data", capsys
        self.docs.mkdir()
        (self.docs / "key.txt").write_text("The spare key lies under the third flower pot.\n")
        for number in range(9):
            (self.docs / f"{number}.txt").write_text(f"Minutes of meeting {number}: the canal froze.\n")

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command; returns what it said on both streams."""
        returned = main(["--data-dir", str(self.data), "--device", "cpu", *words])
        captured = self._capsys.readouterr()
        assert returned == code, captured
        return captured.out + captured.err

    def json(self, *words: str) -> Any:
        """Run a command and read the object that it prints."""
        returned = main(["--data-dir", str(self.data), "--device", "cpu", *words, "--json"])
        captured = self._capsys.readouterr()
        assert returned == 0, captured
        return json.loads(captured.out)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("TZ", "UTC")
    built = Desk(tmp_path, capsys)
    built.run("index", "--no-kv", str(built.docs))
    return built


def test_an_absent_folder_answers_with_a_word_in_text_json_and_status(desk: Desk, tmp_path: Path) -> None:
    desk.docs.rename(tmp_path / "away")
    for replaced in (False, True):
        if replaced:
            desk.docs.mkdir()
            (desk.docs / "stray.txt").write_text("Not one of them.\n")
        shown = desk.run("ask", QUESTION, "--folder", str(desk.docs), "--no-index")
        assert "flower pot" in shown
        assert "its folder is not connected; from the index of 20" in shown
        assert "has changed since" not in shown
        answer = desk.json("ask", QUESTION)
        cited = {citation["source"] for citation in answer["citations"]}
        (source,) = [source for source in answer["sources"] if source["number"] in cited]
        assert source["absence"]["why"] == "folder not connected" and source["absence"]["indexed_at"] > 1.7e9
        (absent,) = desk.json("status")["absent"]
        assert (absent["path"], absent["documents"]) == (str(desk.docs), 10)
        assert "its 10 documents are kept and still found" in desk.run("status")
    assert "in its place" in desk.run("index", "--no-kv", str(desk.docs))
    for listed in (desk.run("ls", str(desk.docs)), desk.run("why", str(desk.docs / "stray.txt"))):
        assert "the next run reads it" not in listed
        assert f"not read, because another folder or drive is in its place: `desk-rag purge {desk.docs}`" in listed
    assert desk.json("search", "flower pot", "--words", "--folder", str(desk.docs))["results"]
    (desk.docs / "stray.txt").unlink()
    desk.docs.rmdir()
    (tmp_path / "away").rename(desk.docs)
    answer = desk.json("ask", QUESTION)
    assert [source["absence"] for source in answer["sources"]] == [None] * len(answer["sources"])
    assert desk.json("status")["absent"] == []


def test_vanished_files_are_listed_kept_and_confirmed(desk: Desk) -> None:
    key = desk.docs / "key.txt"
    for file in desk.docs.iterdir():
        if file.name not in ("0.txt", "1.txt"):
            file.unlink()
    assert "8 of 10 files are gone at once" in desk.run("index", "--no-kv", str(desk.docs))
    assert "its file is gone; from the index of 20" in desk.run("ask", QUESTION)
    assert "the files of 8 documents are gone; they leave the index in 2 days" in desk.run("status")
    listed = desk.run("deletions")
    assert f"{shown_path(desk.docs)}: 8 files that desk-rag had read cannot be found any more.\n" in listed
    assert "and forgets them in 2 days.\n" in listed and "  key.txt\n" in listed
    assert f"To forget them now:  desk-rag deletions --confirm {desk.docs}\n" in listed
    assert "contradict" in desk.run("deletions", "--keep", str(key), "--confirm", str(key), code=2)
    assert "No indexed file below" in desk.run("deletions", "--keep", str(desk.docs / "0.txt"), code=2)
    assert "Kept: 1 document." in desk.run("deletions", "--keep", str(key))
    rows = {row["path"]: row["decision"] for row in desk.json("deletions")["documents"]}
    assert len(rows) == 8 and rows.pop(str(key)) == "kept" and set(rows.values()) == {None}
    for path in rows:
        desk.run("deletions", "--confirm", path)
    (missing,) = desk.json("status")["missing_files"]
    assert (missing["waiting"], missing["kept"]) == (0, 1)
    assert "1 document without a file kept as you wished" in desk.run("status")
    assert "flower pot" in desk.run("ask", QUESTION)
    assert "Forgot 1 document whose files are gone." in desk.run("deletions", "--confirm", str(desk.docs))
    assert desk.json("deletions") == {"documents": [], "seconds_left": {}}
    assert desk.json("status")["files"] == 2


def test_a_decision_beside_a_writer_is_left_to_it(desk: Desk, open_writer: Callable[[Path], Store]) -> None:
    for number in range(8):
        (desk.docs / f"{number}.txt").unlink()
    desk.run("index", "--no-kv", str(desk.docs))
    store = open_writer(desk.data)
    said = desk.run("deletions", "--confirm", str(desk.docs))
    assert "Another desk-rag is writing; it forgets 8 documents at its next look." in said
    assert {one.decision.value for one in store.deletions.all()} == {"confirmed"}


@pytest.fixture
def open_writer() -> Any:
    opened: list[Store] = []

    def open_it(data: Path) -> Store:
        opened.append(Store.open(data, made.settings(), writer=True))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


def test_files_with_hostile_names_are_listed_clean(desk: Desk) -> None:
    for number in range(9):
        (desk.docs / f"{number}.txt").rename(desk.docs / f"{number}\x1b]52;c;x\x07.txt")
    desk.run("index", "--no-kv", str(desk.docs))
    for file in list(desk.docs.iterdir()):
        if file.name != "key.txt":
            os.unlink(file)  # noqa: PTH108
    desk.run("index", "--no-kv", str(desk.docs))
    listed = desk.run("deletions")
    assert "  0⟨ESC⟩.txt\n" in listed, "a mark instead of the sequence in its name"
    assert "\x1b" not in listed and "\x07" not in listed
