"""SQLite connections and transactions for many threads and processes. Knows pragmas; knows no table."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from desk_rag.errors import CorruptCatalog, StoreError, UnknownFormat, full_disk, of_system, read_only
from desk_rag.store.catalog import schema
from desk_rag.store.catalog.faults import Faults
from desk_rag.store.layout import sync_file

BUSY_SECONDS = 30.0
_LITTLE_ROOM = 64 << 10
"""Bytes: SQLite needs half of them beside the catalog before it can read it in the usual way."""
_DAMAGED = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CONSTRAINT,  # ours hold for every sound catalog
    sqlite3.SQLITE_ERROR,  # a table or column that is not there: the statements themselves are tested
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_NOMEM,  # a length that was damaged
}


class Database:
    """A pool of connections to one file. Any thread may read at any time; writers of this process take turns."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open or create the file (0600) and bring it to the current schema.

        `read_only` writes nothing, not even what SQLite keeps beside the file: for a drive that is full or must not be
        written. Raises UnknownFormat, StoreError, or sqlite3.DatabaseError for a file that is no sound database.
        """
        self._path = path
        self.faults = Faults()
        """What this process found damaged in the file."""
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
        finally:
            self._give(connection)

    def _first_reading(self) -> sqlite3.Connection:
        """A connection that only reads: beside other processes if their files are there, else of the file alone."""
        log, shared = (self._path.with_name(self._path.name + end) for end in ("-wal", "-shm"))
        written = log.exists() and log.stat().st_size > 0  # what the log holds may not be passed over
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
        found = schema.version(connection)
        if not found:
            connection.close()
            raise StoreError(
                f"{self._path} is empty: making it was cut off, or its content is lost.",
                remedy="Make the drive writable and free some space, then run: desk-rag index FOLDER",
            )
        if found != schema.VERSION:
            connection.close()
            raise UnknownFormat(
                f"{self._path} was written by another desk-rag (schema {found}; this one knows {schema.VERSION}).",
                remedy="Make the drive writable and free some space, so that it can be brought up to date.",
            )
        return connection

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection outside of any transaction. Raises StoreError if the catalog cannot be read."""
        try:
            connection = self._take()
        except sqlite3.Error as error:
            raise explained(error, self._path) from error
        try:
            yield connection
        except sqlite3.Error as error:
            raise explained(error, self._path) from error
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

        Raises StoreFull when the disk is full, StoreReadOnly where the catalog may not be written, StoreError when
        another process kept it too long.
        """
        if self.read_only:
            raise read_only(self._path, "it was opened for reading only")
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
        if self.read_only:
            return True
        with self._turn, self.read() as connection:
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            if not busy:  # SQLite does not flush the cut, and a power cut would bring deleted text back
                with suppress(FileNotFoundError):
                    sync_file(self._path.with_name(self._path.name + "-wal"))
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
        place = f"{self._path.as_uri()}?{self._how}" if self.read_only else self._path
        connection = sqlite3.connect(
            place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256,
            uri=self.read_only,
        )  # fmt: skip
        # Damaged text must neither raise an error that quotes it nor pass for the sound one: it fails its checksum.
        connection.text_factory = _text
        try:
            if self.read_only:
                schema.version(connection)  # the first look at the file is what fails
            else:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has effect on a new file only
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA temp_store = MEMORY")  # no document text in temporary files
            connection.execute("PRAGMA cell_size_check = ON")  # a page is looked at as a whole when it is first read
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


def explained(error: sqlite3.Error, path: Path) -> Exception:
    """What a user is told instead; a mistake of ours comes back as it is.

    SQLite's own words are left out: they may quote what a damaged page holds.
    """
    if isinstance(error, sqlite3.ProgrammingError):
        return error  # a mistake of ours, not of the disk
    kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if kind == sqlite3.SQLITE_FULL:
        return full_disk(path)
    if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM):
        # SQLite does not hand on what the system said, so it is asked again.
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
            f"{path} is in use by another process, which kept it longer than {BUSY_SECONDS:g} s ({name}).",
            remedy="Try again, or close the other desk-rag processes.",
        )
    return StoreError(
        f"{path} could not be used ({name}).",
        remedy="See whether its drive is sound; `desk-rag verify` checks the file.",
    )


def corrupt(path: Path, why: str) -> CorruptCatalog:
    """What is said of a catalog that cannot be read as a whole."""
    return CorruptCatalog(
        f"{path} is damaged ({why}).",
        remedy="`desk-rag verify --repair` mends it, or begins it anew; your files and sound chunk KV stay.",
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
