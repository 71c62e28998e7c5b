"""`ls`, `index --dry-run`, single files, `pause` and `resume`, over real folders and a real store."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.cli import main
from desk_rag.cli.folders.pausing import seconds_of
from desk_rag.cli.output import Progress
from desk_rag.config import IndexSettings, Settings, StoreSettings
from desk_rag.documents.status import FileState, IndexStage
from desk_rag.indexer.once import Published
from desk_rag.ingest.damage import notices
from desk_rag.ingest.events import StageProgress
from desk_rag.ingest.preview import preview
from desk_rag.store.store import Store
from desk_rag.store.types import DocumentRow
from desk_rag.tui.management.library import Library
from desk_rag.tui.management.session import Session


class Desk:
    """A folder that was indexed once, without caches."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.docs, self.data, self.capsys = root / "docs", root / "data", capsys
        (self.docs / "house").mkdir(parents=True)
        (self.docs / "house" / "roof.md").write_text("# Roof\n\nThe roofer comes on 14 May.\n")
        (self.docs / "door.txt").write_text("The kitchen door is painted green.\n")
        (self.docs / "broken.pdf").write_bytes(b"%PDF-1.7\nthis is no PDF")
        (self.docs / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))

    def run(self, *words: str) -> tuple[int, str, str]:
        code = main.main(["--data-dir", str(self.data), *words])
        printed = self.capsys.readouterr()
        return code, printed.out, printed.err

    def documents(self) -> list[DocumentRow]:
        with Store.open(self.data, StoreSettings(), writer=False) as store:
            return store.documents()

    def index(self) -> None:
        code, _, err = self.run("index", str(self.docs), "--no-kv")
        assert code == 3, "the PDF is broken"
        assert " found = " in err and " + 1 that could not be read + 1 left out\n" in err

    def json(self, *words: str) -> dict[str, object]:
        code, out, err = self.run(*words, "--json")
        assert code == 0, err
        printed = json.loads(out)
        assert isinstance(printed, dict)
        return printed


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def test_a_dry_run_counts_up_and_writes_nothing(desk: Desk) -> None:
    code, out, _ = desk.run("index", str(desk.docs), "--dry-run")
    assert code == 0
    assert out.startswith("4 files found = 3 to be read + 0 unchanged + 0 that could not be read before + 1 left out\n")
    assert "  new: house/roof.md\n" in out and "1 file left out: 1 image." in out and "Nothing was changed." in out
    assert "by words after " in out and " for the caches." in out
    assert not desk.data.exists()


def test_a_dry_run_after_changes_names_them(desk: Desk) -> None:
    desk.index()
    before = desk.documents()
    (desk.docs / "house" / "roof.md").write_text("# Roof\n\nThe roofer comes on 21 May.\n")
    (desk.docs / "door.txt").unlink()
    (desk.docs / "new.md").write_text("A new note.\n")
    report = desk.json("index", str(desk.docs), "--dry-run")
    assert report["new"] == [str(desk.docs / "new.md")]
    assert report["changed"] == [str(desk.docs / "house" / "roof.md")]
    assert report["gone"] == [str(desk.docs / "door.txt")]
    assert (report["unchanged"], report["failed"]) == (0, 1)
    assert report["not_read"] == {"files": 1, "kinds": {"images": 1}, "folders": {}}
    assert desk.documents() == before


