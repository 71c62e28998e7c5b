"""A data directory taken into use: tree, lock, catalog. Knows who may write; knows nothing of what is in there."""

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
from desk_rag.store.layout import Layout, write_private
from desk_rag.store.ownership import stamp_of

CATALOG_RESET = (
    "The catalog was damaged and was begun anew; chunk KV that is sound was kept. "
    "Index your folders again: desk-rag index FOLDER"
)
CATALOG_RESET_REASON = "the catalog was damaged and begun anew"
_PID_TRIES = 20
_PID_WAIT = 0.02


@dataclass(slots=True)
class Opened:
    """What `Store` is made from; closed once, in reverse order."""

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

    Where the drive is full or read-only, a store that is there can still be read: who does not write is given a
    catalog that cannot be written, and a notice. Raises StoreLocked, UnknownFormat, StoreFull, StoreReadOnly,
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
        with suppress(OSError):  # a note of an earlier version, replaced by the table `deletions`
            note = layout.run / "held-removals.json"
            layout.home.remove(note, layout.proof(note))
    try:
        kv = kv_directory.settle(layout, writer=writer)
        database, notices = _open_catalog(layout, writer=writer)
    except BaseException:
        if lock is not None:
            _release(lock, layout)
        raise
    return Opened(layout, settings, kv, database, lock, notices)


def has_traces(root: Path) -> bool:
    """True if something beside the catalog shows that there was one: the note about it, or chunk KV."""
    layout = Layout(root.absolute())
    return Witness(layout.home, layout.run).read() is not None or layout.has_kv()


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Be the writer without opening the catalog. Raises as `lock_of` does."""
    with suppress(OSError):  # what is left of a store that was being removed may have no place for the lock
        layout.home.make_directory(layout.run)
    lock = lock_of(layout)
    try:
        yield
    finally:
        _release(lock, layout)


def lock_of(layout: Layout) -> FileLock:
    """Take the writer's lock. Raises StoreLocked, StoreFull, StoreReadOnly, StoreError."""
    # Not per thread: a user interface opens the store in a worker and closes it in the main thread.
    lock = FileLock(layout.run / "writer.lock", timeout=0, mode=0o600, thread_local=False)
    pid_file = layout.run / "writer.pid"
    try:
        with suppress(FileNotFoundError), layout.home.opened(layout.run) as folder:
            require_own_file(folder.path / "writer.lock", folder.status("writer.lock"))  # taking the lock empties it
        lock.acquire()
    except Timeout as error:
        raise StoreLocked(
            f"Another desk-rag {_holder(pid_file)} is the writer of {layout.root}.",
            remedy="Close it, or work beside it: questions are answered from the same store.",
        ) from error
    except OSError as error:
        raise of_system(error, layout.run) or StoreError(
            f"{layout.run} cannot be locked: {error.strerror or error}.", remedy="Use a local drive."
        ) from error
    with suppress(OSError):  # it only names us to others who want the lock
        write_private(pid_file, str(os.getpid()).encode(), layout.root)
    return lock


def _holder(pid_file: Path) -> str:
    """Name the writer. It notes its pid right after it has the lock, so a missing or dead pid is asked for again."""
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
    return database, (f"{problem.message} The store was opened for reading only.",)


def reset_catalog(layout: Layout) -> tuple[Database, tuple[str, ...]]:
    """Put a damaged catalog into quarantine and make an empty one; whoever calls this holds the lock."""
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
