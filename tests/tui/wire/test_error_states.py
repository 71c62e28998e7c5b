"""Every state in which something is wrong, in the real program with its own engine, as a terminal shows it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from desk_rag.indexer.resident.protocol import has_unix_sockets
from tests.tui.terminal import ROOT, Terminal

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_unix_sockets(), reason="needs Unix sockets")]
_F3, _F4, _PALETTE = "\x1bOR", "\x1bOS", "\x10"
READY, Q = "embedded reader", "What colour is the garden gate?\r"
_FAILS_ONCE = """
import importlib.abc, importlib.util, os, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "desk_rag.indexer.fresh_answer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_wrap(module):
            load(module)
            answer = module.ask

            def ask(*arguments, **options):
                if os.path.exists({flag!r}):
                    name = open({flag!r}).read()
                    os.unlink({flag!r})
                    raise type(name, (RuntimeError,), {{}})("CUDA error: device-side assert triggered")
                return answer(*arguments, **options)

            module.ask = ask

        spec.loader.exec_module = load_and_wrap
        return spec

sys.meta_path.insert(0, Finder())
"""
"""Makes the engine's next answer fail with an error of this name once the flag is there: no test can lose a GPU."""


class Desk:
    """A home with two notes, and the program over them."""

    def __init__(self, home: Path) -> None:
        self.home, self.notes, self.data, self.flag = home, home / "notes", home / "data", home / "flag"
        self.notes.mkdir()
        (self.notes / "gate.md").write_text("# Gate\n\nThe garden gate is painted green.\n")
        (self.notes / "roof.md").write_text("# Roof\n\nThe roof was repaired by Jonas Weil in June 2020.\n")
        (home / "hook").mkdir()
        (home / "hook" / "sitecustomize.py").write_text(_FAILS_ONCE.format(flag=str(self.flag)))
        self.env = {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "DESK_RAG_DATA_DIR": str(self.data),
            "PYTHONPATH": os.pathsep.join((str(home / "hook"), str(ROOT))),
        }
        self.terminal: Terminal | None = None

    def settings(self, text: str) -> None:
        (self.home / ".config" / "desk-rag").mkdir(parents=True)
        (self.home / ".config" / "desk-rag" / "config.toml").write_text(text)

    def run(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "desk_rag", *arguments], env={**os.environ, **self.env}, cwd=ROOT, check=True,
            capture_output=True,
        )  # fmt: skip

    def open(self, *options: str, sign: str = READY) -> None:
        self.terminal = Terminal(["-m", "desk_rag", *options, str(self.notes)], env=self.env)
        self.sees(sign)

    def sees(self, *signs: str) -> None:
        """Wait until the screen shows all of this, line breaks aside."""
        terminal = self.terminal
        assert terminal is not None
        terminal.until(lambda: all(sign in _words(terminal.text) for sign in signs), 120)

    def send(self, text: str) -> None:
        assert self.terminal is not None
        self.terminal.send(text)

    def quit(self, code: int = 0) -> None:
        self.send("\x11")
        assert self.terminal is not None
        assert self.terminal.wait(20) == code and self.terminal.was_restored()
        assert b"Traceback" not in self.terminal.raw