def test_a_folder_that_is_left_out_counts_as_a_folder(desk: Desk, tmp_path: Path) -> None:
    private = desk.docs / "house" / "private"
    private.mkdir()
    (private / "health.md").write_text("The blood pressure was 148/92 in March.\n")
    rules = tmp_path / "rules.toml"
    rules.write_text('[index]\nexclude = ["private/"]\n')
    named = f"1 file and 1 folder left out: 1 image, {private}/ and what is in it"
    where = ("--config", str(rules))
    assert named in desk.run(*where, "index", str(desk.docs), "--dry-run")[1]
    _, _, err = desk.run(*where, "index", str(desk.docs), "--no-kv")
    assert named in err and " + 1 that could not be read + 1 left out\n" in err
    assert named in desk.run(*where, "status")[1]
    report = desk.json(*where, "status")
    assert report["skipped"] == 1
    assert report["not_read"] == {"files": 1, "kinds": {"images": 1}, "folders": {"by your rules": 1}}
    assert "; 1 left out; 1 folder left out as a whole\n" in desk.run(*where, "ls")[1]
    assert f"{private}/ and what is in it: excluded by you" in desk.run(*where, "ls", str(desk.docs))[1]
    of_folder = desk.run(*where, "why", str(desk.docs))[1]
    assert ", 1 failed, 1 folder left out as a whole\n" in of_folder
    assert "\n  house/private/ and what is in it\n" in of_folder
    assert f"{private}/ and what is in it: left out; exclude: private/" in desk.run(*where, "why", str(private))[1]
    refusal = desk.run(*where, "ask", "What was the blood pressure in March?")[1]
    assert f"{private}/ and what is in it; desk-rag why FOLDER lists them" in refusal
    summary = preview(desk.docs, IndexSettings(exclude=("private/",)))
    assert f"1 file and 1 folder left out: 1 image, {private}/ and what is in it." in summary.sentence


