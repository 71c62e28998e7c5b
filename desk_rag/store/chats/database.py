"""Open `chats.sqlite`, or put a damaged one aside and begin anew."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock

from desk_rag.errors import StoreError, full_disk, of_system, read_only
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import proven, require_own_file
from desk_rag.store.chats import schema
from desk_rag.store.ownership import CHATS, stamp_of

_BUSY_SECONDS = 5.0
_DAMAGED = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,  # a missing table or column, since the statements are tested
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_MISMATCH,
}


class ChatsDamaged(StoreError):
    """The chats database cannot be read."""


class ChatsMoved(StoreError):
    """Another process has moved or replaced the chats database since it was opened."""


class ChatsDatabase:
    """One connection to `chats.sqlite` in a data directory; its methods may be called from any thread.

    There is no write-ahead log: after each change the file alone holds the chats, and what was deleted is zeroed.
    """

    def __init__(self, root: Path, *, create: bool) -> None:
        """Raises StoreError subclasses, such as ChatsDamaged and ChatsMoved; FileNotFoundError unless `create`."""
        self.path = root / CHATS
        self._turn = RLock()
        for end in ("", "-journal"):  # SQLite follows links, and writes
            require_own_file(self.path.with_name(self.path.name + end))
        if not self.path.exists():
            if not create:
                raise FileNotFoundError(self.path)
            try:
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
            except OSError as error:
                raise of_system(error, self.path) or StoreError(f"{self.path} cannot be made: {error}.") from error
        try:
            self._identity = _identity(self.path)
        except FileNotFoundError as error:
            raise _moved(self.path) from error
        self._connection = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            with self._explained():
                for pragma in ("foreign_keys = ON", "secure_delete = ON", "temp_store = MEMORY", "synchronous = FULL"):
                    self._connection.execute(f"PRAGMA {pragma}")
                if self._connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                    raise ChatsDamaged(f"{self.path} is damaged.")
                schema.migrate(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._connection.create_function("folded", 1, _folded, deterministic=True)

    def is_current(self) -> bool:
        """Return whether the file that was opened still has its name: another process may have moved it."""
        try:
            return _identity(self.path) == self._identity
        except OSError:
            return False

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection. Raises ChatsDamaged, StoreError."""
        with self._turn, self._explained():
            yield self._connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one durable transaction.

        Raises StoreFull, StoreReadOnly, ChatsDamaged, StoreError; ChatsMoved if what it wrote would be lost.
        """
        with self.read() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if not self.is_current():
                    raise _moved(self.path)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection."""
        with self._turn:
            self._connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn SQLite's errors into those for the user; its own words may quote a damaged page."""
        try:
            yield
        except sqlite3.Error as error:
            kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            if kind == sqlite3.SQLITE_FULL:
                raise full_disk(self.path) from error
            if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR):
                raise read_only(self.path, f"the drive or the permissions do not allow it ({name})") from error
            if kind in _DAMAGED:
                raise ChatsDamaged(f"{self.path} is damaged ({name}).") from error
            raise StoreError(f"{self.path} could not be used ({name}).", remedy="Try again.") from error


def put_aside(root: Path) -> str:
    """Move a damaged database to quarantine; return its name there, '' if there was nothing to move. Raises OSError."""
    home = OwnedDirectory(root)
    name = ""

    def aside(entry: object) -> str:
        nonlocal name
        name = f"chats.{time.time_ns()}.{stamp_of(entry.status)}.sqlite"  # type: ignore[attr-defined]
        return name

    home.make_directory(root / "quarantine")
    moved = home.move(root / CHATS, root / "quarantine", aside, proven)
    home.remove(root / f"{CHATS}-journal", proven)
    return name if moved else ""


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _moved(path: Path) -> ChatsMoved:
    return ChatsMoved(f"{path} has just been moved by another process.", remedy="Try again.")


def _folded(text: object) -> str:
    return text.casefold() if isinstance(text, str) else ""
