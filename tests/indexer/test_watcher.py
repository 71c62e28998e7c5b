"""Real inotify, real editors' ways of saving, real limits in a user namespace."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.indexer.jobs import Change
from desk_rag.indexer.watcher import Batch, Watcher
from tests.indexer.conftest import wait_for

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify")


class Seen:
    """Collects batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.lock = threading.Lock()

    def __call__(self, batch: Batch) -> None:
        with self.lock:
            self.batches.append(batch)

    @property
    def changes(self) -> dict[Path, Change]:
        merged: dict[Path, Change] = {}
        with self.lock:
            for batch in self.batches:
                merged |= batch.changes
        return merged

    @property
    def swept(self) -> bool:
        with self.lock:
            return any(batch.sweep for batch in self.batches)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def watcher(docs: Path, seen: Seen) -> Iterator[Watcher]:
    (docs / "own").mkdir()
    watching = Watcher([docs], seen, ignore=(docs / "own",), debounce=0.1)
    states = watching.start()
    assert [(state.root, state.polling) for state in states] == [(docs, "")]
    yield watching
    watching.stop()


def test_created_changed_and_deleted_files_are_reported(watcher: Watcher, seen: Seen, docs: Path) -> None:
    (docs / "new.txt").write_text("a")
    wait_for(lambda: seen.changes.get(docs / "new.txt") is Change.CHANGED)
    with (docs / "note.txt").open("a") as file:
        file.write("more\n")
    wait_for(lambda: seen.changes.get(docs / "note.txt") is Change.CHANGED)
    (docs / "letter.md").unlink()
    wait_for(lambda: seen.changes.get(docs / "letter.md") is Change.GONE)
    assert not seen.swept


def test_a_rename_is_one_path_gone_and_one_changed(watcher: Watcher, seen: Seen, docs: Path) -> None:
    (docs / "note.txt").rename(docs / "renamed.txt")
    wait_for(lambda: docs / "renamed.txt" in seen.changes)
    assert seen.changes[docs / "note.txt"] is Change.GONE
    assert seen.changes[docs / "renamed.txt"] is Change.CHANGED


def test_reading_is_no_change(watcher: Watcher, seen: Seen, docs: Path) -> None:
    for _ in range(20):
        (docs / "note.txt").read_text()
        list(docs.iterdir())
    (docs / "marker.txt").write_text("after the reads")
    wait_for(lambda: docs / "marker.txt" in seen.changes)
    assert set(seen.changes) == {docs / "marker.txt"}


def test_own_files_are_no_change(watcher: Watcher, seen: Seen, docs: Path) -> None:
    (docs / "own" / "catalog.sqlite").write_text("x")
    (docs / "own" / "kv").mkdir()
    (docs / "marker.txt").write_text("after")
    wait_for(lambda: docs / "marker.txt" in seen.changes)
    assert set(seen.changes) == {docs / "marker.txt"}
    assert not seen.swept


def vim(file: Path) -> None:
    """backup by rename, write anew, remove the backup; a probe file first"""
    (file.parent / "4913").write_text("")
    (file.parent / "4913").unlink()
    swap = file.with_name(f".{file.name}.swp")
    swap.write_text("swap")
    backup = file.with_name(file.name + "~")
    file.rename(backup)
    file.write_text("saved by vim\n")
    backup.unlink()
    swap.unlink()


def temp_and_rename(file: Path) -> None:
    """gedit, VS Code and others with atomic save"""
    temporary = file.with_name(".goutputstream-AB12CD")
    temporary.write_text("saved atomically\n")
    temporary.replace(file)


def jetbrains(file: Path) -> None:
    temporary, old = file.with_name(file.name + "___jb_tmp___"), file.with_name(file.name + "___jb_old___")
    temporary.write_text("saved by an IDE\n")
    file.rename(old)
    temporary.rename(file)
    old.unlink()


def delete_and_create(file: Path) -> None:
    file.unlink()
    file.write_text("saved by delete and create\n")


def in_place(file: Path) -> None:
    with file.open("r+") as out:
        out.truncate(0)
        out.write("saved in place\n")


def emacs(file: Path) -> None:
    lock = file.with_name(f".#{file.name}")
    lock.symlink_to("user@host.1234")
    (file.with_name(f"#{file.name}#")).write_text("autosave")
    file.rename(file.with_name(file.name + "~"))
    file.write_text("saved by emacs\n")
    (file.with_name(f"#{file.name}#")).unlink()
    lock.unlink()


EDITORS = [vim, temp_and_rename, jetbrains, delete_and_create, in_place, emacs]


@pytest.mark.parametrize("save", EDITORS, ids=lambda save: save.__name__)
def test_the_ways_editors_save(watcher: Watcher, seen: Seen, docs: Path, save) -> None:  # type: ignore[no-untyped-def]
    save(docs / "note.txt")
    wait_for(lambda: docs / "note.txt" in seen.changes)
    time.sleep(0.3)
    assert set(seen.changes) == {docs / "note.txt"}


def test_a_storm_on_one_file_is_a_few_batches(watcher: Watcher, seen: Seen, docs: Path) -> None:
    for n in range(2000):
        (docs / "note.txt").write_text(str(n))
    wait_for(lambda: docs / "note.txt" in seen.changes)
    time.sleep(0.3)
    assert len(seen.batches) <= 10


