"""Readers beside a writer leave it its file locks (POSIX gives them up at any close)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
