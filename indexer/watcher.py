"""Watch folders and deliver batches of changed paths, debounced and filtered.

Events are only hints; sweeps find what they miss. A flood of events, an overflow of the kernel's queue or a change of a
whole folder becomes one sweep of the root.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watchdog.events import FileDeletedEvent, FileMovedEvent, FileSystemEvent, FileSystemEventHandler

from desk_rag.indexer.jobs import Change
from desk_rag.indexer.root_watch import RootWatch, WatchState

_log = logging.getLogger(__name__)

_PASSING_NAMES = (
    "*~", ".#*", "#*#", "*.sw?", "4913", "*___jb_*___", ".goutputstream-*", ".~lock.*", "~$*", "*.tmp", "*.part",
    "*.crdownload", ".nfs*", "*.kate-swp", "sed??????",
)  # fmt: skip
"""Temporary files that editors, office programs and browsers write while they save."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes below one root since the last batch."""

    root: Path
    changes: dict[Path, Change]
    sweep: bool
    """True if the changes are incomplete, so that the whole root must be swept."""


@dataclass(slots=True)
class _Pending:
    changes: dict[Path, Change] = field(default_factory=dict)
    sweep: bool = False
    first: float = 0.0
    last: float = 0.0


class Watcher:
    """Watches folders and calls `on_batch` from its own thread. `start` once, `stop` once."""

    def __init__(
        self,
        roots: Sequence[Path],
        on_batch: Callable[[Batch], None],
        *,
        ignore: Sequence[Path] = (),
        debounce: float = 0.5,
        longest: float = 3.0,
        most: int = 2000,
        poll_seconds: float = 10.0,
    ) -> None:
        """`ignore`: absolute folders that only desk-rag changes. `longest`: maximum delay of a batch, in seconds."""
        self._on_batch = on_batch
        self._ignore = tuple(ignore)
        self._debounce, self._longest, self._most = debounce, longest, most
        self._poll_seconds = poll_seconds
        self._states: dict[Path, WatchState] = {}
        self._pending: dict[Path, _Pending] = {}
        self._changed = threading.Condition()
        self._watches: dict[Path, RootWatch] = {}
        self.watch_only(roots)
        self._stopping = False
        self._thread = threading.Thread(target=self._deliver, name="watch-batches", daemon=True)
        self._overflow = _OverflowListener(self.sweep_all)

    def start(self) -> list[WatchState]:
        """Start watching every root that is present, and return how each is watched."""
        logging.getLogger("watchdog").addHandler(self._overflow)
        self._thread.start()
        return self.check()

    def stop(self) -> None:
        """Stop watching within about a second; pending changes are dropped, and the next sweep finds them."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        threads = [self._thread, *(watch.stop() for watch in self._watches.values())]
        end = time.monotonic() + 1.0
        for thread in threads:
            if thread is not None and thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))
        logging.getLogger("watchdog").removeHandler(self._overflow)

    def check(self) -> list[WatchState]:
        """Watch roots that are present again, poll those that lack watches, and return the states that changed."""
        changed = []
        for root, watch in list(self._watches.items()):
            state = watch.check()
            if state is None:
                self._states.pop(root, None)
            elif state != self._states.get(root):
                self._states[root] = state
                changed.append(state)
        return changed

    def watch_only(self, roots: Sequence[Path]) -> None:
        """Watch these roots, new ones from the next check on, and no others."""
        for root in roots:
            if root not in self._watches:
                self._watches[root] = RootWatch(root, _Handler(self, root), self._poll_seconds)
        for root in self._watches.keys() - set(roots):
            self._watches.pop(root).stop()
            self._states.pop(root, None)
            with self._changed:
                self._pending.pop(root, None)

    def sweep_all(self) -> None:
        """Request a sweep of every root, because events were lost."""
        for root in list(self._watches):
            self._note(root, {}, sweep=True)

    def pending(self) -> list[Path]:
        """Return the changed files that were not delivered yet."""
        with self._changed:
            return [path for pending in self._pending.values() for path in pending.changes]

    def note(self, root: Path, event: FileSystemEvent) -> None:
        """Record one watchdog event; called from its threads."""
        source = Path(os.fsdecode(event.src_path))
        target = Path(os.fsdecode(event.dest_path)) if event.dest_path else None
        if event.is_directory:
            # Its files are not reported reliably; a sweep of the root covers them all.
            if not all(self._ignored(path) for path in (source, target) if path is not None):
                self._note(root, {}, sweep=True)
            return
        changes: dict[Path, Change] = {}
        if isinstance(event, FileDeletedEvent | FileMovedEvent):
            changes[source] = Change.GONE
        else:
            changes[source] = Change.CHANGED
        if target is not None:
            changes[target] = Change.CHANGED
        self._note(root, {path: change for path, change in changes.items() if not self._ignored(path)})

    def _ignored(self, path: Path) -> bool:
        if any(path == own or own in path.parents for own in self._ignore):
            return True
        return any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _PASSING_NAMES)

    def _note(self, root: Path, changes: dict[Path, Change], *, sweep: bool = False) -> None:
        if not changes and not sweep:
            return
        with self._changed:
            now = time.monotonic()
            pending = self._pending.get(root)
            if pending is None:
                pending = self._pending[root] = _Pending(first=now)
            pending.last = now
            pending.sweep |= sweep
            pending.changes |= changes
            if len(pending.changes) > self._most:
                pending.changes, pending.sweep = {}, True
            self._changed.notify_all()

    def _deliver(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and (wait := self._wait_seconds()) != 0:
                    self._changed.wait(wait)
                if self._stopping:
                    return
                now = time.monotonic()
                ready = [root for root, pending in self._pending.items() if self._ready_at(pending) <= now]
                batches = [(root, self._pending.pop(root)) for root in ready]
            for root, pending in batches:
                try:
                    self._on_batch(Batch(root, pending.changes, pending.sweep))
                except Exception as error:
                    _log.error("a batch of changes could not be handed on (%s)", type(error).__name__)

    def _ready_at(self, pending: _Pending) -> float:
        return min(pending.last + self._debounce, pending.first + self._longest)

    def _wait_seconds(self) -> float | None:
        """Return the seconds until a batch is ready; None if nothing is pending."""
        if not self._pending:
            return None
        return max(0.0, min(map(self._ready_at, self._pending.values())) - time.monotonic())


class _Handler(FileSystemEventHandler):
    def __init__(self, watcher: Watcher, root: Path) -> None:
        self._watcher, self._root = watcher, root

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._watcher.note(self._root, event)


class _OverflowListener(logging.Handler):
    """Listens to watchdog's log, the only place where it reports an overflow of the kernel's queue."""

    def __init__(self, on_overflow: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._on_overflow = on_overflow

    def emit(self, record: logging.LogRecord) -> None:
        if "overflow" in record.getMessage():
            self._on_overflow()
