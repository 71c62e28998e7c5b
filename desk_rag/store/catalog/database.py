"""SQLite connections and transactions for several threads and processes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from desk_rag.errors import CorruptCatalog, StoreError, UnknownFormat, full_disk, of_system, read_only
from desk_rag.owned_folder import sync_file
from desk_rag.store.catalog import schema
from desk_rag.store.catalog.faults import Faults

BUSY_SECONDS = 30.0
_LITTLE_ROOM = 64 << 10
"""Free bytes below which a failure counts as a full disk; SQLite needs half of them to open the catalog."""
_DAMAGED = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CONSTRAINT,  # our constraints hold in every sound catalog
    sqlite3.SQLITE_ERROR,  # a missing table or column, since the statements are tested
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_NOMEM,  # a damaged length
}


_writers: weakref.WeakSet[Database] = weakref.WeakSet()
"""Databases of this process that hold file locks."""
_kept_open: list[tuple[Path, sqlite3.Connection]] = []
"""Connections without locks that wait until no writer is open: to close them gives up its locks (POSIX)."""


class Database:
    """A pool of connections to one file. Any thread may read; the writers of this process take turns."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open or create the file (0600) and bring it to the current schema.

        With `read_only` nothing is written, not even SQLite's own files beside it, as needed on a full or read-only
        drive. Raises UnknownFormat, StoreError, or sqlite3.DatabaseError for a file that is not a sound database.
        """
        self._path = path
        self.faults = Faults()
        """Damage that this process found in the file."""
        self.read_only = read_only
        self._how = ""
        self._idle: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        self._turn = threading.RLock()
        self._closed = False
        if read_only:
            self._give(self._first_reading())
            return
        try:
            if not path.exists():
                path.touch(mode=0o600)
        except OSError as error:
            raise of_system(error, path) or StoreError(
                f"{path} cannot be opened: {error.strerror}.", remedy="Check its permissions and the drive."
            ) from error
        connection = self._take()
        try:
            schema.migrate(connection, path)
            if not schema.is_intact(connection):
                raise _malformed_schema()
        finally:
            self._give(connection)
        _writers.add(self)

    def _first_reading(self) -> sqlite3.Connection:
        """Open a reading connection that uses the log of other processes if there is one."""
        log, shared = (self._path.with_name(self._path.name + end) for end in ("-wal", "-shm"))
        written = log.exists() and log.stat().st_size > 0  # the content of the log must not be ignored
        if written or shared.exists():
            try:
                self._how = "mode=ro"
                return self._checked(self._take())
            except sqlite3.OperationalError:
                if written:
                    raise
        self._how = "immutable=1"
        return self._checked(self._take())

    def _checked(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        version = schema.version(connection)
        if not version:
            connection.close()
            raise StoreError(
                f"{self._path} is empty: its creation was interrupted, or its content is lost.",
                remedy="Make the drive writable and free some space, then run: desk-rag index FOLDER",
            )
        if version != schema.VERSION:
            connection.close()
            raise UnknownFormat(
                f"{self._path} was written by another desk-rag version (schema {version}, not {schema.VERSION}).",
                remedy="Make the drive writable and free some space, so that it can be brought up to date.",
            )
        if not schema.is_intact(connection):
            connection.close()
            raise _malformed_schema()
        return connection

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection outside any transaction. Raises StoreError if the catalog cannot be read."""
        try:
            connection = self._take()
        except sqlite3.Error as error:
            raise explained(error, self._path) from error
        try:
            yield connection
        except sqlite3.Error as error:
            raise explained(error, self._path) from error
        except UnicodeDecodeError as error:  # a column of a damaged schema
            raise explained(_malformed_schema(), self._path) from error
        finally:
            self._give(connection)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection whose statements all see the same state."""
        with self.read() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction; with `durable` it waits for the disk, which counters need not.

        Raises StoreFull if the disk is full, StoreReadOnly if the catalog may not be written, StoreError if another
        process kept it locked too long.
        """
        if self.read_only:
            raise read_only(self._path, "it was opened read-only")
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
        """Move the write-ahead log into the file and empty it; False if a reader prevented it."""
        if self.read_only:
            return True
        with self._turn, self.read() as connection:
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            if not busy:  # SQLite does not flush this, so a power cut would bring deleted text back
                with suppress(FileNotFoundError):
                    sync_file(self._path.with_name(self._path.name + "-wal"))
        return not busy

    def close(self) -> None:
        """Close all idle connections; one in use is closed when it is returned."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self._end(connection)
        if not self._has_writers():
            for entry in [entry for entry in _kept_open if entry[0] == self._path]:
                _kept_open.remove(entry)
                entry[1].close()

    def _take(self) -> sqlite3.Connection:
        with self._guard:
            if self._closed:
                raise StoreError("The store is closed.")
            if self._idle:
                return self._idle.pop()
        place = f"{self._path.as_uri()}?{self._how}" if self.read_only else self._path
        connection = sqlite3.connect(
            place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256,
            uri=self.read_only,
        )  # fmt: skip
        # Damaged text must not raise an error that quotes it; it is decoded anyway and fails its checksum.
        connection.text_factory = _text
        try:
            if self.read_only:
                schema.version(connection)  # fails here if the file cannot be read
            else:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect in a new file only
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA temp_store = MEMORY")  # no document text in temporary files
            connection.execute("PRAGMA cell_size_check = ON")  # a page is looked at as a whole when it is first read
        except UnicodeDecodeError as error:  # SQLite's message quotes a damaged schema
            connection.close()
            raise _malformed_schema() from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _give(self, connection: sqlite3.Connection) -> None:
        with self._guard:
            if not self._closed:
                self._idle.append(connection)
                return
        self._end(connection)

    def _end(self, connection: sqlite3.Connection) -> None:
        """Close a connection, unless that would take a writer of this process its file locks."""
        if self._how == "immutable=1" and self._has_writers():
            _kept_open.append((self._path, connection))
        else:
            connection.close()

    def _has_writers(self) -> bool:
        return any(other._path == self._path and not other._closed for other in list(_writers))


def _malformed_schema() -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("malformed database schema")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CORRUPT, "SQLITE_CORRUPT"
    return error


def explained(error: sqlite3.Error, path: Path) -> Exception:
    """Return the error to show to the user; a programming error is returned unchanged.

    SQLite's own message is left out, because it may quote the content of a damaged page.
    """
    if isinstance(error, sqlite3.ProgrammingError):
        return error
    kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if kind == sqlite3.SQLITE_FULL:
        return full_disk(path)
    if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM):
        # SQLite does not pass on the system error, so the cause is checked again.
        with suppress(OSError):
            if not os.access(path.parent, os.W_OK) or not os.access(path, os.W_OK):
                return read_only(path, "the drive or the permissions do not allow it")
            if shutil.disk_usage(path.parent).free < _LITTLE_ROOM:
                return full_disk(path)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if kind in _DAMAGED:
        return corrupt(path, name)
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"{path} is in use by another process, which kept it locked for more than {BUSY_SECONDS:g} s ({name}).",
            remedy="Try again, or close the other desk-rag processes.",
        )
    return StoreError(
        f"{path} could not be used ({name}).",
        remedy="Check its drive; `desk-rag verify` checks the file.",
    )


def corrupt(path: Path, why: str) -> CorruptCatalog:
    """Return the error for a catalog that is damaged as a whole."""
    return CorruptCatalog(
        f"{path} is damaged ({why}).",
        remedy="`desk-rag verify --repair` repairs or replaces it; your files and sound chunk KV stay.",
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
