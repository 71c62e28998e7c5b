"""What happens to drives mounted inside an indexed folder, with real mounts: run by `test_absent_mounts`.

`python -m tests.ingest.mount_steps` is started in a mount namespace of its own, so that nothing is mounted for anybody
else and everything is unmounted when the process ends. It reads the name of a case and a place a line, and runs each in
a fork with mounts of its own.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

from desk_rag.documents.status import FileState
from desk_rag.model.prompt import load_prompt
from desk_rag.store.presence import absent_folders
from tests.ingest.absent_world import HOUR, World, absent, removed

USB = "usb"
_LONGEST = 300.0
"""Seconds after which a case says where each of its threads is, and ends; more than a case waits for all it expects."""
_CLONE_NEWNS = 0x20000
"""As in sched.h; `os.unshare` is newer than Python 3.11."""


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def umount(place: Path) -> None:
    subprocess.run(["umount", str(place)], check=True)


def drive(place: Path) -> Path:
    """Make a file system of its own that can be plugged in and out without losing its content."""
    place.mkdir()
    mount("-t", "tmpfs", "drive", place)
    return place


def plug(content: Path, world: World) -> Path:
    """Mount a drive inside the folder."""
    mount_point = world.root / USB
    mount_point.mkdir(exist_ok=True)
    mount("--bind", content, mount_point)
    return mount_point


def world_with_drive(place: Path) -> tuple[World, Path, Path]:
    """Index 15 documents in the folder and 12 on a drive inside it, all warm."""
    world = World(place, load_prompt(Path("assets/reader")))
    content = drive(place / "stick")
    mount_point = plug(content, world)
    world.write(12, USB)
    world.write(15)
    world.index()
    assert len(world.documents()) == 27 and world.is_warm()
    return world, mount_point, content


def unmounted_and_back(place: Path) -> None:
    world, mount_point, content = world_with_drive(place)
    kv, documents = world.kv(), world.documents()
    umount(mount_point)
    (mount_point / "stray.txt").write_text("Saved here because the drive was not there.\n")
    for _ in range(3):
        assert world.path(mount_point / "3.txt").state is FileState.UNCHANGED
        events = world.sync()
        assert absent(events) == {
            mount_point: "the drive that was mounted here is not connected; its 12 documents are kept and still found"
            " (`desk-rag purge FOLDER` removes them)"
        }
        assert removed(events) == 0
        world.clocks.pass_by(400 * HOUR)
        world.reopen()
    assert (world.documents(), world.kv()) == (documents, kv)
    assert [(folder.path, folder.documents) for folder in absent_folders(world.store)] == [(mount_point, 12)]
    # The rest of the folder goes on as always.
    (world.root / "0.txt").unlink()
    (world.root / "new.txt").write_text("Written while the drive was away.\n")
    assert removed(world.sync()) == 1
    mount("--bind", content, mount_point)
    (mount_point / "5.txt").unlink()
    events = world.sync()
    assert not absent(events) and removed(events) == 1
    left = {name: stamp for name, stamp in kv.items() if name in world.kv()}
    assert world.kv() == left == kv, "both deleted documents are in the bin"


def another_drive_in_its_place(place: Path) -> None:
    world, mount_point, content = world_with_drive(place)
    kv, documents = world.kv(), world.documents()
    umount(mount_point)
    other = drive(place / "other")
    (other / "letter.txt").write_text("A letter on another drive.\n")
    (other / "0.txt").write_text("A note with a name that occurs on both.\n")
    mount("--bind", other, mount_point)
    assert "another drive is mounted in its place" in absent(world.sync())[mount_point]
    assert world.path(mount_point / "0.txt").state is FileState.UNCHANGED
    assert (world.documents(), world.kv()) == (documents, kv)
    umount(mount_point)
    mount("--bind", content, mount_point)
    assert not absent(world.sync()) and world.kv() == kv and world.is_warm()


def cloned_drive_is_recognised(place: Path) -> None:
    world, mount_point, content = world_with_drive(place)
    kv = world.kv()
    clone = drive(place / "clone")
    shutil.copytree(content, clone, dirs_exist_ok=True)
    umount(mount_point)
    mount("--bind", clone, mount_point)
    assert not absent(world.sync())
    assert world.kv() == kv and world.is_warm()
    # Copied to where the drive was mounted, it is a folder like any other.
    umount(mount_point)
    shutil.copytree(content, mount_point, dirs_exist_ok=True)
    assert not absent(world.sync())
    for number in range(3):
        (mount_point / f"{number}.txt").unlink()
    events = world.sync()
    assert not absent(events) and removed(events) == 3
    assert [volume.path for volume in world.store.volumes.of(world.root)] == [world.root]


def unmounted_in_the_middle_of_a_look(place: Path) -> None:
    world, mount_point, _ = world_with_drive(place)
    kv, documents = world.kv(), world.documents()
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        if calls == 5:
            umount(mount_point)
        return False

    events = world.sync(stop)
    assert not mount_point.joinpath("0.txt").exists() and mount_point in absent(events) and removed(events) == 0
    assert (world.documents(), world.kv()) == (documents, kv)


def root_on_a_drive_that_is_unmounted(place: Path) -> None:
    content = drive(place / "stick")
    (place / "docs").mkdir()
    mount("--bind", content, place / "docs")
    world = World(place, load_prompt(Path("assets/reader")))
    world.write(4)
    world.index()
    kv, documents = world.kv(), world.documents()
    umount(world.root)
    assert "empty" in absent(world.sync())[world.root]
    (world.root / "stray.txt").write_text("Saved here because the drive was not there.\n")
    assert "in its place" in absent(world.sync())[world.root]
    world.reopen()
    assert (world.documents(), world.kv()) == (documents, kv)
    mount("--bind", content, world.root)
    assert not absent(world.sync()) and world.kv() == kv and world.is_warm()


def plugged_in_between_two_looks(place: Path) -> None:
    world = World(place, load_prompt(Path("assets/reader")))
    world.write(3)
    world.index()
    content = drive(place / "stick")
    (content / "letter.txt").write_text("A letter on the drive.\n")
    mount_point = plug(content, world)
    assert world.path(mount_point / "letter.txt").state is FileState.INDEXED
    umount(mount_point)
    assert world.path(mount_point / "letter.txt").state is FileState.UNCHANGED
    assert mount_point in absent(world.sync()) and mount_point / "letter.txt" in world.documents()


def unmounted_while_a_service_watches(place: Path) -> None:
    """As `desk-rag watch` does it, model and all."""
    from desk_rag.config import IdleSettings, IndexSettings, ModelSettings, Settings, StoreSettings
    from desk_rag.indexer.parts import lazy_parts
    from desk_rag.indexer.service import Service
    from desk_rag.ingest.events import FileEvent, IndexEvent, IndexFinished, Notice
    from desk_rag.store.store import Store
    from tests.indexer.conftest import wait_for
    from tests.store import made

    root = place / "docs"
    (root / USB).mkdir(parents=True)
    mount("-t", "tmpfs", "drive", root / USB)
    for number in range(12):
        (root / USB / f"{number}.txt").write_text(f"Note {number} about the lock keeper.\n")
        os.utime(root / USB / f"{number}.txt", (1_700_000_000, 1_700_000_000))
    settings = Settings(
        data_dir=place / "data",
        model=ModelSettings(device="cpu", threads=1),
        store=StoreSettings(budget_gib=1, reserve_gib=0),
        index=IndexSettings(settle_seconds=0.2, sweep_seconds=600),
        idle=IdleSettings(quiet_seconds=0, cpu_busy_percent=100, gpu_busy_percent=100, gpu_free_mib=0, on_battery=True),
    )
    events: list[IndexEvent] = []
    with Store.open(settings.data_dir, settings.store, writer=True) as store:
        service = Service(lazy_parts(store, settings), [root], settings, tick_seconds=0.1)
        service.subscribe(events.append)
        service.start()
        try:
            wait_for(lambda: any(isinstance(event, IndexFinished) for event in events), 120)
            files = {file: file.stat().st_mtime_ns for file in made.kv_files(settings.data_dir)}
            assert len(files) == 12
            shutil.copytree(root / USB, place / "backup")
            umount(root / USB)
            service.sweep()
            wait_for(lambda: any(isinstance(event, Notice) and not event.is_over for event in events))
            mount("-t", "tmpfs", "drive", root / USB)
            shutil.copytree(place / "backup", root / USB, dirs_exist_ok=True)
            service.sweep()
            (root / "marker.txt").write_text("Written after the drive was back.\n")
            wait_for(lambda: store.document(root / "marker.txt") is not None)
            assert len(store.documents(root / USB)) == 12
            assert not [e for e in events if isinstance(e, FileEvent) and e.state is FileState.REMOVED]
            now = {file: file.stat().st_mtime_ns for file in made.kv_files(settings.data_dir)}
            assert files.items() <= now.items()
        finally:
            service.stop(20)


CASES = {
    case.__name__: case
    for case in (
        unmounted_and_back,
        another_drive_in_its_place,
        cloned_drive_is_recognised,
        unmounted_in_the_middle_of_a_look,
        root_on_a_drive_that_is_unmounted,
        plugged_in_between_two_looks,
        unmounted_while_a_service_watches,
    )
}


def _run(case: str, place: Path) -> int:
    """Run a case in a fork and return its exit code; what it had to say is in the file `said` in its place."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.dup2(os.open(place / "said", os.O_WRONLY | os.O_CREAT, 0o600), 2)
        faulthandler.dump_traceback_later(_LONGEST, exit=True)
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "no mounts of its own")
        mount("-t", "tmpfs", "memory", place)  # a disk that others keep busy would hold up a case for minutes
        CASES[case](place)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        name, _, directory = line.rstrip("\n").partition(" ")
        print(_run(name, Path(directory)), flush=True)
