"""Flushes and orders taken out of the write paths, one at a time: each must be noticed by the replayed states."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from desk_rag.store.catalog.database import Database


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _skip_flushes(wanted: Callable[[os.stat_result, str], bool]) -> None:
    """Leave out every flush from Python of what `wanted` says by status and path."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if not wanted(os.fstat(descriptor), _path_of(descriptor)):
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
    _skip_flushes(
        lambda status, path: stat.S_ISDIR(status.st_mode) and not ("/data/" in path or path.endswith("/data"))
    )


def _no_removal_flush() -> None:
    """A folder out of which a file was just removed is not flushed."""
    real_unlink, touched = os.unlink, set[str]()

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        real_unlink(path, dir_fd=dir_fd)
        touched.add(_path_of(dir_fd) if dir_fd is not None else str(Path(path).parent))

    def just_emptied(_: os.stat_result, path: str) -> bool:
        emptied = path in touched
        touched.discard(path)
        return emptied

    os.unlink = os.remove = unlink  # type: ignore[assignment]
    _skip_flushes(just_emptied)


def _rename_first() -> None:
    """A KV file gets its name, then its flush."""
    real_sync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        if not _path_of(descriptor).endswith(".tmp"):
            real_sync(descriptor)

    def replace(source: str, target: str, **directories: int) -> None:
        real_replace(source, target, **directories)
        descriptor = os.open(target, os.O_RDONLY, dir_fd=directories.get("dst_dir_fd"))
        real_sync(descriptor)
        os.close(descriptor)

    os.fsync, os.replace, os.rename = fsync, replace, replace  # type: ignore[assignment]


def _in_place(temporary: str, final: str) -> None:
    """Files whose name matches `temporary` are written under their `final` name at once."""
    pattern, real_open, real_replace = re.compile(temporary), os.open, os.replace

    def open_final(path: str, flags: int, mode: int = 0o777, **directory: int) -> int:
        if flags & os.O_CREAT and pattern.search(os.fspath(path)):
            path, flags = pattern.sub(final, os.fspath(path)), flags & ~os.O_EXCL
        return real_open(path, flags, mode, **directory)

    def replace(source: str, target: str, **directories: int) -> None:
        if not pattern.search(os.fspath(source)):
            real_replace(source, target, **directories)

    os.open, os.replace, os.rename = open_final, replace, replace  # type: ignore[assignment]


def _no_temporary_file() -> None:
    _in_place(r"([0-9a-f]{32})\.\d+-\d+\.tmp$", r"\1.safetensors")


def _records_in_place() -> None:
    _in_place(r"([0-9a-f]{32}\.safetensors|names\.json|drives\.json)\.\d+(?:-\d+)?\.tmp$", r"\1")


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
"""Steps of the workload that meet a break soon."""

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
    "commits that do not wait": (_lazy_commits, KV),
    "catalog never flushed": (_no_catalog_flush, KV),
}
