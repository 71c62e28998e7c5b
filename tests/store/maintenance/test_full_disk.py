"""A full or read-only drive: what can be read is read, what can be deleted is deleted, the rest says why."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.cli import store as cli_store
from desk_rag.cli.folders import purging
from desk_rag.config import GIB, Settings, StoreSettings
from desk_rag.errors import StoreFull, StoreReadOnly, UnknownFormat, of_system
from desk_rag.kv.types import QuantizedKV
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store.catalog.database import Database
from desk_rag.store.layout import Layout
from desk_rag.store.maintenance.full_disk import PurgeSpace
from desk_rag.store.open_to_purge import open_to_purge
from desk_rag.store.ownership import stamp_of
from desk_rag.store.store import Store
from tests.store import made
from tests.store.made import kv_files

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting needs root")


def fill(store: Store, folder: str, count: int = 6, pad: int = 40) -> list[str]:
    texts = [f"{folder} text number {number} about the heliotrope collection " * pad for number in range(count)]
    for number, text in enumerate(texts):
        path = Path(f"/{folder}/{number}")
        store.put_document(made.document(path, [text]), [made.chunk(text)], made.stamp())
        assert store.put_kv(made.key(text), large(text), [made.chunk_id(text)], 0.5)
    return texts


def large(text: str) -> QuantizedKV:
    """As large beside its text as chunk KV is: about 70 KiB."""
    return made.kv_for(made.key(text), heads=4, tokens=64, dim=64)


def mount(*words: str) -> None:
    if subprocess.run(["mount", *words], capture_output=True, check=False).returncode:
        pytest.skip("mount is not allowed here")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A drive of eight megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk))
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def stuff(disk: Path) -> None:
    """Take the last byte."""
    place = disk / f"stuffing{len(list(disk.iterdir()))}"
    with pytest.raises(OSError) as caught, place.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert caught.value.errno == errno.ENOSPC


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


# without a full drive ---------------------------------------------------------------------------------------


def test_the_lock_needs_no_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Layout(root).create()
    monkeypatch.setattr(OwnedDirectory, "write", full)
    with Store.open(root, made.settings(), writer=True) as store:
        assert store.writer and not (root / "run" / "writer.pid").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM])
def test_what_the_system_says_of_a_drive_is_told_with_a_remedy(number: int) -> None:
    error = of_system(OSError(number, os.strerror(number)), Path("/data/kv"))
    full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    assert isinstance(error, StoreFull if full else StoreReadOnly) and error.exit_code == 4
    assert "/data/kv" in error.message and ("Free some space" if full else "writable") in error.remedy
    assert "/other" in str(of_system(OSError(number, "x", "/other"), Path("/data/kv")))
    assert of_system(OSError(errno.EIO, "x")) is None


def test_a_catalog_can_be_read_without_a_trace(root: Path) -> None:
    with Store.open(root, made.settings(), writer=True) as store:
        fill(store, "in", 2, 1)
        beside = Database(root / "catalog.sqlite", read_only=True)  # the writer's log holds it all
        with beside.read() as connection:
            assert connection.execute("SELECT count(*) FROM documents").fetchone() == (2,)
        beside.close()
    files = names(root)
    assert "catalog.sqlite-shm" not in files
    alone = Database(root / "catalog.sqlite", read_only=True)
    with alone.snapshot() as connection:
        assert connection.execute("SELECT count(*) FROM documents").fetchone() == (2,)
    with pytest.raises(StoreReadOnly, match=r"catalog\.sqlite"), alone.write():
        pass
    assert alone.checkpoint()
    alone.close()
    assert names(root) == files


def test_a_newer_catalog_is_not_read_either(root: Path) -> None:
    Store.open(root, made.settings(), writer=True).close()
    database = Database(root / "catalog.sqlite")
    with database.read() as connection:
        connection.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(UnknownFormat):
        Database(root / "catalog.sqlite", read_only=True)


def test_room_for_a_purge_is_made_of_its_own_files_first(store: Store, root: Path) -> None:
    own, others = fill(store, "in", 3, 1), fill(store, "out", 3, 1)
    store.put_document(made.document(Path("/out/same"), [own[0]]), [made.chunk(own[0])], made.stamp())
    aside = root / "quarantine" / "x"
    aside.write_bytes(b"x")
    aside.rename(aside.with_name(f"catalog.1.{stamp_of(aside.stat())}.sqlite"))
    database = Database(root / "catalog.sqlite", read_only=True)
    space = PurgeSpace(Layout(root), Path("/in"))
    assert space.free_some(database) and space.files == 2 and space.freed > 0
    assert not list((root / "quarantine").iterdir())
    left = {path.stem for path in kv_files(root)}
    assert left == {str(made.key(text).tokens) for text in (own[0], *others)}, "what others hold too stays"
    assert space.free_some(database) and kv_files(root) == []
    assert not space.free_some(database)
    database.close()


# a full drive -----------------------------------------------------------------------------------------------


@ROOT_ONLY
def test_a_full_drive(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(data_dir=small / "data", store=StoreSettings(budget_gib=1, reserve_gib=0))
    with Store.open(small / "data", settings.store, writer=True) as store:
        gone = fill(store, "in")
        fill(store, "out", 3)
    stuff(small)
    assert not (small / "data" / "catalog.sqlite-shm").exists(), "so that SQLite needs room before it can read"
    assert cli_store.status(settings, as_json=False) == 0 and "9 files, 9 chunks" in said(capsys)
    assert cli_store.verify(settings, repair=False, subset="1/1", as_json=False) == 0
    output = said(capsys)
    assert "opened read-only" in output and "nothing wrong" in output and "disk is full" in output
    with Store.open(small / "data", settings.store, writer=False) as store:
        assert len(store.search_words("heliotrope", 20)) == 9
        store.note_use([made.chunk_id(gone[0])])  # is not counted, and says nothing
        store.want_kv([made.chunk_id(gone[0])])
        assert made.same(store.get_kv([made.key(gone[0])])[0], large(gone[0]))
    with pytest.raises(StoreFull, match="disk is full") as caught:
        Store.open(small / "data", settings.store, writer=True)
    assert caught.value.exit_code == 4 and caught.value.remedy
    assert purging.purge(settings, Path("/in"), None, check=True, sure=True, as_json=False) == 0
    output = said(capsys)
    assert "Forgot 6 documents, 6 chunks and 6 caches" in output and "no trace" in output
    with Store.open(small / "data", settings.store, writer=True) as store:
        assert len(store.documents()) == 3 and store.verify().clean and len(kv_files(small / "data")) == 3
    stuff(small)
    assert purging.purge(settings, None, None, check=False, sure=True, as_json=False) == 0
    assert said(capsys).startswith(f"Deleted {small / 'data'} (") and not (small / "data").exists()


@ROOT_ONLY
def test_a_purge_takes_other_caches_where_its_own_leave_no_room(small: Path) -> None:
    settings = StoreSettings(budget_gib=1, reserve_gib=0)
    with Store.open(small / "data", settings, writer=True) as store:
        for number in range(100):
            text = f"in text number {number} about the heliotrope collection " * 30
            store.put_document(made.document(Path(f"/in/{number}"), [text]), [made.chunk(text)], made.stamp())
        fill(store, "out", 30, 1)
    stuff(small)
    store, room = open_to_purge(small / "data", settings, Path("/in"))
    with store:
        report = store.purge(Path("/in"), verify=True)
    assert (report.documents, report.verified, report.traces) == (100, True, ()) and room.files == 0
    with Store.open(small / "data", settings, writer=True) as store:
        assert len(store.documents()) == 30 and len(kv_files(small / "data")) < 30 and store.verify().clean
    for path in kv_files(small / "data"):
        path.unlink()
    stuff(small)
    with pytest.raises(StoreFull):  # nothing is left that could go
        open_to_purge(small / "data", settings, Path("/out"))


@ROOT_ONLY
def test_a_read_only_drive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "data"
    with Store.open(place, made.settings(), writer=True) as store:
        texts = fill(store, "in", 3, 1)
    mount("--bind", str(place), str(place))
    try:
        mount("-o", "remount,ro,bind", str(place))
        settings = Settings(data_dir=place, store=StoreSettings(budget_gib=1 / GIB, reserve_gib=0))
        assert cli_store.status(settings, as_json=False) == 0 and "3 files, 3 chunks" in said(capsys)
        assert cli_store.verify(settings, repair=False, subset="1/1", as_json=False) == 0
        assert "cannot be written" in said(capsys)
        with Store.open(place, made.settings(), writer=False) as store:
            damaged = kv_files(place)[0]
            assert all(made.same(store.get_kv([made.key(t)])[0], large(t)) for t in texts)
            store._kv._quarantine(made.key(texts[0]), damaged)  # a file that cannot be moved is a miss, no more
            assert damaged.exists()
        for command in (
            lambda: Store.open(place, made.settings(), writer=True),
            lambda: purging.purge(settings, None, None, check=False, sure=True, as_json=False),
            lambda: purging.purge(settings, Path("/in"), None, check=False, sure=True, as_json=False),
        ):
            with pytest.raises(StoreReadOnly, match="cannot be written: Read-only file system") as caught:
                command()
            assert "writable" in caught.value.remedy and "--data-dir" in caught.value.remedy
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert len(kv_files(place)) == 3