def _words(screen: str) -> str:
    """Return the text of the chat's column with single blanks."""
    return " ".join(word for word in screen.split() if word not in ("▎", "▏", "▌"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    if desk.terminal is not None:
        desk.terminal.close()


def test_nothing_to_read(desk: Desk) -> None:
    shutil.rmtree(desk.notes)
    desk.notes.mkdir()
    desk.open()
    desk.send(Q)
    desk.sees("notes holds no file that desk-rag reads.", "F3 shows what is left out and why.")
    (desk.notes / "gate.md").write_text("# Gate\n\nThe garden gate is painted green.\n")
    desk.sees("1 file")
    desk.send("what is green?\r")
    desk.sees("first word")
    desk.quit()


def test_a_folder_that_is_absent_at_the_start_is_asked_from_the_index_and_comes_back(desk: Desk) -> None:
    desk.run("index", "--no-kv", str(desk.notes))
    desk.notes.rename(desk.home / "away")
    desk.open()
    desk.send(Q)
    desk.sees("! notes is not there now; nothing of it is removed", "first word", "from the index of")
    (desk.home / "away").rename(desk.notes)
    assert desk.terminal is not None
    desk.terminal.until(lambda: "nothing of it is removed" not in desk.terminal.text, 60)  # type: ignore[union-attr]
    desk.quit()


def test_a_folder_that_goes_away_while_it_runs(desk: Desk) -> None:
    desk.open()
    desk.sees("by meaning 100%")
    desk.notes.rename(desk.home / "away")
    desk.sees("! notes is not there now; nothing of it is removed", "~/notes is not there; its 2 documents")
    desk.send("\x1bOR")  # F3
    desk.sees("! There is no folder ~/notes; its files are kept and still found", "2 files read")
    desk.quit()


def test_a_missing_model_is_replaced_there_and_the_question_that_waited_is_asked(desk: Desk) -> None:
    desk.open("--model", "/nowhere", sign="! desk-rag could not start")
    desk.send(Q)
    desk.sees("'/nowhere' is neither a model directory", "Alt+L shows the models on this computer")
    desk.send("\x1bl")
    desk.sees("of memory free", "○ embedded")
    desk.send("embedded\r")
    desk.sees("[1] gate.md · line 3", "first word")
    desk.quit()


@pytest.mark.parametrize(
    ("error", "said", "loads_anew"),
    [
        ("AcceleratorError", "The GPU failed while it was in use. Ask again; the model is loaded anew.", True),
        ("OutOfMemoryError", "There is not enough memory for the model and its work. Close programs", False),
        ("OddError", "Something went wrong inside desk-rag (OddError). Its log says where", False),
    ],
)
def test_an_answer_that_fails_in_the_engine_says_what_helps_and_the_next_one_comes(
    desk: Desk, error: str, said: str, loads_anew: bool
) -> None:
    desk.open()
    desk.sees("by meaning 100%")
    engine = _engine_of(desk)
    desk.flag.write_text(error)
    desk.send(Q)
    desk.sees(said)
    desk.send(Q)
    desk.sees("[1] gate.md · line 3", "first word")
    assert (_engine_of(desk) != engine) is loads_anew
    desk.quit()


def _engine_of(desk: Desk) -> int:
    assert desk.terminal is not None
    children = psutil.Process(desk.terminal.pid).children()
    living = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return next(child.pid for child in living if "attending" in " ".join(child.cmdline()))


def test_a_drive_without_room_for_caches(desk: Desk) -> None:
    desk.settings("[store]\nreserve_gib = 100000\n")
    desk.open()
    desk.sees("! disk full: 2 chunks without cache, so answers are slower")
    desk.send(Q)
    desk.sees("first word")
    desk.send("\x1b[15~")
    desk.sees("because 100000 GiB of the drive stay free (reserve_gib)", "! full", "kv_dir under [store].")
    desk.send("\x1bOS")
    desk.sees("! disk full: 2 chunks without cache, so answers are slower F5 says what helps")
    desk.send("\x1b")
    desk.quit()


def test_caches_whose_drive_is_taken_out(desk: Desk) -> None:
    caches = desk.home / "drive" / "caches"
    caches.mkdir(parents=True)
    desk.settings(f'[store]\nkv_dir = "{caches}"\n')
    desk.run("index", str(desk.notes))
    (desk.home / "drive").rename(desk.home / "elsewhere")
    desk.open()
    desk.sees("! the caches are not there now, so answers are slower")
    desk.send(Q)
    desk.sees("[1] gate.md · line 3", "first word")
    desk.send("\x1b[15~")
    desk.sees("! away")
    desk.send("\x1b")
    desk.quit()


def test_a_store_that_another_process_writes_to(desk: Desk) -> None:
    command = [sys.executable, "-m", "desk_rag", "watch", str(desk.notes)]
    environment = {**os.environ, **desk.env}
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as watch:
        try:
            assert watch.stdout is not None
            next(line for line in watch.stdout if "2 files" in line or "up to date" in line or "read" in line)
            desk.open(sign=f"process {watch.pid}")
            desk.send(Q)
            desk.sees("first word")
        finally:
            watch.kill()
    desk.sees("embedded reader · CPU")
    desk.quit()


def test_a_store_of_a_newer_version(desk: Desk) -> None:
    desk.run("index", "--no-kv", str(desk.notes))
    with sqlite3.connect(desk.data / "catalog.sqlite") as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    desk.open(sign="desk-rag could not start")
    desk.sees("was written by a newer desk-rag (schema 999", "Update desk-rag, or give `data_dir` another directory.")
    desk.quit(4)


def test_a_damaged_catalog_is_rebuilt_and_that_is_said(desk: Desk) -> None:
    desk.run("index", "--no-kv", str(desk.notes))
    file = desk.data / "catalog.sqlite"
    for end in ("-wal", "-shm"):
        (desk.data / f"catalog.sqlite{end}").unlink(missing_ok=True)
    content = bytearray(file.read_bytes())
    content[4096 : 8 * 4096] = bytes(range(256)) * (7 * 16)
    file.write_bytes(content)
    desk.open()
    desk.sees("The catalog was damaged and has been replaced by an empty one", "Your folders are being read again.")
    desk.send(Q)
    desk.sees("[1] gate.md · line 3", "first word")
    assert list((desk.data / "quarantine").glob("catalog.*"))
    desk.quit()


def test_activity_says_how_many_files_are_gone_and_what_was_decided(desk: Desk) -> None:
    letters: list[Path] = [desk.notes / f"letter {number}.md" for number in range(63)]
    for number, letter in enumerate(letters):
        letter.write_text(f"# Letter {number}\n\nThe parcel {number} was sent to Castell.\n")
    desk.run("index", "--no-kv", str(desk.notes))
    for letter in letters:
        letter.unlink()
    desk.open()
    desk.sees("! 63 files gone, kept 3 days more (^p: remove or keep)")
    desk.send(_F4)
    desk.sees("! 63 files gone, kept 3 days more (^p: remove or keep)", "answers still quote them; F3 lists them")
    desk.send(_F4)
    desk.sees("Ask about your files")
    desk.send(_F3)
    desk.sees("its file is gone; kept for 3 days more")
    desk.send(_F3)
    desk.send(_PALETTE)
    desk.sees("Search for commands")
    desk.send("files that are gone")
    desk.sees("Remove")
    desk.send("\r")
    desk.sees("Keep them in the index")
    desk.send("k")
    desk.sees("63 documents kept in the index.")
    desk.send(_F4)
    desk.sees("63 files gone and kept, as you decided")
    desk.send(_F4)
    desk.sees("Ask about your files")
    desk.send(_F3)
    desk.sees("its file is gone; kept, as you decided")
    desk.quit()


def test_questions_typed_before_it_can_answer_are_all_answered_and_a_follow_up_after_its_turn(desk: Desk) -> None:
    desk.open(sign="Ask about your files")
    desk.send("What colour is the garden gate?\rWho repaired the roof of the house in June 2020?\r")
    desk.send("And when?\r")
    desk.sees("painted green")
    desk.sees("Jonas Weil", "asked as: When was the roof", "waited")
    desk.quit()


def test_a_first_question_says_what_it_waits_for(desk: Desk) -> None:
    desk.open(sign="Ask about your files")
    desk.send("What colour is the garden gate?\r")
    desk.sees("waits for the model to load: loading ")
    desk.sees("painted green", "first word")
    terminal = desk.terminal
    assert terminal is not None and b"testing the caches" not in terminal.raw, "the reader was tested before it shipped"
    desk.quit()


def test_the_best_hit_is_in_view_and_excerpts_keep_their_indent(desk: Desk) -> None:
    for number in range(24):
        text = f"The piano stands in room {number}, where nobody has played it since the house was sold to a school."
        (desk.notes / f"piano {number}.md").write_text(f"# Piano\n\n{text} {text}\n")
    (desk.notes / "tuner.md").write_text(
        "# Tuner\n\nThe piano was tuned on 4 May 2023 by Ida Korn, who came by train.\n"
    )
    desk.run("index", "--no-kv", str(desk.notes))
    desk.open()
    desk.send("/piano tuned\r")
    desk.sees("› /piano tuned", "20 passages: [1] has all of these words", "[1] · tuner.md", "tuned on 4 May")
    terminal = desk.terminal
    assert terminal is not None
    excerpts = [line for line in terminal.text.splitlines() if "has played" in line or "sold to a" in line]
    assert len(excerpts) > 2
    assert {line[2:8].strip() for line in excerpts} == {""}, "every line of an excerpt is indented"
    desk.send("/roof\r")
    desk.sees("› /roof", "1 passage with this word.", "repaired by Jonas Weil")
    desk.quit()