def test_a_new_a_moved_and_a_removed_folder_ask_for_a_sweep(watcher: Watcher, seen: Seen, docs: Path) -> None:
    for step in (
        lambda: (docs / "sub").mkdir(),
        lambda: (docs / "sub").rename(docs / "moved"),
        lambda: shutil.rmtree(docs / "moved"),
    ):
        seen.batches.clear()
        step()
        wait_for(lambda: seen.swept)


def test_files_in_a_new_folder_are_reported(watcher: Watcher, seen: Seen, docs: Path) -> None:
    (docs / "sub").mkdir()
    wait_for(lambda: seen.swept)
    (docs / "sub" / "a.txt").write_text("a")
    wait_for(lambda: docs / "sub" / "a.txt" in seen.changes)


def test_a_flood_becomes_a_sweep(docs: Path, seen: Seen) -> None:
    watching = Watcher([docs], seen, debounce=0.5, most=50)
    watching.start()
    for n in range(400):
        (docs / f"{n}.txt").write_text("x")
    wait_for(lambda: seen.swept)
    watching.stop()


def test_a_root_that_comes_back_is_watched_again(docs: Path, seen: Seen, tmp_path: Path) -> None:
    watching = Watcher([docs], seen, debounce=0.1)
    docs.rename(tmp_path / "away")
    assert watching.start() == []
    (tmp_path / "away").rename(docs)
    assert [state.polling for state in watching.check()] == [""]
    (docs / "new.txt").write_text("a")
    wait_for(lambda: docs / "new.txt" in seen.changes)
    shutil.rmtree(docs)
    wait_for(lambda: seen.swept)
    watching.check()
    docs.mkdir()
    assert len(watching.check()) == 1
    (docs / "again.txt").write_text("a")
    wait_for(lambda: docs / "again.txt" in seen.changes)
    watching.stop()


def test_stop_is_quick_and_ends_the_threads(docs: Path, seen: Seen) -> None:
    before = threading.active_count()
    watching = Watcher([docs], seen, debounce=60, longest=60)
    watching.start()
    (docs / "note.txt").write_text("pending")
    time.sleep(0.2)
    began = time.monotonic()
    watching.stop()
    assert time.monotonic() - began < 2
    wait_for(lambda: threading.active_count() <= before, 5)
    assert not logging.getLogger("watchdog").handlers


LIMITED = """
import sys, time
from pathlib import Path
from desk_rag.indexer.watcher import Watcher
root = Path(sys.argv[1])
changes = set()
watcher = Watcher([root], lambda batch: changes.update(batch.changes), debounce=0.1, poll_seconds=0.3)
for state in watcher.start():
    print("state", state.polling, "|", state.remedy, flush=True)
if sys.argv[2] == "later":
    Path("/proc/sys/user/max_inotify_watches").write_text("20")
    for n in range(60):
        (root / f"later{n}").mkdir()
    time.sleep(0.5)
    for state in watcher.check():
        print("state", state.polling, "|", state.remedy, flush=True)
folder = sorted(path for path in root.iterdir() if path.is_dir())[-1]
(folder / "x.txt").write_text("hello")
end = time.monotonic() + 20
while folder / "x.txt" not in changes and time.monotonic() < end:
    time.sleep(0.05)
print("seen" if folder / "x.txt" in changes else "missed", flush=True)
watcher.stop()
"""


def in_namespace(limit: int, *arguments: str) -> str:
    """Run LIMITED where the kernel allows `limit` watches; skips where user namespaces are not to be had."""
    script = f'echo {limit} > /proc/sys/user/max_inotify_watches && exec "$@"'
    command = ["unshare", "-Ur", "sh", "-c", script, "sh", sys.executable, "-c", LIMITED, *arguments]
    probe = ["unshare", "-Ur", "sh", "-c", "echo 50 > /proc/sys/user/max_inotify_watches"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@linux
def test_watches_that_run_out_in_subfolders_are_noticed(docs: Path) -> None:
    for n in range(100):
        (docs / str(n)).mkdir()
    said = in_namespace(50, str(docs), "now")
    assert "only 50 of its folders" in said
    assert "sysctl fs.inotify.max_user_watches" in said
    assert "seen" in said


@linux
def test_watches_that_run_out_later_are_noticed_at_the_next_check(docs: Path) -> None:
    said = in_namespace(1000, str(docs), "later")
    first, *rest = said.splitlines()
    assert first == "state  | "
    assert "of its folders" in rest[0]
    assert "seen" in said


@linux
def test_no_watch_at_all(docs: Path) -> None:
    said = in_namespace(0, str(docs / ".."), "now")
    assert "no more watches" in said
    assert "seen" in said


OVERFLOW = """
import sys, time
from pathlib import Path
from desk_rag.indexer.watcher import Watcher
swept = []
watcher = Watcher([Path(sys.argv[1])], lambda batch: swept.append(batch.sweep), debounce=0.1, most=10**9)
watcher.start()
print("ready", flush=True)
end = time.monotonic() + 40
while not any(swept) and time.monotonic() < end:
    time.sleep(0.05)
print("swept" if any(swept) else "lost", flush=True)
watcher.stop()
"""


@linux
def test_an_overflow_of_the_kernels_queue_asks_for_a_sweep(docs: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 40_000:
        pytest.skip("the queue is too long to fill here")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}
    command = [sys.executable, "-c", OVERFLOW, str(docs)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGSTOP)
        for n in range(most // 2 + 500):
            os.close(os.open(docs / f"{n % 2}.txt", os.O_WRONLY | os.O_CREAT, 0o600))
            os.truncate(docs / f"{n % 2}.txt", n)
        child.send_signal(signal.SIGCONT)
        assert child.stdout.readline() == "swept\n"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
