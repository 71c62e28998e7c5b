"""SQLite connections and transactions for many threads and processes. Knows pragmas; knows no table."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from desk_rag.errors import StoreError, StoreFull
from desk_rag.store import schema

BUSY_SECONDS = 30.0


class Database:
    """A pool of connections to one file. Any thread may read at any time; writers of this process take turns."""

    def __init__(self, path: Path) -> None:
        """Open or create the file (0600) and bring it to the current schema.

        Raises UnknownFormat, StoreError, or sqlite3.DatabaseError for a file that is no sound database.
        """
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        self._turn = threading.RLock()
        self._closed = False
        try:
            path.touch(mode=0o600)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be opened: {error.strerror}.", remedy="Free some space or mend the permissions."
            ) from error
        connection = self._take()
        try:
            schema.migrate(connection, path)
        finally:
            self._give(connection)

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection outside of any transaction. Raises StoreError if the catalog cannot be read."""
        connection = self._take()
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            raise _explained(error, self._path) from error
        finally:
            self._give(connection)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection whose statements all see the same moment."""
        with self.read() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction; `durable` waits for the disk, which counters need not.

        Raises StoreFull when the disk is full, StoreError when another process kept the catalog too long.
        """
        with self._turn, self.read() as connection:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite has rolled back by itself after some errors
                    connection.execute("ROLLBACK")
                raise

    def checkpoint(self) -> bool:
        """Move the write-ahead log into the file and empty it; False if a reader was in the way."""
        with self._turn, self.read() as connection:
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return not busy

    def close(self) -> None:
        """Close all idle connections; one still lent is closed when it comes back."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> sqlite3.Connection:
        with self._guard:
            if self._closed:
                raise StoreError("The store is closed.")
            if self._idle:
                return self._idle.pop()
        connection = sqlite3.connect(
            self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has effect on a new file only
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA temp_store = MEMORY")  # no document text in temporary files
        except BaseException:
            connection.close()
            raise
        return connection

    def _give(self, connection: sqlite3.Connection) -> None:
        with self._guard:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _explained(error: sqlite3.DatabaseError, path: Path) -> Exception:
    if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)):
        return error  # a mistake of ours, not of the disk
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return StoreFull(f"The disk of {path} is full.", remedy="Free some space; nothing that was stored is lost.")
    return StoreError(
        f"{path} could not be used: {error}.",
        remedy="Free some space and close other desk-rag processes; `desk-rag verify --repair` mends what it can.",
    )
