"""Open the store for a command, or say that nothing is indexed yet."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from desk_rag.cli import output as out
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, DeskRagError, StoreLocked, catalog_lost
from desk_rag.sanitize import clean, shown_path

if TYPE_CHECKING:
    from desk_rag.store.store import Store

T = TypeVar("T")
LOCK_SECONDS = 15.0
"""Time to wait for a command that writes to the store and will soon have finished."""
_POLL_SECONDS = 0.1


def exists(settings: Settings) -> bool:
    """Return whether anything was ever indexed into this data directory."""
    return (settings.data_dir / "catalog.sqlite").is_file()


def indexed_before(settings: Settings) -> list[Path]:
    """The folders in the index; none if it cannot be read now, which the UI says by itself."""
    if not exists(settings):
        return []
    with contextlib.suppress(DeskRagError), open_store(settings, writer=False) as store:
        return store.volumes.roots()
    return []


def nothing_indexed(settings: Settings, *, as_json: bool) -> int:
    """Say that nothing is indexed yet. Raises CatalogLost if there are traces of an index."""
    from desk_rag.store.opening import has_traces

    if has_traces(settings.data_dir):
        raise catalog_lost(settings.data_dir)
    if as_json:
        out.print_json(sys.stdout, {"data_dir": str(settings.data_dir), "files": 0, "chunks": 0})
    else:
        print_lines([f"Nothing is indexed yet ({shown_path(settings.data_dir)} holds no index). desk-rag index FOLDER"])
    return 0


def open_store(settings: Settings, *, writer: bool) -> Store:
    """Open the store of these settings; a writer waits for a command that will soon end. Raises StoreError."""
    from desk_rag.indexer.resident.keeping import make_way
    from desk_rag.store.store import Store

    if not writer:
        return Store.open(settings.data_dir, settings.store, writer=False)
    make_way(settings.data_dir)
    return when_unlocked(settings, lambda: Store.open(settings.data_dir, settings.store, writer=True))


def when_unlocked(settings: Settings, action: Callable[[], T], *, ends: bool = False) -> T:
    """Return what `action` returns, calling it again for a few seconds while a command that ends soon is writing.

    Raises StoreLocked, at once if the other process indexes in the background, unless it is known to be ending.
    """
    end = time.monotonic() + LOCK_SECONDS
    progress = out.Progress(sys.stderr)
    try:
        while True:
            try:
                return action()
            except StoreLocked as error:
                if time.monotonic() >= end or (not ends and _indexes_in_background(settings)):
                    raise
                progress.passing(f"{error.message} Waiting for it …")
            time.sleep(_POLL_SECONDS)
    finally:
        progress.clear()


def _indexes_in_background(settings: Settings) -> bool:
    from desk_rag.store.store import Store

    if not exists(settings):
        return False
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        activity = store.activity()
    return activity is not None and activity.waiting != "stopped"


def print_lines(lines: Sequence[str]) -> None:
    """Write lines to stdout, cleaned of control sequences."""
    for line in lines:
        sys.stdout.write(clean(line) + "\n")
    sys.stdout.flush()


def confirm(what: str, *, sure: bool, besides: str = "") -> None:
    """Ask before `what` is deleted, unless the user is sure; `besides` says what else happens.

    Raises ConfigError without a consent.
    """
    besides = f" {besides}" if besides else ""
    if sure:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"This deletes {what}.{besides}", remedy="Add --yes to do it without a question.")
    sys.stderr.write(clean(f"Delete {what}?{besides} Your own files stay. [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("Nothing was deleted.")
