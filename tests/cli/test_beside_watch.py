"""Commands that change the index while another desk-rag watches: it makes the change, and they print what it did."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from desk_rag.cli import main
from desk_rag.config import IdleSettings, Settings, StoreSettings, default_path, load
from desk_rag.documents.status import FileState
from desk_rag.errors import StoreLocked
from desk_rag.indexer.models import Models
from desk_rag.indexer.once import fill_before_question
from desk_rag.indexer.parts import lazy_parts
from desk_rag.indexer.resident import changes
from desk_rag.indexer.resident.answers import Resident
from desk_rag.indexer.resident.server import Server
from desk_rag.indexer.service import Service
from desk_rag.store.store import Store
from desk_rag.tui.management.library_changes import LibraryChanges
from desk_rag.tui.management.session import Session
from tests.indexer.conftest import wait_for

pytestmark = pytest.mark.skipif(os.name == "nt", reason="uses signals and Unix sockets")
_LONG_AGO = (1_700_000_000, 1_700_000_000)


class Watched:
    """A folder that a service in this process watches and indexes, and commands beside it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.docs, self.other, self.data, self.capsys = root / "docs", root / "other", root / "data", capsys
        self.write("docs/door.md", "The kitchen door is painted green.\n")
        self.write("docs/house/roof.md", "The roofer comes on 14 May.\n")
        self.write("other/boat.md", "The boat is moored in Kiel.\n")
        idle = IdleSettings(
            quiet_seconds=0, cpu_busy_percent=100, gpu_busy_percent=100, gpu_free_mib=0, on_battery=True
        )
        self.settings = Settings(data_dir=self.data, store=StoreSettings(reserve_gib=0), idle=idle)
        self.store = Store.open(self.data, self.settings.store, writer=True)
        self.models = Models(self.store, self.settings)
        parts = lazy_parts(self.store, self.settings, self.models)
        self.service = Service(parts, [self.docs], self.settings, tick_seconds=0.05)
        self.ended = threading.Event()
        self._resident = Resident(
            self.settings, lambda: parts, self.models.engine, self.service.is_reading, self.service.changed_files,
            service=lambda: self.service, end=self.ended.set,
        )  # fmt: skip
        self.server = self.serving()
        self.service.start()
        wait_for(self.is_idle, 240)  # the first one also tries out the model's caches

    def serving(self) -> Server:
        server = Server(self.data, self._resident.handle)
        assert server.start() == ""
        return server

    def write(self, name: str, text: str) -> Path:
        path = (self.docs if hasattr(self, "docs") else Path()).parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, _LONG_AGO)
        return path

    def is_idle(self) -> bool:
        activity = self.store.activity()
        return activity is not None and activity.idle_since is not None

    def run(self, *words: str) -> tuple[int, str, str]:
        code = main.main(["--data-dir", str(self.data), *words])
        printed = self.capsys.readouterr()
        return code, printed.out, printed.err

    def documents(self) -> set[str]:
        return {row.path.name for row in self.store.documents() if row.state is FileState.INDEXED}

    def stop(self) -> None:
        self.server.stop()
        self.service.stop()
        self.store.close()


@pytest.fixture
def watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Watched]:
    world = Watched(tmp_path, capsys)
    yield world
    world.stop()


def test_status_says_since_when_everything_is_indexed(watched: Watched) -> None:
    activity = watched.store.activity()
    assert activity is not None and activity.idle_since is not None
    moment = time.strftime("%H:%M", time.localtime(activity.idle_since))
    code, out, _ = watched.run("status")
    assert code == 0
    assert f"now       process {os.getpid()}: watching, up to date since {moment} (2 files)\n" in out
    watched.service.sweep()  # a look that finds nothing is no news
    wait_for(lambda: not watched.service.is_working())
    wait_for(watched.is_idle)
    again = watched.store.activity()
    assert again is not None and again.idle_since == activity.idle_since


def test_a_paused_process_says_nothing_but_that(watched: Watched) -> None:
    assert watched.run("pause", "10", "minutes")[0] == 0
    wait_for(lambda: not watched.is_idle())
    wait_for(lambda: "paused" in watched.run("status")[1])
    assert f"now       process {os.getpid()}: paused for 10 min\n" in watched.run("status")[1]


def test_a_folder_is_indexed_by_the_process_that_watches(watched: Watched) -> None:
    code, out, err = watched.run("index", str(watched.other), "--json")
    report = json.loads(out)
    assert (code, report["indexed"], report["vectors"], report["warm"], report["stopped"]) == (0, 1, 1, 1, False)
    assert "reading files: 1 of 1 files" in err and "caches: 1 of 1 chunks" in err
    assert watched.documents() == {"door.md", "roof.md", "boat.md"}
    code, _, err = watched.run("index", str(watched.other))
    assert code == 0 and "Nothing to do: 1 file unchanged" in err


