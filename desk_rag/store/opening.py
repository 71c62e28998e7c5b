"""Open a data directory: create its folders, take the writer's lock, open the catalog."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from desk_rag.config import StoreSettings
from desk_rag.errors import ForeignPlace, StoreError, StoreFull, StoreLocked, StoreReadOnly, UnknownFormat, of_system
from desk_rag.owned_folder import proven, require_own_file
from desk_rag.store import kv_directory
from desk_rag.store.catalog.database import Database, explained
from desk_rag.store.catalog.witness import Witness
from desk_rag.store.kv_directory import KVDirectory
from desk_rag.store.layout import Layout
from desk_rag.store.ownership import stamp_of

INDEX_AGAIN = "Index your folders again: desk-rag index FOLDER"
CATALOG_RESET = f"The catalog was damaged and has been replaced by an empty one; sound chunk KV was kept. {INDEX_AGAIN}"
CATALOG_RESET_REASON = "the catalog was damaged and had to be replaced"
_PID_TRIES = 20
_PID_WAIT = 0.02


@dataclass(slots=True)
class Opened:
    """The parts of an open store, closed in reverse order."""

    layout: Layout
    settings: StoreSettings
    kv: KVDirectory
    database: Database
    lock: FileLock | None
    """Held by the writer, None for others."""
    notices: tuple[str, ...]
    closed: bool = False

    def close(self) -> None:
        """Close the catalog, then give the lock back."""
        self.closed = True
        self.database.close()
        if self.lock is not None:
            _release(self.lock, self.layout)


def open_directory(root: Path, settings: StoreSettings, *, writer: bool) -> Opened:
    """Create what is missing, take the lock if `writer`, open the catalog.

    If the drive is full or read-only, an existing store can still be read: a process that is not the writer gets a
    read-only catalog and a notice. Raises StoreLocked, UnknownFormat, StoreFull, StoreReadOnly,
    ForeignPlace, StoreError.
    """
    layout = Layout(root.absolute(), settings.kv_place)
    try:
        layout.create()
    except (StoreFull, StoreReadOnly, ForeignPlace):
        if writer or not layout.catalog.is_file():
            raise
    for end in ("", "-wal", "-shm", "-journal"):  # SQLite follows links, and writes
        require_own_file(layout.catalog.with_name(layout.catalog.name + end))
    lock = lock_of(layout) if writer else None
    if lock is not None:
        with suppress(OSError):  # written by earlier versions; now the table `deletions`
            note = layout.run / "held-removals.json"
            layout.home.remove(note, layout.proof(note))
    try:
        kv = kv_directory.open_kv_directory(layout, writer=writer)
        database, notices = _open_catalog(layout, writer=writer)
    except BaseException:
        if lock is not None:
            _release(lock, layout)
        raise
    return Opened(layout, settings, kv, database, lock, notices)


def has_traces(root: Path) -> bool:
    """Return whether a catalog existed here before, judging by its mark and by chunk KV."""
    layout = Layout(root.absolute())
    return Witness(layout.home, layout.run).read() is not None or layout.has_kv()


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Hold the writer's lock without opening the catalog. Raises as `lock_of` does."""
    with suppress(OSError):  # a partly removed store may lack the folder
        layout.home.make_directory(layout.run)
    lock = lock_of(layout)
    try:
        yield
    finally:
        _release(lock, layout)


def lock_of(layout: Layout) -> FileLock:
    """Take the writer's lock. Raises StoreLocked, StoreFull, StoreReadOnly, StoreError."""
    # Not per thread: a UI opens the store in a worker thread and closes it in the main thread.
    lock = FileLock(layout.run / "writer.lock", timeout=0, mode=0o600, thread_local=False)
    pid_file = layout.run / "writer.pid"
    try:
        with suppress(FileNotFoundError), layout.home.opened(layout.run) as folder:
            require_own_file(folder.path / "writer.lock", folder.status("writer.lock"))  # taking the lock empties it
        lock.acquire()
    except Timeout as error:
        raise StoreLocked(
            f"Another desk-rag {_holder(pid_file)} is writing to {layout.root}.",
            remedy="Wait until it has finished, or end it if it is a UI or `watch` (desk-rag status). Questions are "
            "answered meanwhile.",
        ) from error
    except OSError as error:
        raise of_system(error, layout.run) or StoreError(
            f"{layout.run} cannot be locked: {error.strerror or error}.",
            remedy="Move the data directory to a local drive.",
        ) from error
    with suppress(OSError):  # it only tells other processes who holds the lock
        layout.home.write(pid_file, str(os.getpid()).encode())
    return lock


def _holder(pid_file: Path) -> str:
    """Name the writer. It records its pid just after taking the lock, so a missing or stale pid is read again."""
    for _ in range(_PID_TRIES):
        with suppress(OSError, ValueError):
            pid = int(pid_file.read_text())
            if psutil.pid_exists(pid):
                return f"(process {pid})"
        time.sleep(_PID_WAIT)
    return "process"


def _release(lock: FileLock, layout: Layout) -> None:
    with suppress(OSError):
        layout.home.remove(layout.run / "writer.pid", layout.proof(layout.run / "writer.pid"))
    lock.release()


def _open_catalog(layout: Layout, *, writer: bool) -> tuple[Database, tuple[str, ...]]:
    try:
        return Database(layout.catalog), ()
    except UnknownFormat:
        raise
    except StoreError as error:
        problem: Exception = error
    except sqlite3.DatabaseError as error:
        if writer and not isinstance(error, sqlite3.OperationalError):
            return reset_catalog(layout)
        problem = explained(error, layout.catalog)
        problem.__cause__ = error
    if writer or not isinstance(problem, (StoreFull, StoreReadOnly)):
        raise problem
    try:
        database = Database(layout.catalog, read_only=True)
    except sqlite3.DatabaseError as error:
        raise problem from error
    return database, (f"{problem.message} The store was opened read-only.",)


def reset_catalog(layout: Layout) -> tuple[Database, tuple[str, ...]]:
    """Move a damaged catalog to quarantine and create an empty one; the caller holds the writer's lock."""
    try:
        serial = time.time_ns()
        layout.home.move(
            layout.catalog, layout.quarantine, lambda entry: f"catalog.{serial}.{stamp_of(entry.status)}.sqlite", proven
        )
        for suffix in ("-wal", "-shm"):
            layout.home.remove(layout.catalog.with_name(layout.catalog.name + suffix), proven)
        database = Database(layout.catalog)
    except sqlite3.DatabaseError as error:
        raise explained(error, layout.catalog) from error
    except OSError as error:
        raise of_system(error, layout.catalog) or error from error
    return database, (CATALOG_RESET,)
