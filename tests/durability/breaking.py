"""Flushes and orders taken out of the store's write paths, one at a time: each must be noticed by the replayed states."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from desk_rag.store import kv_file, kv_header, layout, upkeep, vector_search, vectors
from desk_rag.store.database import Database


def _skip_flushes(wanted: Callable[[os.stat_result, str], bool]) -> None:
    """Leave out every flush from Python of what `wanted` says by status and path."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if not wanted(os.fstat(descriptor), os.readlink(f"/proc/self/fd/{descriptor}")):
            real(descriptor)

    os.fsync = fsync  # type: ignore[assignment]


def _no_file_flush() -> None:
    _skip_flushes(lambda status, path: stat.S_ISREG(status.st_mode) and "/kv/" in path)


def _no_record_flush() -> None:
    _skip_flushes(lambda status, path: stat.S_ISREG(status.st_mode) and "/kv/" not in path)


def _no_directory_flush() -> None:
    _skip_flushes(lambda status, path: stat.S_ISDIR(status.st_mode) and "/kv/" in path)


def _no_new_directory_flush() -> None:
    """Only the directory that holds the file is flushed, not those above it that are new."""
    _skip_flushes(lambda status, path: stat.S_ISDIR(status.st_mode) and "/kv" in path and len(Path(path).name) != 2)


def _no_record_directory_flush() -> None:
    _skip_flushes(lambda status, path: stat.S_ISDIR(status.st_mode) and path.endswith(("/models", "/data")))


def _no_root_flush() -> None:
    """The name of the data directory itself is not flushed."""
    _skip_flushes(lambda status, path: stat.S_ISDIR(status.st_mode) and not ("/data/" in path or path.endswith("/data")))


def _no_removal_flush() -> None:
    """Names taken out of quarantine and of vectors are not flushed."""
    for module in (upkeep, vector_search):
        module.sync_directory = lambda path: None  # type: ignore[attr-defined]


def _no_log_flush() -> None:
    """The emptied write-ahead log is not flushed."""
    _skip_flushes(lambda status, path: path.endswith("-wal"))


def _rename_first() -> None:
    """The file gets its name, then its flush."""

    def write(path: Path, image: kv_file.KVImage) -> None:
        for place in (path.parent.parent, path.parent):
            place.mkdir(mode=0o700, exist_ok=True)
        beside = path.with_suffix(".1-1.tmp")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _fill(descriptor, image)
        beside.replace(path)
        os.fsync(descriptor)
        os.close(descriptor)
        _flush_all(path)

    kv_file.write = write


def _no_temporary_file() -> None:
    """The file is written where it is to lie."""

    def write(path: Path, image: kv_file.KVImage) -> None:
        for place in (path.parent.parent, path.parent):
            place.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _fill(descriptor, image)
        os.fsync(descriptor)
        os.close(descriptor)
        _flush_all(path)

    kv_file.write = write


def _fill(descriptor: int, image: kv_file.KVImage) -> None:
    os.write(descriptor, kv_header.encode(image.header))
    for buffer in image.buffers:
        os.write(descriptor, buffer.data)


def _flush_all(path: Path) -> None:
    for place in (path.parent, path.parent.parent, path.parent.parent.parent):
        layout.sync_directory(place)


def _records_in_place() -> None:
    """A record is written over the one before it."""

    def write_private(path: Path, content: bytes) -> None:
        layout.make_directory(path.parent)
        path.write_bytes(content)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        layout.sync_directory(path.parent)

    _everywhere("write_private", write_private)


def _everywhere(name: str, function: Callable[..., None]) -> None:
    for module in (layout, vectors, sys.modules["__main__"]):
        setattr(module, name, function)


def _lazy_commits() -> None:
    """No commit waits for the disk."""
    real = Database.write

    @contextmanager
    def write(self: Database, *, durable: bool = True) -> Iterator[object]:
        with real(self, durable=False) as connection:
            yield connection

    Database.write = write  # type: ignore[method-assign, assignment]


def _no_catalog_flush() -> None:
    """SQLite flushes nothing at all."""
    real = Database._take

    def take(self: Database) -> object:
        connection = real(self)

        class Off:
            """The connection, deaf to PRAGMA synchronous."""

            def execute(self, sql: str, *values: object) -> object:
                if "synchronous" in sql:
                    sql = "PRAGMA synchronous = OFF"
                return connection.execute(sql, *values)

            def __getattr__(self, name: str) -> object:
                return getattr(connection, name)

        connection.execute("PRAGMA synchronous = OFF")
        return Off()

    Database._take = take  # type: ignore[method-assign, assignment]


ALL = ("put", "remove", "rename", "record", "reopen", "purge", "damage", "ask")
KV, RECORDS, PURGES = ("put",), ("record",), ("put", "put", "put", "purge")
"""What the workload does to meet a break soon."""

BREAKS: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "nothing": (lambda: None, ALL),
    "no flush of KV files": (_no_file_flush, KV),
    "no flush of their directories": (_no_directory_flush, KV),
    "no flush above new directories": (_no_new_directory_flush, KV),
    "rename before flush": (_rename_first, KV),
    "no temporary file": (_no_temporary_file, KV),
    "no flush of records": (_no_record_flush, RECORDS),
    "no flush of their names": (_no_record_directory_flush, RECORDS),
    "no flush of the data directory's name": (_no_root_flush, KV),
    "records written in place": (_records_in_place, RECORDS),
    "no flush after removals": (_no_removal_flush, PURGES),
    "no flush of the emptied log": (_no_log_flush, ("purge",)),
    "commits that do not wait": (_lazy_commits, KV),
    "catalog never flushed": (_no_catalog_flush, KV),
}
