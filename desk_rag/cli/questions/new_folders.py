"""Index the folders of a question first that were never indexed: here, or in the process that writes to the index."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli import work
from desk_rag.cli.store_access import open_store
from desk_rag.config import Settings
from desk_rag.errors import StoreError
from desk_rag.indexer.resident.protocol import NoResident
from desk_rag.ingest import contents, freshness, unread
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.store.store import Store

_STARTS_SECONDS = 90.0
"""Seconds that a process that writes may take to load its model, which it tests at its first start."""
_EVERY_SECONDS = 0.3


def index_new_folders(
    engine: AnswerEngine, roots: Sequence[Path], settings: Settings, stop: Callable[[], bool], progress: out.Progress
) -> int:
    """Index those of `roots` that were never indexed; returns how many files could not be read."""
    new = contents.new_folders(engine.store, roots)
    if not new:
        return 0
    if not engine.store.writer:
        return _index_beside(engine.store, new, settings, stop, progress)
    work.check_not_excluded(settings, new)
    from desk_rag.indexer.once import fill_before_question

    progress.say(f"Indexing {', '.join(shown_path(root) for root in new)} first, once.")
    done = work.index_with(engine, new, settings, stop, progress, fill_before_question)
    work.say_summary(progress, done, unread.skipped_files(engine.store, new), engine.store.counts(under=new))
    return done.failed


def _index_beside(
    store: Store, new: Sequence[Path], settings: Settings, stop: Callable[[], bool], progress: out.Progress
) -> int:
    """Have the process that writes index `new` as soon as it takes requests, which it does once its model is loaded.

    Raises StoreError with the reason if the index cannot be written.
    """
    from desk_rag.indexer.resident import keeping

    declined, end = "", time.monotonic() + _STARTS_SECONDS
    while contents.new_folders(store, new) and not stop():
        try:
            if (keeping.status(settings.data_dir) or {"kept": True})["kept"] is False:
                return index_in_background_process(settings, new, stop, progress)
        except NoResident as reason:
            declined = str(reason)
        if declined or time.monotonic() > end or store.activity() is None:
            if not declined and freshness.is_reading(store):
                return 0  # the answer waits until it has read these, too
            raise _not_writable(settings, new[0], declined)
        progress.passing("waiting until the desk-rag that is running has started, to have this folder indexed …")
        time.sleep(_EVERY_SECONDS)
    return 0


def index_in_background_process(
    settings: Settings, roots: Sequence[Path], stop: Callable[[], bool], progress: out.Progress
) -> int:
    """Have the process that is running index new folders, and return how many files could not be read.

    Raises NoResident if it does not.
    """
    from desk_rag.indexer.resident import handover

    work.check_not_excluded(settings, roots)
    progress.say(f"Indexing {', '.join(shown_path(root) for root in roots)} first, once.")
    done = handover.index(settings, roots, warm=True, before_question=True, progress=progress, stop=stop)
    with open_store(settings, writer=False) as store:
        work.say_summary(progress, done, unread.skipped_files(store, roots), store.counts(under=roots))
    return done.failed


def _not_writable(settings: Settings, folder: Path, declined: str) -> StoreError:
    """Return why `folder` cannot be indexed: `declined` by the process that writes, or what opening the index says."""
    from desk_rag.store.store import Store

    error = StoreError("the index could not be written a moment ago.", remedy="Ask again.")
    try:
        Store.open(settings.data_dir, settings.store, writer=True).close()
    except StoreError as reason:
        error = reason
    declined = f" It was asked to index the folder, but {declined}." if declined else ""
    message = f"{shown_path(folder)} was never indexed, and cannot be now: {error.message}{declined}"
    return type(error)(message, remedy=error.remedy)
