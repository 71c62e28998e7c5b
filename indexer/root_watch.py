"""Watch one folder tree: through the kernel if every folder in it gets a watch, by polling otherwise.

watchdog 7.1.0 ignores the error when a subfolder gets no watch, so the existing watches are counted in
/proc/self/fdinfo.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.observers.polling import PollingObserver

# Opening, and closing without writing, are left out: our own reading would be reported as changes for ever.
_EVENTS: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileModifiedEvent,
    FileClosedEvent,
    FileMovedEvent,
    FileDeletedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]
_STALLED = 0.5
"""Seconds without a new watch after which no more are expected."""
_FOLDERS_REMEDY = "More can be allowed with: sudo sysctl fs.inotify.max_user_watches=524288"
_INSTANCES_REMEDY = "More watchers can be allowed with: sudo sysctl fs.inotify.max_user_instances=1024"


@dataclass(frozen=True, slots=True)
class WatchState:
    """Way in which changes of a root are noticed."""

    root: Path
    polling: str = ""
    """Reason to poll; empty when the kernel reports changes."""
    remedy: str = ""


class RootWatch:
    """One root and its observer; `check` starts or repairs the watching and reports its state."""

    def __init__(self, root: Path, handler: FileSystemEventHandler, poll_seconds: float) -> None:
        self._root = root
        self._handler = handler
        self._poll_seconds = poll_seconds
        self._observer: BaseObserver | None = None
        self._instances: set[str] = set()
        self._state: WatchState | None = None

    def check(self) -> WatchState | None:
        """Watch the root if it is present, or poll it if watches ran out; return how, or None while it is absent.

        Call this at intervals: once the limit is reached, a new folder silently gets no watch.
        """
        if not self._root.is_dir():
            self.stop()
            return None
        if self._state is not None and self._alive() and (self._state.polling or self._complete()):
            return self._state
        self.stop()
        self._state = self._begin()
        return self._state

    def stop(self) -> BaseObserver | None:
        """Stop watching; return the observer, whose thread may need a moment to end."""
        observer, self._observer, self._state = self._observer, None, None
        if observer is not None:
            _end(observer)
        return observer

    def _alive(self) -> bool:
        observer = self._observer
        if observer is None or not observer.is_alive():
            return False
        return bool(observer.emitters) and all(emitter.is_alive() for emitter in observer.emitters)

    def _begin(self) -> WatchState:
        before = _inotify_instances()
        observer: BaseObserver | None = None
        try:
            observer = Observer()
            # Of a folder that is moved away and back; the new callback is the right one.
            warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
            observer.schedule(self._handler, str(self._root), recursive=True, event_filter=_EVENTS)
            observer.start()
        except OSError as error:
            if observer is not None:
                _end(observer)
            reason, remedy = _explain(error)
            return self._poll(reason, remedy)
        self._observer, self._instances = observer, _inotify_instances() - before
        if self._complete():
            return WatchState(self._root)
        watched = self._count()
        self.stop()
        return self._poll(f"the system allows watches for only {watched} of its folders", _FOLDERS_REMEDY)

    def _poll(self, reason: str, remedy: str) -> WatchState:
        observer = PollingObserver(timeout=self._poll_seconds)
        observer.schedule(self._handler, str(self._root), recursive=True, event_filter=_EVENTS)
        # If the root vanishes just now, the next check reports it absent.
        with contextlib.suppress(OSError):
            observer.start()
        self._observer = observer
        return WatchState(self._root, reason, remedy)

    def _complete(self) -> bool:
        """Return whether every readable folder has its watch; True if watches cannot be counted."""
        if not sys.platform.startswith("linux") or not self._instances:
            return True
        most, since = -1, time.monotonic()
        while (watched := self._count()) < (folders := sum(1 for _ in _folders(self._root))):
            if watched > most:
                most, since = watched, time.monotonic()
            elif time.monotonic() - since > _STALLED:
                return False
            time.sleep(min(0.05, folders / 10_000 + 0.005))
        return True

    def _count(self) -> int:
        """Count the kernel's watches for this root's observer."""
        count = 0
        for instance in self._instances:
            with contextlib.suppress(OSError):
                text = Path("/proc/self/fdinfo", instance).read_text(encoding="ascii", errors="replace")
                count += sum(line.startswith("inotify ") for line in text.splitlines())
        return count


def _inotify_instances() -> set[str]:
    """Return the file descriptors of this process that are inotify instances."""
    descriptors: set[str] = set()
    folder = Path("/proc/self/fd")
    if folder.is_dir():
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) in ("anon_inode:inotify", "anon_inode:[inotify]"):
                    descriptors.add(entry.name)
    return descriptors


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders that can be watched: readable ones, not reached through a link."""
    for place, names, _ in os.walk(root):
        yield Path(place)
        names[:] = [name for name in names if _watchable(Path(place, name))]


def _watchable(folder: Path) -> bool:
    return not folder.is_symlink() and os.access(folder, os.R_OK)


def _explain(error: OSError) -> tuple[str, str]:
    if error.errno == errno.ENOSPC:
        return "the system allows no more watches", _FOLDERS_REMEDY
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "the system allows no more watchers", _INSTANCES_REMEDY
    return f"it cannot be watched ({error.strerror})", ""


def _end(observer: BaseObserver) -> None:
    # An observer that failed while starting has threads that never ran; joining those raises.
    with contextlib.suppress(RuntimeError, OSError):
        observer.stop()
