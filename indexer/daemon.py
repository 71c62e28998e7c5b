"""Run `desk-rag watch FOLDER...`: a process that indexes until it gets SIGTERM or SIGINT.

It handles signals and exit codes and prints plain lines; the service does the work. Only the store is kept between
runs: a run starts with a sweep of all folders and continues where the last one was stopped or killed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

import psutil

from desk_rag.config import Settings
from desk_rag.documents import discovery
from desk_rag.documents.status import FileState
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.indexer.machine.idle import lower_priority
from desk_rag.indexer.models import Models
from desk_rag.indexer.parts import lazy_parts
from desk_rag.indexer.resident.answers import Resident
from desk_rag.indexer.resident.server import Server
from desk_rag.indexer.root_watch import WatchState
from desk_rag.indexer.service import Service
from desk_rag.indexer.worker import STOPPED
from desk_rag.ingest.events import DeletionsWaiting, FileEvent, IndexEvent, IndexFinished, Notice, StageProgress
from desk_rag.ingest.explanation import STATE_WORDS, rule_in_words
from desk_rag.sanitize import clean, clean_name
from desk_rag.store.store import Store

_EVERY = 5.0
"""Seconds between two lines of the same kind of progress."""
_MOST_FILE_LINES = 20
"""Lines about files in that time; further files are only counted."""
_PASSING = "passing"
_EXIT_OK = 0
_SIGNAL_SECONDS = 1.0
_log = logging.getLogger(__name__)


def run_watch(
    settings: Settings,
    folders: Sequence[Path],
    out: TextIO | None = None,
    errors: TextIO | None = None,
    *,
    settings_file: Path | None = None,
) -> int:
    """Index `folders` until a signal arrives, with one plain line per event on `out` (stdout); return the exit code.

    The code is 0 after SIGTERM or SIGINT, 2 if no folder was named, 4 if another process is the writer, and 5 if the
    model's tokenizer is missing; errors print a message and a remedy on `errors` (stderr). If a known folder is absent,
    the process waits for it. If rules under `exclude` in `settings_file` change meanwhile, they hold from then on.
    """
    printer = Printer(out or sys.stdout)
    try:
        if not folders:
            raise ConfigError("No folder to watch.", remedy="Name one: desk-rag watch FOLDER")
        with _signals() as stop, Store.open(settings.data_dir, settings.store, writer=True) as store:
            for folder in folders:
                # A folder indexed before may be on a drive that is reconnected later; an unknown one is a typing error.
                if folder.exists() or not store.documents(folder.absolute()):
                    discovery.check_root(folder)
            models = Models(store, settings, printer.passing, stop.is_set)
            parts = lazy_parts(store, settings, models)
            service = Service(parts, folders, settings, settings_file=settings_file)
            server = _serve(settings, service, models, stop.set)  # at normal priority, so that answers are not slow
            lower_priority()
            # Chunks of many lengths would fill the cache of compiled CPU kernels (bench/LOG.md, "Memory of a watcher").
            os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
            service.subscribe(printer.event)
            service.subscribe_watching(printer.watching)
            service.start()
            while not stop.wait(_SIGNAL_SECONDS):
                pass  # Windows interrupts no wait without an end
            printer.line(f"stopping{_coverage(store)}")
            server.stop()
            if not service.stop():
                _leave(store, printer)
            models.release()
            gc.freeze()  # the end of the process would otherwise look through all objects of the libraries for seconds
            printer.line("stopped")
    except DeskRagError as error:
        Printer(errors or sys.stderr).line(f"desk-rag: {error}")
        return error.exit_code
    return _EXIT_OK


def _serve(settings: Settings, service: Service, models: Models, end: Callable[[], None]) -> Server:
    """Answer other processes, make the changes they ask for, and let go of the models when idle for a while."""

    def idle() -> None:
        if models.idle_seconds() > settings.resident.free_minutes * 60 and not service.is_working():
            models.release()

    resident = Resident(
        settings, lambda: service.parts, models.engine, service.is_reading, service.changed_files,
        service=lambda: service, end=end,
    )  # fmt: skip
    server = Server(settings.data_dir, resident.handle, idle)
    if reason := server.start():
        _log.warning("other processes must answer by themselves: %s", reason)
    return server


class Printer:
    """Printer of events as plain lines, from any thread. A closed pipe does not stop the indexing."""

    def __init__(self, out: TextIO, *, every: float = _EVERY) -> None:
        self._out = out
        self._every = every
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        self._window = 0.0
        self._in_window = 0

    def line(self, text: str) -> None:
        """Print one line, made safe for a terminal."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            for part in clean(text).splitlines():
                print(part, file=self._out, flush=True)

    def passing(self, text: str) -> None:
        """Print one of many lines about the same step, unless another was printed recently."""
        now = time.monotonic()
        if now - self._said.get(_PASSING, -self._every) >= self._every:
            self._said[_PASSING] = now
            self.line(text)

    def watching(self, state: WatchState) -> None:
        """Print how a folder is watched."""
        if not state.polling:
            self.line(f"watching {state.root}")
            return
        self.line(f"checking {state.root} at intervals: {state.polling}")
        if state.remedy:
            self.line(f"  {state.remedy}")

    def event(self, event: IndexEvent) -> None:
        """Print an event unless enough of its kind were printed recently."""
        match event:
            case FileEvent():
                self._file(event)
            case StageProgress():
                self._progress(event)
            case Notice():
                self.line(f"{'now: ' if event.is_over else 'notice: '}{event.sentence}")
                if event.remedy:
                    self.line(f"  {event.remedy}")
            case DeletionsWaiting():
                self.line(f"kept: {event.root}: {event.sentence}")
            case IndexFinished():
                further = f", {event.chunk_kvs} caches made" if event.chunk_kvs > event.warm else ""
                further += f", {event.beginnings} too long to be indexed to the end" if event.beginnings else ""
                self.line(
                    f"up to date: {event.indexed} indexed, {event.removed} removed, {event.failed} failed, "
                    f"{event.skipped} left out, {event.warm} chunks made warm{further}"
                )

    def _file(self, event: FileEvent) -> None:
        now = time.monotonic()
        if now - self._window >= self._every:
            if self._in_window > _MOST_FILE_LINES:
                self.line(f"... and {self._in_window - _MOST_FILE_LINES} more files")
            self._window, self._in_window = now, 0
        self._in_window += 1
        if self._in_window > _MOST_FILE_LINES and event.state is not FileState.FAILED:
            return
        name = clean_name(str(event.path))
        count = f" ({event.chunks} chunk{'' if event.chunks == 1 else 's'})"
        detail = count if event.state is FileState.INDEXED else ""
        sentence = clean(rule_in_words(event.reason, event.path), single_line=True).strip()
        reason = f": {sentence}" if sentence else ""
        self.line(f"{STATE_WORDS.get(event.state.value, event.state.value)} {name}{detail}{reason}")

    def _progress(self, event: StageProgress) -> None:
        if event.waiting.startswith(STOPPED):
            return  # the notice says it with its remedy
        if event.waiting:
            self.line(event.line)
            return
        if not event.total:
            return  # an empty folder, or a pause that is over
        now, kind = time.monotonic(), event.stage.value
        if event.done < event.total and now - self._said.get(kind, -self._every) < self._every:
            return
        self._said[kind] = now
        self.line(event.line)


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set; a second signal ends the process as usual."""
    stop = threading.Event()
    before = {}

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _coverage(store: Store) -> str:
    """Return how much is indexed, as the last thing a run says; '' if that cannot be read."""
    try:
        counts = store.coverage()
    except DeskRagError:
        return ""
    return f": {counts.files:,} files are indexed, {counts.warm:,} of {counts.chunks:,} chunks are warm"


def _leave(store: Store, printer: Printer) -> None:
    """End the process while a step that cannot be interrupted continues in another thread.

    All work is on disk after each transaction. A normal exit would wait for that step, or unload libraries it uses.
    """
    store.close()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            child.kill()
    printer.line("stopped")
    sys.stdout.flush()
    os._exit(_EXIT_OK)
