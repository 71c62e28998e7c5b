"""Readers beside a writer leave it its file locks (POSIX gives them up at any close)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from desk_rag.cli.checks import data_directory
from desk_rag.config import Settings
from desk_rag.store.maintenance.data_directory import foreign_files
from desk_rag.store.store import Store
from tests.store import made

A, B = Path("/docs/a.md"), Path("/docs/b.md")
OTHER_PROCESS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM chunks").fetchall()
connection.close()  # the last connection removes the write-ahead log
"""


def _reader_from_before(root: Path) -> Callable[[], None]:
    """A reader that began when nobody wrote, and so without locks."""
    reader = Store.open(root, made.settings(), writer=False)
    return reader.close


def _search_of_the_directory(root: Path) -> Callable[[], None]:
    return lambda: list(foreign_files(root, None)).clear()


@pytest.mark.parametrize("beside", [_reader_from_before, _search_of_the_directory])
def test_another_process_does_not_take_itself_for_the_last_one(
    root: Path, beside: Callable[[Path], Callable[[], None]]
) -> None:
    with Store.open(root, made.settings(), writer=True) as store:
        store.put_document(made.document(A, ["one"]), made.chunks(["one"]), made.stamp())
    act = beside(root)
    with Store.open(root, made.settings(), writer=True) as store:
        store.put_document(made.document(B, ["two"]), made.chunks(["two"]), made.stamp())
        log = root / "catalog.sqlite-wal"
        before = log.stat().st_ino
        act()
        subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(root / "catalog.sqlite")], check=True)
        assert log.exists() and log.stat().st_ino == before, "the log was removed under the writer"
        store.put_document(made.document(A, ["three"]), made.chunks(["three"]), made.stamp())
        assert store.verify().clean
    with Store.open(root, made.settings(), writer=True) as store:
        assert store.verify().clean and store.counts(None, None).files == 2


_opened: list[str] | None = None


def _note_openings(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str):
        _opened.append(Path(arguments[0]).name)


sys.addaudithook(_note_openings)  # SQLite's own openings are no events


def _purge(store: Store, root: Path) -> None:
    report = store.purge(A, verify=True)
    assert report.verified and not report.traces


def _check_data_directory(store: Store, root: Path) -> None:
    settings = Settings(data_dir=root)
    for check in (data_directory.other_files, data_directory.index, data_directory.chats, data_directory.cache_quality):
        check(settings)
    for finding in (data_directory.data_dir, data_directory.disk):
        finding(settings)


@pytest.mark.parametrize(
    "work",
    [
        _purge,
        _check_data_directory,
        lambda store, root: store.verify(),
        lambda store, root: store.verify(repair=True),
        lambda store, root: store.empty_quarantine(),
        lambda store, root: store.checkpoint(),
        lambda store, root: store.purge(A),
    ],
    ids=["purge with search", "doctor", "verify", "repair", "quarantine", "checkpoint", "purge"],
)
def test_the_writer_never_opens_the_catalog_past_sqlite(root: Path, work: Callable[[Store, Path], object]) -> None:
    """Whatever a process with an open catalog does, no descriptor of its locked files is closed."""
    global _opened
    with Store.open(root, made.settings(), writer=True) as store:
        words = "The boiler was serviced by Wilhelmina in the autumn."
        store.put_document(made.document(A, [words]), made.chunks([words]), made.stamp())
        store.put_document(made.document(B, ["two"]), made.chunks(["two"]), made.stamp())
        _opened = []
        try:
            work(store, root)
            opened = set(_opened)
        finally:
            _opened = None
        assert not opened & {"catalog.sqlite", "catalog.sqlite-shm"}
        store.put_document(made.document(A, ["three"]), made.chunks(["three"]), made.stamp())
        log = root / "catalog.sqlite-wal"
        before = log.stat().st_ino
        subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(root / "catalog.sqlite")], check=True)
        assert log.exists() and log.stat().st_ino == before, "the log was removed under the writer"