def test_a_folder_left_out_before_folders_were_marked_is_marked_by_the_next_sweep(desk: Desk, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[index]\nexclude = ["house/"]\n')
    house = desk.docs / "house"
    with Store.open(desk.data, StoreSettings(reserve_gib=0), writer=True) as store:
        store.record_outcome(house, FileState.SKIPPED, "exclude: house/", None)
    desk.run("--config", str(rules), "index", str(desk.docs), "--no-kv")
    assert [row.path for row in desk.documents() if row.is_folder] == [house]


def test_a_file_with_most_of_the_text_is_named_before_it_is_read(desk: Desk) -> None:
    assert "more than half" not in desk.run("index", str(desk.docs), "--dry-run")[1]
    (desk.docs / "server.log").write_text("12:00 GET /index.html 200\n" * 60_000)
    out = desk.run("index", str(desk.docs), "--dry-run")[1]
    rule = f"{desk.docs}/server.log"
    assert f'server.log is more than half of the text; `exclude = ["{rule}"]` under [index] leaves it out.' in out
    assert preview(desk.docs, IndexSettings()).giant == desk.docs / "server.log"
    assert preview(desk.docs, IndexSettings(exclude=(rule,))).giant is None


def test_an_answer_while_files_are_read_says_to_ask_again_and_not_to_index(desk: Desk) -> None:
    desk.index()
    with Store.open(desk.data, StoreSettings(reserve_gib=0), writer=True) as store:
        store.begin_run(desk.docs)
        assert "desk-rag index" in notices(store, (), ())[0]
        Published(Progress(io.StringIO()), store)
        activity = store.activity()
        assert activity is not None
        store.publish_activity(replace(activity, stage=IndexStage.WORDS, done=17, total=115))
        (notice,) = notices(store, (), ())
    assert notice == f"The index of {desk.docs} is still being made: ask again once that is done."


def test_a_folder_inside_an_indexed_one_is_not_counted_twice(desk: Desk) -> None:
    desk.index()
    assert desk.run("index", str(desk.docs / "house"), "--no-kv")[0] == 0
    assert f"{desk.docs / 'house'} (counted in {desk.docs}): 1 file, 1 chunk\n" in desk.run("ls")[1]
    library = Library(Session(Settings(data_dir=desk.data), [desk.docs]))
    assert (library.summary(None).indexed, library.summary(None).failed) == (2, 1)


def test_ls_names_folders_and_files_with_their_state(desk: Desk) -> None:
    desk.index()
    _, out, _ = desk.run("ls")
    assert out == f"{desk.docs}: 2 files, 2 chunks; 1 could not be read; 1 left out\n"
    (desk.docs / "house" / "roof.md").write_text("# Roof\n\nThe roofer comes on 21 May, in the rain.\n")
    (desk.docs / "new.md").write_text("A new note.\n")
    (desk.docs / "door.txt").unlink()
    files = desk.json("ls", str(desk.docs))["files"]
    assert isinstance(files, list)
    states = {Path(entry["path"]).name: entry["state"] for entry in files}
    assert states == {
        "broken.pdf": "not read", "door.txt": "gone", "new.md": "new", "photo.png": "left out", "roof.md": "changed"
    }  # fmt: skip
    _, out, _ = desk.run("ls", str(desk.docs / "broken.pdf"))
    assert out.startswith("not read") and out.count("\n") == 1
    assert "1 new; 1 changed" in desk.run("ls")[1]


def test_ls_without_an_index_and_of_an_unknown_folder(desk: Desk, tmp_path: Path) -> None:
    assert "Nothing is indexed yet" in desk.run("ls")[1]
    desk.index()
    (tmp_path / "other").mkdir()
    code, _, err = desk.run("ls", str(tmp_path / "other"))
    assert code == 1 and "is indexed" in err and "desk-rag ls" in err


def test_names_with_escapes_are_shown_clean(desk: Desk) -> None:
    (desk.docs / "bad\x1b]52;c;Zm9v\x07name.md").write_text("A note.\n")
    desk.index()
    assert "\x1b" not in desk.run("ls", str(desk.docs))[1]
    (desk.docs / "bad\x1b[2Jname.md").write_text("A note.\n")
    assert "\x1b" not in desk.run("index", "--dry-run", str(desk.docs))[1]


def test_a_single_file_is_indexed_found_and_listed(desk: Desk, tmp_path: Path) -> None:
    note = tmp_path / "otter.txt"
    note.write_text("The otter lives in the pond behind the mill.\n")
    (tmp_path / "beside.txt").write_text("Nobody asked for this file.\n")
    code, _, err = desk.run("index", str(note), "--no-kv")
    assert code == 0 and "1 file read" in err
    assert "otter.txt" in desk.run("search", "pond", "--words")[1]
    assert "Nothing found" in desk.run("search", "asked", "--words")[1]
    assert desk.run("ls")[1] == f"{note}: 1 file, 1 chunk\n"
    note.write_text("The otter moved to the lake.\n")
    assert desk.run("index", str(note), "--no-kv")[0] == 0
    assert "otter.txt" in desk.run("search", "lake", "--words")[1]
    note.write_text("=" * 90 + " weir water is deep and cold, and the otter lives in it now.\n")
    assert desk.run("index", str(note), "--no-kv")[0] == 0
    assert "…weir water is deep" in desk.run("search", "weir", "--words")[1]
    code, _, err = desk.run("index", str(desk.docs / "photo.png"), "--no-kv")
    assert "is left out: " in err


def test_a_single_file_that_is_deleted_is_forgotten_at_the_next_run(desk: Desk, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    note, stays = other / "otter.txt", other / "stays.txt"
    note.write_text("The otter lives in the pond behind the mill.\n")
    stays.write_text("The pond freezes in January.\n")
    assert desk.run("index", str(note), str(stays), "--no-kv")[0] == 0
    note.unlink()
    assert "the next run forgets it" in desk.run("why", str(note))[1]
    assert "otter.txt" in desk.run("search", "pond", "--words")[1]
    report = desk.json("index", str(stays), "--no-kv")
    assert report["removed"] == 1
    output = desk.run("search", "pond", "--words")[1]
    assert "stays.txt" in output and "otter.txt" not in output
    assert [row.path for row in desk.documents()] == [stays]


def test_single_files_whose_folder_is_empty_are_kept_and_why_says_so(desk: Desk, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    note = drive / "otter.txt"
    note.write_text("The otter lives in the pond behind the mill.\n")
    assert desk.run("index", str(note), "--no-kv")[0] == 0
    note.unlink()
    assert desk.run("index", str(desk.docs), "--no-kv")[0] == 3, "the PDF is broken"
    assert note in [row.path for row in desk.documents()]
    drive.rmdir()
    desk.docs.rename(tmp_path / "away")
    (desk.docs / "house").mkdir(parents=True)  # another drive, with a folder of the same name
    (desk.docs / "house" / "stray.txt").write_text("Not one of them.\n")
    (tmp_path / "new").mkdir()
    desk.run("index", str(tmp_path / "new"), "--no-kv")
    kept = {row.path.name for row in desk.documents() if row.num_chunks}
    assert kept == {"otter.txt", "roof.md", "door.txt"}, "an indexed folder that is away is not taken for single files"
    shutil.rmtree(desk.docs)
    (tmp_path / "away").rename(desk.docs)
    explained = desk.run("why", str(note))[1]
    assert "so it is kept" in explained and "desk-rag purge FILE" in explained
    assert desk.run("purge", str(note), "--yes")[0] == 0
    assert note not in [row.path for row in desk.documents()]


def test_many_single_files_of_a_folder_that_go_at_once_are_kept_for_a_while(desk: Desk, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    notes = [other / f"{number}.txt" for number in range(7)]
    for note in notes:
        note.write_text(f"Note {note.stem} about the otter.\n")
    assert desk.run("index", *map(str, notes), "--no-kv")[0] == 0
    for note in notes[:6]:
        note.unlink()
    assert "6 of 7 files are gone at once" in desk.run("index", str(notes[6]), "--no-kv")[2]
    said = desk.run("deletions")[1]
    assert f"{notes[0].name}" in said and "is gone, the longer it is kept: at most 3 days." in said
    assert "kept for a while" in desk.run("why", str(notes[0]))[1]
    notes[0].write_text("Note 0 about the otter.\n")
    desk.run("index", str(notes[6]), "--no-kv")
    assert {row.path for row in desk.documents()} == {notes[0], notes[6]}, "five are a handful: they go"


def test_what_is_said_of_files_adds_up(desk: Desk, tmp_path: Path) -> None:
    """Files that are gone were not found, equal chunks are not different ones, and each folder has its line."""
    desk.index()
    (desk.docs / "big.log").write_text(("a" * 400 + "\n\n") * 400)
    notes = [desk.docs / f"note {number}.txt" for number in range(6)]
    for note in notes:
        note.write_text(f"Note {note.stem} about the otter.\n")
    desk.run("index", str(desk.docs), "--no-kv")
    number = int(desk.run("index", str(desk.docs), "--no-kv")[2].split(" found = ")[0].split()[-2])
    for note in notes:
        note.unlink()
    err = desk.run("index", str(desk.docs), "--no-kv")[2]
    assert f"{number - 6} files found = " in err
    assert "6 files gone from the disk, but kept in the index (desk-rag deletions)" in err
    of_log = re.search(r"(\d+) chunks \((\d+) different\)", desk.run("why", str(desk.docs / "big.log"))[1])
    in_all = re.search(r"(\d+) chunks \((\d+) different\)", desk.run("status")[1])
    assert of_log and in_all and int(in_all[1]) - int(of_log[1]) == int(in_all[2]) - int(of_log[2]) > 0
    assert f"folder    {desk.docs}" in desk.run("status")[1] and desk.json("status")["folders"] == [str(desk.docs)]


def test_a_search_says_which_words_no_passage_has(desk: Desk) -> None:
    desk.index()
    assert "None of these passages has “Copenhagen”." in desk.run("search", "Copenhagen", "door", "--words")[2]
    assert "None of these" not in desk.run("search", "doors", "--words")[2]


def test_a_pause_is_kept_for_whoever_indexes(desk: Desk) -> None:
    assert desk.run("pause")[0] == 1, "there is nothing to pause yet"
    desk.index()

    def until() -> float | None:
        with Store.open(desk.data, StoreSettings(), writer=False) as store:
            return store.pause_requested()

    assert desk.run("pause", "2h")[0] == 0
    pause = until()
    assert pause is not None and 7100 < pause - time.time() <= 7200
    assert desk.run("pause", "--until-resume")[1].startswith("Paused until `desk-rag resume`")
    assert until() == math.inf
    assert desk.run("resume")[1] == "Resumed.\n" and until() is None
    assert desk.run("resume")[1] == "There was no pause.\n"
    for wrong in ("soon", "0m", "5", "-5m", "9999999d", "1e9h", "until 24:00", "until 18", "10 mints"):
        code, _, err = desk.run("pause", *wrong.split())
        assert code == 2, wrong
        assert "10m" in err or wrong.startswith("-")
    assert until() is None


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("10m", 600), ("10 minutes", 600), ("1 hour", 3600), ("for 2 days", 172_800), ("1h30m", 5400),
        ("an hour and 10 minutes", 4200), ("half an hour", 1800), ("1.5 hours", 5400), ("until 18:00", 1800),
        ("until 6pm", 1800), ("until 6:15 am", 45_900), ("until 17:00", 84_600),
    ],
)  # fmt: skip
def test_a_time_may_be_said_as_people_say_it(words: str, seconds: float) -> None:
    half_past_five = time.mktime((2026, 11, 23, 17, 30, 0, 0, 0, -1))
    assert seconds_of(words, half_past_five) == seconds


def test_status_and_pause_see_an_index_that_is_running(desk: Desk) -> None:
    desk.index()
    with Store.open(desk.data, StoreSettings(), writer=True) as store:
        last = store.activity()
        assert last is not None and last.once and last.waiting == "stopped", "the command above told of itself"
        assert "no process is watching" in desk.run("status")[1]
        published = Published(Progress(io.StringIO()), store)
        published._published_at = 0.0  # as a second later
        published.show(StageProgress(IndexStage.VECTORS, 40, 113, "chunks", 2.0, None, ""))
        stage = "findable by meaning: 40 of 113 chunks"
        assert f"now       indexing now: process {os.getpid()}, {stage}" in desk.run("status")[1]
        assert f"The `index` that is running (process {os.getpid()}) goes on" in desk.run("pause", "1m")[1]
        published.end()
        assert "No desk-rag is indexing now" in desk.run("pause", "1m")[1]
        assert "no process is watching" in desk.run("status")[1]


def test_a_missing_folder_is_said_before_who_else_is_writing(desk: Desk) -> None:
    desk.index()
    with Store.open(desk.data, StoreSettings(), writer=True):
        code, _, err = desk.run("watch", str(desk.docs / "nowhere"))
    assert code == 2 and "There is no folder" in err and "writing" not in err


def test_a_pin_that_was_not_there_is_not_said_to_be_removed(desk: Desk) -> None:
    desk.index()
    assert "is not pinned" in desk.run("pin", "--remove", str(desk.docs))[1]
    assert "is pinned" in desk.run("pin", str(desk.docs))[1]
    assert "is no longer pinned" in desk.run("pin", "--remove", str(desk.docs))[1]


def test_reasons_do_not_repeat_the_path(desk: Desk) -> None:
    desk.index()
    listed = desk.json("ls", str(desk.docs))
    assert "broken.pdf" in str(listed)
    reasons = [str(file["reason"]) for file in listed["files"]]  # type: ignore[attr-defined]
    assert not any(str(desk.docs) in reason for reason in reasons) and any(reasons)


def test_an_archive_is_read_once_it_is_named_and_cited_by_the_file_inside(desk: Desk) -> None:
    old = desk.docs / "old.zip"
    with zipfile.ZipFile(old, "w") as archive:
        archive.writestr("notes/boat.md", "# Boat\n\nThe keel is red.\n\nThe mast is 9 metres long.\n")
    desk.run("index", str(desk.docs), "--no-kv")
    said = desk.run("why", str(old))[1]
    assert "left out" in said and "`desk-rag index FILE` reads what is inside" in said
    assert desk.run("index", str(old), "--no-kv")[0] == 0
    assert "1 file inside read" in desk.run("why", str(old))[1]
    _, found, _ = desk.run("search", "mast of the boat", "--words")
    assert "old.zip!/notes/boat.md, lines 1-5" in found


def test_why_names_the_link_that_a_path_leads_over(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "note.txt").write_text("Outside.\n")
    (desk.docs / "over").symlink_to(tmp_path / "outside")
    desk.run("index", str(desk.docs), "--no-kv")
    said = desk.run("why", str(desk.docs / "over" / "note.txt"))[1]
    assert "left out; behind the link over, which is not followed" in said
