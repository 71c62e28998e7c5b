"""`desk-rag watch` as a real process: signals, kills, a second writer, resuming."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from desk_rag.config import Settings, StoreSettings
from desk_rag.documents.status import FileState, IndexStage
from desk_rag.indexer.daemon import Printer, run_watch
from desk_rag.indexer.root_watch import WatchState
from desk_rag.ingest.events import FileEvent, Notice, StageProgress
from desk_rag.kv.serving import ServingModel
from desk_rag.store.store import Store
from tests.indexer.conftest import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
CHILD = """
import sys
from pathlib import Path
from desk_rag.config import Settings
from desk_rag.indexer.daemon import run_watch
settings = Settings.model_validate_json(sys.argv[1])
sys.exit(run_watch(settings, [Path(name) for name in sys.argv[2:]], sys.stdout))
"""


@pytest.fixture
def settings(settings: Settings, prepared: ServingModel, prepared_dir: Path) -> Settings:
    shutil.copytree(prepared_dir / "models", settings.data_dir / "models")
    return settings


SLOW = """
import desk_rag.ingest.pipeline, time
from {module} import {name} as load_quickly
import {module}
from desk_rag.store.maintenance import scrubbing
def load_slowly(*given):
    print("loading", flush=True)
    while not Path({end!r}).exists():
        time.sleep(0.05)
    return load_quickly(*given)
{module}.{name} = load_slowly
scrubbing._EVERY_SECONDS = 1.0
settings ="""
"""A load that lasts until a file exists, and a check for deleted text every second."""


class Child:
    """One run of the background process."""

    def __init__(self, settings: Settings, *folders: Path, script: str = CHILD) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.log = settings.data_dir.parent / f"out{time.monotonic_ns()}"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script, settings.model_dump_json(), *map(str, folders)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=settings.data_dir.parent,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def waits_for(self, text: str, seconds: float = 120.0) -> None:
        wait_for(lambda: text in self.said or self.process.poll() is not None, seconds)
        assert text in self.said, self.said

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(30)
        return code, time.monotonic() - began


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()


def warm_files(settings: Settings) -> set[Path]:
    return set((settings.data_dir / "kv").rglob("*.safetensors"))


@pytest.mark.slow
def test_it_indexes_warms_follows_changes_and_stops_on_sigterm(
    settings: Settings, docs: Path, children: list[Child]
) -> None:
    child = Child(settings, docs)
    children.append(child)
    child.waits_for("up to date")
    assert "indexed " in child.said
    assert "2 chunks made warm" in child.said
    assert len(warm_files(settings)) == 2
    process = psutil.Process(child.process.pid)
    assert process.nice() >= 10
    assert process.net_connections() == []
    (docs / "new.txt").write_text("The heron stands in the shallow water.\n")
    child.waits_for(f"indexed {docs / 'new.txt'}")
    wait_for(lambda: len(warm_files(settings)) == 3)
    with Store.open(settings.data_dir, settings.store, writer=False) as other:
        activity = other.activity()
        assert activity is not None
        assert activity.pid == child.process.pid
        passage = other.passage(other.search_words("heron", 1)[0].chunk_id)
        assert passage is not None
        assert passage.path == docs / "new.txt"

    second = Child(settings, docs)
    children.append(second)
    assert second.process.wait(60) == 4
    assert str(child.process.pid) in second.said
    assert "Traceback" not in second.said

    code, seconds = child.stop()
    assert code == 0
    assert seconds < 5
    assert child.said.endswith("stopping: 3 files are indexed, 3 of 3 chunks are warm\nstopped\n")
    assert "\x1b" not in child.said
    assert "Traceback" not in child.said
    assert not [p for p in psutil.process_iter(["ppid"]) if p.info["ppid"] == child.process.pid]


def test_words_are_findable_before_the_model_is_loaded_and_sigint_ends_it(
    settings: Settings, docs: Path, children: list[Child]
) -> None:
    script = CHILD.replace(
        "settings = ",
        "import desk_rag.ingest.pipeline, threading, time\n"
        "from desk_rag.retrieval import embedding\n"
        "def load(settings):\n"
        "    print('torch' if 'torch' in sys.modules else 'no torch yet', flush=True)\n"
        "    time.sleep(600)\n"
        "embedding.load_embedder = load\n"
        "settings = ",
    )
    child = Child(settings, docs, script=script)
    children.append(child)
    child.waits_for("no torch yet")
    with Store.open(settings.data_dir, settings.store, writer=False) as other:
        assert other.search_words("roofer", 1)
    # a step that cannot be interrupted, here a load that hangs, does not hold up the end
    code, seconds = child.stop(signal.SIGINT)
    assert code == 0
    assert seconds < 5
    with Store.open(settings.data_dir, settings.store, writer=True):
        pass


@pytest.mark.parametrize("load", ["retrieval.embedding.load_embedder", "answering.auxiliary.prepare_all"])
def test_text_that_is_edited_away_while_a_model_is_loaded_leaves_every_file_before_its_end(
    settings: Settings, docs: Path, children: list[Child], load: str
) -> None:
    end, (module, _, name) = settings.data_dir.parent / "end", f"desk_rag.{load}".rpartition(".")
    (docs / "note.txt").write_text("The spare key is with Zaphodbeeblebrox.\n")
    slow = SLOW.format(module=module, name=name, end=str(end))
    child = Child(settings, docs, script=CHILD.replace("settings =", slow))
    children.append(child)
    child.waits_for("loading")
    wait_for(lambda: traces(settings, "Zaphodbeeblebrox"))
    (docs / "note.txt").write_text("The spare key hangs behind the barometer.\n")
    wait_for(lambda: traces(settings, "barometer") and not traces(settings, "Zaphodbeeblebrox"))
    assert "up to date" not in child.said
    end.touch()
    child.waits_for("up to date")
    assert len(warm_files(settings)) == 2
    assert child.stop()[0] == 0


def traces(settings: Settings, word: str) -> list[Path]:
    """The files of the data directory in which `word` stands, in any case and in both encodings of SQLite."""
    needles = [form.encode(code) for form in (word, word.casefold()) for code in ("utf-8", "utf-16-le")]
    files = {path: path.read_bytes() for path in settings.data_dir.rglob("*") if path.is_file()}
    return [path for path, content in files.items() if any(needle in content for needle in needles)]


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_at_most_the_chunk_in_hand(
    settings: Settings, docs: Path, children: list[Child]
) -> None:
    for n in range(40):
        (docs / f"{n}.txt").write_text(
            f"Entry {n}. " + f"The barge number {n} was late again, and nobody knew why. " * 12
        )
        os.utime(docs / f"{n}.txt", (1_700_000_000 + n, 1_700_000_000 + n))
    documents, warm = 0, 0
    for look_for in ("words", "warm"):
        child = Child(settings, docs)
        children.append(child)
        if look_for == "words":
            child.waits_for("indexed ")
        else:
            wait_for(lambda: len(warm_files(settings)) >= 5, 120)
        child.process.kill()
        child.process.wait()
        with Store.open(settings.data_dir, settings.store, writer=True) as store:
            assert store.verify().clean
            now = len(store.documents(docs))
            assert now >= max(documents, 1)
            documents, warm = now, len(warm_files(settings))
    assert warm >= 5
    child = Child(settings, docs)
    children.append(child)
    child.waits_for("up to date")
    assert child.stop()[0] == 0
    made_warm = int(child.said.split("up to date:")[1].split(" chunks made warm")[0].rsplit(" ", 1)[1])
    with Store.open(settings.data_dir, settings.store, writer=True) as store:
        assert store.verify().clean
        assert len(store.documents(docs)) == 42
        assert len(warm_files(settings)) == store.counts().chunks == made_warm + warm


def test_a_changed_rule_of_the_settings_file_holds_while_it_watches(
    settings: Settings, docs: Path, children: list[Child]
) -> None:
    file = docs.parent / "config.toml"
    script = CHILD.replace("sys.stdout)", f"sys.stdout, settings_file=Path({str(file)!r}))")
    private = docs / "private"
    private.mkdir()
    (private / "health.md").write_text("The blood pressure was 148/92 in March.")
    child = Child(settings, docs, script=script)
    children.append(child)
    child.waits_for(f"indexed {private / 'health.md'}")
    rule = f"{private}/"
    file.write_text(f'[index]\nexclude = ["{rule}"]\n')
    child.waits_for(f"removed {private / 'health.md'}: excluded by you: {rule}")
    file.write_text("[index\n")
    file.write_text("")
    wait_for(lambda: child.said.count(f"indexed {private / 'health.md'}") == 2)
    assert child.said.count("`exclude` in") == 2, child.said


def test_bad_folders(settings: Settings, docs: Path, tmp_path: Path) -> None:
    out = io.StringIO()
    assert run_watch(settings, [], errors=out) == 2
    assert run_watch(settings, [tmp_path / "nowhere"], errors=out) == 2
    assert run_watch(settings, [docs / "note.txt"], errors=out) == 2
    text = out.getvalue()
    assert "No folder to watch" in text
    assert "nowhere" in text
    assert "Check the spelling" in text
    assert "is a file" in text
    assert text.count("desk-rag: ") == 3, "as the other commands say it"


def test_a_store_that_another_process_writes(settings: Settings, docs: Path) -> None:
    with Store.open(settings.data_dir, StoreSettings(), writer=True):
        out = io.StringIO()
        assert run_watch(settings, [docs], errors=out) == 4
        assert str(os.getpid()) in out.getvalue()


def test_lines_are_plain_and_few() -> None:
    out = io.StringIO()
    printer = Printer(out, every=60)
    for n in range(100):
        printer.event(FileEvent(Path(f"/d/{n}.txt"), FileState.INDEXED, 3))
    assert len(out.getvalue().splitlines()) == 20
    printer.event(FileEvent(Path("/d/x.pdf"), FileState.FAILED, reason="it is damaged"))
    assert out.getvalue().splitlines()[-1] == "failed /d/x.pdf: it is damaged"
    printer.event(FileEvent(Path("/d/x.pdf"), FileState.FAILED, reason="/d/x.pdf is locked"))
    assert out.getvalue().splitlines()[-1] == "failed /d/x.pdf: is locked"
    printer.event(StageProgress(IndexStage.SCAN, 87, 87, "files", 0.0, None))
    assert out.getvalue().splitlines()[-1] == "looking through the folder: 87 of 87 files"
    out.truncate(out.seek(0))
    for n in range(100):
        printer.event(StageProgress(IndexStage.WARM, n, 100, "chunks", 2.0, 50 - n / 2))
    assert out.getvalue() == "caches: 0 of 100 chunks, 2.0/s, 50 s left\n"
    out.truncate(out.seek(0))
    printer.event(FileEvent(Path("/d/\x1b]52;c;aGk=\x07evil\n.txt"), FileState.FAILED, reason="\x1b[31mred"))
    printer.event(Notice("folder /d", "/d is not there", "Connect \x1b[31mits drive."))
    printer.event(StageProgress(IndexStage.WARM, 5, 9, "chunks", 0, None, "on battery"))
    printer.watching(WatchState(Path("/d"), "no watches", "sudo sysctl x"))
    text = out.getvalue()
    assert "\x1b" not in text
    assert len(text.splitlines()) == 6
    assert "caches: 5 of 9 chunks, waiting: on battery" in text


def test_what_is_left_out_is_said_as_on_the_screen() -> None:
    out = io.StringIO()
    Printer(out).event(FileEvent(Path("/d/login details.txt"), FileState.SKIPPED, reason="secret: login details"))
    assert out.getvalue() == "left out /d/login details.txt: may hold secrets: login details\n"


def test_a_closed_pipe_does_not_end_indexing() -> None:
    out = io.StringIO()
    printer = Printer(out)
    out.close()
    printer.line("nobody reads this")
