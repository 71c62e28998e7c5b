"""Compute rate, time left and the summary of an index run."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from desk_rag.documents.status import FileState, IndexStage, is_beginning_only
from desk_rag.ingest.events import FileEvent, IndexEvent, IndexFinished, StageProgress
from desk_rag.store.types import Activity

_SETTLED_SECONDS = 2.0
"""Time that must have been measured before the time left is said: a first guess that jumps helps nobody."""


class ProgressRate:
    """Measures units per second over the recent past, and from them the time left.

    The first units are left out, because they also pay for memory, kernels and file handles that later ones find ready.
    """

    def __init__(self, window: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = window
        self._clock = clock
        # Bounded: a thousand points are enough, even if they span less than the window.
        self._points: deque[tuple[float, int]] = deque([(clock(), 0)], maxlen=1024)
        self._warmed_up = False

    def progress(self, stage: IndexStage, done: int, total: int, unit: str, waiting: str = "") -> StageProgress:
        """Return the event for `done` of `total`; while `waiting`, without rate and time left."""
        if waiting:
            self.restart(done)
            return StageProgress(stage, done, total, unit, 0.0, None, waiting)
        if done and not self._warmed_up:
            self._warmed_up = True
            self.restart(done)
        now = self._clock()
        self._points.append((now, done))
        while len(self._points) > 2 and now - self._points[0][0] > self._window:
            self._points.popleft()
        began, before = self._points[0]
        rate = (done - before) / (now - began) if now > began else 0.0
        left = (total - done) / rate if rate > 0 and now - began >= _SETTLED_SECONDS else None
        return StageProgress(stage, done, total, unit, rate, 0.0 if done == total else left)

    def restart(self, done: int) -> None:
        """Forget the past, so that time spent waiting does not count."""
        self._points.clear()
        self._points.append((self._clock(), done))


@dataclass(slots=True)
class Tally:
    """Counts what a run did, for its summary."""

    indexed: int = 0
    unchanged: int = 0
    """Renamed files included."""
    removed: int = 0
    skipped: int = 0
    """Files; what is in folders that are left out as a whole is not looked at."""
    failed: int = 0
    chunks: int = 0
    """Chunks of the files indexed in this run."""
    warm: int = 0
    """Chunks whose KV was made in this run."""
    vectors: int = 0
    """Set by the caller from the stage's events."""
    chunk_kvs: int = 0
    """KVs of all prefix variants."""
    disk_full: bool = False
    beginnings: int = 0
    """Files indexed in this run only from their beginning."""
    texts: set[str] = field(default_factory=set)
    """Ids of the chunks indexed in this run; set by callers that count different ones."""
    began: float = field(default_factory=time.monotonic)

    def add(self, event: IndexEvent) -> None:
        """Count one event, about a file or of the stage that makes chunk KV."""
        if isinstance(event, StageProgress):
            self._add_progress(event)
        if not isinstance(event, FileEvent):
            return
        match event.state:
            case FileState.INDEXED:
                self.indexed += 1
                self.beginnings += is_beginning_only(event.reason)
                self.chunks += event.chunks
            case FileState.UNCHANGED | FileState.RENAMED:
                self.unchanged += 1
            case FileState.REMOVED:
                self.removed += 1
            case FileState.SKIPPED:
                self.skipped += not event.is_folder
            case FileState.FAILED:
                self.failed += 1

    def _add_progress(self, event: StageProgress) -> None:
        self.disk_full = self.disk_full or event.disk_full
        if event.stage is IndexStage.WARM and not event.waiting:
            self.chunk_kvs += 1
            self.warm += not event.upper

    def finished(self) -> IndexFinished:
        """Return the summary up to now."""
        return IndexFinished(
            indexed=self.indexed,
            unchanged=self.unchanged,
            removed=self.removed,
            skipped=self.skipped,
            failed=self.failed,
            chunks=self.chunks,
            warm=self.warm,
            seconds=time.monotonic() - self.began,
            different_chunks=len(self.texts),
            vectors=self.vectors,
            chunk_kvs=self.chunk_kvs,
            disk_full=self.disk_full,
            beginnings=self.beginnings,
        )


def activity_of(
    progress: StageProgress,
    current: str,
    *,
    notices: tuple[tuple[str, str, str], ...] = (),
    idle_since: float | None = None,
    once: bool = False,
) -> Activity:
    """Return the activity of this process, as other processes see it; `current` is the name of the file being read."""
    return Activity(
        pid=os.getpid(),
        at=time.time(),
        stage=progress.stage,
        done=progress.done,
        total=progress.total,
        unit=progress.unit,
        rate=progress.rate,
        eta_seconds=progress.eta_seconds,
        waiting=progress.waiting,
        current=current,
        notices=notices,
        idle_since=idle_since,
        once=once,
    )


class ProgressDisplay(Protocol):
    """Shows the progress of a long run; the command line implements it."""

    def passing(self, text: str) -> None: ...
    def say(self, text: str) -> None: ...
    def show(self, event: IndexEvent) -> None: ...