def test_a_first_question_waits_for_caches_as_long_as_without_that_process(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time at all, the question is answered before the caches are made; those follow by themselves."""
    for number in range(12):
        watched.write(f"other/boat-{number}.md", f"# Boat {number}\n\nBoat {number} is moored at pier {number + 40}.\n")
    no_time = partial(fill_before_question, seconds=0.0)
    monkeypatch.setattr(changes, "fill_before_question", no_time)
    code, out, err = watched.run("ask", "At which pier is boat 7 moored?", "--folder", str(watched.other), "--private")
    assert code == 0 and "47" in out
    assert "13 files read" in err and "caches:" not in err
    wait_for(lambda: "warm 100 %" in watched.run("status")[1])


def test_a_pause_does_not_hold_up_what_a_person_asks_for(watched: Watched) -> None:
    watched.service.pause(time.time() + 600)
    assert watched.run("index", str(watched.other), "--no-kv")[0] == 0
    assert "boat.md" in watched.documents()


def test_a_wrong_name_is_told_before_anything_else(watched: Watched) -> None:
    nowhere = str(watched.docs.parent / "nowhere")
    for command in (("index", nowhere), ("pin", nowhere)):
        code, _, err = watched.run(*command)
        assert code == 2 and "nowhere" in err and "process" not in err


def test_a_pin_is_set_and_removed_beside_it(watched: Watched) -> None:
    assert watched.run("pin", str(watched.docs))[0] == 0
    assert watched.store.pins() == [watched.docs]
    assert watched.run("pin", "--remove", str(watched.docs))[0] == 0
    assert watched.store.pins() == []


def test_new_settings_of_the_index_are_obeyed_at_once_and_from_then_on(watched: Watched, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[index]\nexclude = ["house/"]\n')
    assert watched.run("--config", str(config), "index", str(watched.docs))[0] == 0
    assert watched.documents() == {"door.md"}
    watched.service.sweep()
    wait_for(lambda: not watched.service.is_working())
    assert watched.documents() == {"door.md"}


def test_confirmed_deletions_are_gone_when_the_command_has_said_so(watched: Watched) -> None:
    names = [watched.write(f"other/{number}.txt", f"Lamp {number} costs {number} euros.\n") for number in range(8)]
    assert watched.run("index", str(watched.other), "--no-kv")[0] == 0
    for path in names:
        path.unlink()
    assert watched.run("index", str(watched.other), "--no-kv")[0] == 0
    listed = watched.run("deletions")[1]
    assert "8 files that desk-rag had read cannot be found any more" in listed and f"--keep {watched.other}\n" in listed
    kept = watched.run("deletions", "--keep", str(watched.other))
    assert kept[:2] == (0, "Kept: 8 documents. Answers quote them, and say that the files are gone.\n")
    removed = watched.run("deletions", "--confirm", str(watched.other))
    assert removed[:2] == (0, "Forgot 8 documents whose files are gone.\n")
    assert watched.run("deletions")[1] == "No documents are kept whose files are gone: nothing waits for you.\n"
    code, _, err = watched.run("deletions", "--confirm", str(watched.other))
    assert code == 2 and "No indexed file below" in err


def test_deletions_are_confirmed_before_any_look_at_the_folder_and_while_vectors_are_made(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded as missing counts for nothing: the files are asked."""
    for number in range(40):
        watched.write(f"docs/lamp/{number}.txt", f"Lamp {number} costs {number} euros.\n")
    real, encoded = watched.models.embedder().encode_chunks, threading.Event()

    def slowly(texts: list[str]) -> object:
        encoded.set()
        time.sleep(0.3)
        return real(texts)

    monkeypatch.setattr(watched.models.embedder(), "encode_chunks", slowly)
    wait_for(lambda: len(watched.documents()) == 42 and encoded.is_set())
    for path in (watched.docs / "lamp").iterdir():
        path.unlink()
    confirmed = watched.run("deletions", "--confirm", str(watched.docs))
    assert confirmed[:2] == (0, "Forgot 40 documents whose files are gone.\n")
    assert watched.documents() == {"door.md", "roof.md"}
    wait_for(watched.is_idle)
    assert not watched.store.verify().problems


def test_nothing_of_a_folder_that_is_away_can_be_confirmed(watched: Watched) -> None:
    away = watched.docs.rename(watched.docs.parent / "away")
    code, _, err = watched.run("deletions", "--confirm", str(watched.docs))
    assert code == 2 and "No indexed file below" in err
    assert watched.documents() == {"door.md", "roof.md"}
    away.rename(watched.docs)


def test_a_purged_folder_is_not_read_again_while_it_is_watched(watched: Watched) -> None:
    house = watched.docs / "house"
    code, out, _ = watched.run("purge", "--yes", "--verify", str(house))
    assert code == 0
    assert "Forgot 1 document, 1 chunk" in out and "no trace" in out
    assert f"“{house}/” is excluded from now on" in out
    watched.write("docs/house/wall.md", "The wall is brick.\n")
    watched.write("docs/fence.md", "The fence is wood.\n")
    wait_for(lambda: "fence.md" in watched.documents())
    watched.service.sweep()
    wait_for(lambda: not watched.service.is_working())
    assert watched.documents() == {"door.md", "fence.md"}
    assert "roofer" not in watched.run("ask", "When does the roofer come?")[1], "nor is it read for a question"
    watched.run("search", "roofer brick")
    assert watched.documents() == {"door.md", "fence.md"}
    assert load().index.exclude == (f"{watched.docs}/house/",)
    default_path().unlink()
    assert watched.run("index", str(house))[0] == 0, "who takes the rule away and indexes it wants it back"
    assert watched.documents() == {"door.md", "fence.md", "roof.md", "wall.md"}


def test_a_purged_folder_stays_left_out_when_another_folder_is_indexed(watched: Watched) -> None:
    assert watched.run("purge", "--yes", str(watched.docs / "house"))[0] == 0
    assert watched.run("index", str(watched.other), "--no-kv")[0] == 0
    watched.service.sweep()
    wait_for(lambda: not watched.service.is_working())
    assert watched.documents() == {"door.md", "boat.md"}


def test_a_purged_root_is_watched_no_longer(watched: Watched) -> None:
    assert watched.run("purge", "--yes", str(watched.docs))[0] == 0
    assert watched.service.folders == () and watched.documents() == set()
    watched.write("docs/new.md", "The lawn is wet.\n")
    watched.service.sweep()
    wait_for(lambda: not watched.service.is_working())
    assert watched.documents() == set()


def test_what_the_library_of_a_ui_forgets_leaves_the_index_and_comes_back(watched: Watched, tmp_path: Path) -> None:
    """The UI does not index beside a process that does: that process forgets, leaves out, and reads again."""
    config, house = tmp_path / "config.toml", watched.docs / "house"
    session = Session(watched.settings, [watched.docs], config)
    changes = LibraryChanges(session)
    forgotten = changes.forget(house, keep_caches=True)
    assert forgotten.sentence == "Forgot 1 document of house; caches kept for 72 h."
    assert watched.documents() == {"door.md"} and load(config).index.exclude == (f"{watched.docs}/house/",)
    watched.service.sweep()
    wait_for(lambda: not watched.service.is_working())
    assert watched.documents() == {"door.md"}, "the other process leaves it out, too"
    assert forgotten.undo is not None
    assert forgotten.undo() == "house is read again; caches that are still there are used again."
    wait_for(lambda: "roof.md" in watched.documents())
    assert load(config).index.exclude == ()
    assert "with all caches" in changes.forget(house / "roof.md", keep_caches=False).sentence
    for file in watched.data.rglob("*"):
        assert not file.is_file() or b"roofer comes" not in file.read_bytes()
    changes.exclude(changes.exclusion(watched.docs / "door.md", watched.docs))
    wait_for(lambda: watched.documents() == set())
    root = changes.forget(watched.docs, keep_caches=False)
    assert "The desk-rag that indexes leaves docs out until it ends." in root.sentence
    assert watched.service.folders == ()
    session.detach()


def test_what_the_library_excludes_is_gone_from_answers_at_once_even_in_a_pause(
    watched: Watched, tmp_path: Path
) -> None:
    assert watched.run("ask", "When does the roofer come?")[0] == 0  # saved in a chat
    watched.service.pause(time.time() + 600)
    config = tmp_path / "config.toml"
    session = Session(watched.settings, [watched.docs], config)
    changes = LibraryChanges(session)
    excluded = changes.exclude(changes.exclusion(watched.docs / "house", watched.docs))
    assert watched.documents() == {"door.md"}
    asked = watched.run("--config", str(config), "ask", "--private", "When does the roofer come?")
    assert "14 May" not in "".join(asked[1:])
    assert "docs/house is excluded. Saved chats still hold answers from it: " in excluded.sentence
    assert excluded.undo is not None and excluded.undo().endswith("no longer excluded; its files are read again.")
    watched.service.pause(None)
    wait_for(lambda: watched.documents() == {"door.md", "roof.md"})
    session.detach()


def test_a_forgotten_root_comes_back_and_is_watched_again_when_that_is_undone(watched: Watched, tmp_path: Path) -> None:
    session = Session(watched.settings, [watched.docs], tmp_path / "config.toml")
    forgotten = LibraryChanges(session).forget(watched.docs, keep_caches=True)
    assert watched.documents() == set() and watched.service.folders == () and forgotten.undo is not None
    assert forgotten.undo() == "docs is read again; caches that are still there are used again."
    assert watched.service.folders == (watched.docs,) and session.folders == (watched.docs,)
    wait_for(lambda: watched.documents() == {"door.md", "roof.md"})
    wait_for(watched.is_idle)
    (watched.docs / "new.md").write_text("The lawn is wet.\n")  # only an event tells of it: the next sweep is far off
    wait_for(lambda: "new.md" in watched.documents())
    session.detach()


def test_a_forgotten_root_that_the_other_process_was_not_given_waits(watched: Watched, tmp_path: Path) -> None:
    assert watched.run("index", str(watched.other), "--no-kv")[0] == 0
    session = Session(watched.settings, [watched.other], tmp_path / "config.toml")
    forgotten = LibraryChanges(session).forget(watched.other, keep_caches=True)
    assert "boat.md" not in watched.documents() and forgotten.undo is not None
    assert "is read again from the next start on" in forgotten.undo()
    session.detach()


def test_a_folder_that_cannot_be_forgotten_is_still_named_in_the_settings(watched: Watched, tmp_path: Path) -> None:
    """Another process writes and takes no requests."""
    watched.server.stop()
    config = tmp_path / "config.toml"
    session = Session(watched.settings, [watched.docs], config)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        LibraryChanges(session).forget(watched.docs / "house", keep_caches=False)
    assert load(config).index.exclude == () and watched.documents() == {"door.md", "roof.md"}
    session.detach()


def test_damage_is_repaired_by_the_process_that_writes(watched: Watched) -> None:
    (damaged,) = [next((watched.data / "kv").rglob("*.kv"), None) or next((watched.data / "kv").rglob("*.*"))]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(bytes(content))
    code, out, _ = watched.run("verify")
    assert code == 4 and "1 problem" in out
    code, out, _ = watched.run("verify", "--repair")
    assert code == 0 and "repaired: " in out
    wait_for(lambda: watched.run("verify")[0] == 0)


def test_a_question_about_a_new_folder_has_it_indexed_first(watched: Watched) -> None:
    words = ("ask", "--private", "--keep", "--folder", str(watched.other), "Where is the boat moored?")
    code, out, err = watched.run(*words)
    assert code == 0, err
    assert "Kiel" in out and f"Indexing {watched.other} first, once." in err
    assert "Answering without" not in err


def test_several_questions_about_a_new_folder_have_it_indexed_first(watched: Watched, tmp_path: Path) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("Where is the boat moored?\nWho baked the bread?\n")
    code, out, err = watched.run("ask", "--private", "--folder", str(watched.other), "--batch", str(questions))
    assert code == 0, err
    assert "Kiel" in out and "> Who baked the bread?" in out
    assert err.count(f"Indexing {watched.other} first, once.") == 1 and "Answering without" not in err


def test_a_question_about_a_new_folder_waits_until_the_other_process_has_started(watched: Watched) -> None:
    watched.server.stop()

    def start() -> None:
        time.sleep(8)
        watched.server = watched.serving()

    starting = threading.Thread(target=start)
    starting.start()
    command = ("ask", "--private", "--folder", str(watched.other), "Where is the boat moored?")
    code, out, err = watched.run(*command)
    starting.join()
    assert code == 0, err
    assert "Kiel" in out and err.count(f"Indexing {watched.other} first, once.") == 1


def test_a_new_folder_that_the_other_process_declines_is_told_with_the_reason(watched: Watched) -> None:
    changed = watched.data.parent / "config.toml"
    changed.write_text("[answer]\ntop_k = 3\n")
    words = ("ask", "--private", "--folder", str(watched.other), "Where is the boat moored?")
    code, _, err = watched.run("--config", str(changed), *words)
    assert code == 4
    assert f"{watched.other} was never indexed, and cannot be now: Another desk-rag (process {os.getpid()})" in err
    assert "It was asked to index the folder, but it has other settings." in err and "drive is full" not in err


def test_purging_everything_ends_the_process_that_watches(watched: Watched) -> None:
    def end() -> None:
        watched.ended.wait(60)
        watched.stop()

    ending = threading.Thread(target=end)
    ending.start()
    code, out, _ = watched.run("purge", "--all", "--yes")
    ending.join()
    assert code == 0
    assert out.startswith("The desk-rag that was running has ended.\nDeleted ")
    assert not watched.data.exists()
