"""Queue index jobs by due time, one per path: the newest change of a path wins.

The queue is bounded: when more than `most` files wait, those of a folder become one sweep of that folder, which finds
the same changes.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from desk_rag.config import IndexSettings
from desk_rag.documents.formats import readable_in_part
from desk_rag.errors import Cancelled

T = TypeVar("T")
GONE_SECONDS = 3.0
"""Seconds after which a vanished file is checked again: some editors save by deleting and writing again."""
_LONGEST_BACKOFF = 300.0
_MOST_TRIES = 3
"""Times that a growing text is waited for."""
_TASK_POLL_SECONDS = 0.2
_SWEEP_HANDICAP = 5.0
"""Seconds by which changed files precede a sweep: one edit should not wait for a sweep of the whole folder, and many
edits should not delay the sweep for ever."""


class Change(Enum):
    """A change of a file as a hint reports it; the file system decides."""

    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """State of a file at one moment; two equal snapshots some time apart mean that it is not being written."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class FileJob:
    """Bring one path up to date."""

    path: Path
    root: Path
    change: Change
    due: float
    """Time in the queue's clock."""
    seen: FileSnapshot | None = None
    """State of the file when the job was queued; None if it did not exist."""
    tries: int = 0
    """Times the job was queued again because the file kept changing."""

    def is_settled(self, now: FileSnapshot) -> bool:
        """Return whether a file can be read: it stands still, or is a log that somebody writes all the time."""
        if self.seen is None or now == self.seen:
            return now == self.seen
        return self.tries >= _MOST_TRIES and now.size > self.seen.size and readable_in_part(self.path.name)


@dataclass(frozen=True, slots=True)
class SweepJob:
    """Compare a whole folder with the catalog."""

    root: Path
    due: float


Job = FileJob | SweepJob
Task = Callable[[], None]
"""Work that a user waits for; it precedes all jobs. Raises nothing."""


class JobQueue:
    """A thread-safe queue. `take` never blocks; `wait` sleeps until a job is due or `wake` is called."""

    def __init__(self, most: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._changed = threading.Condition()
        self._files: dict[Path, FileJob] = {}
        self._order: list[tuple[float, int, Path]] = []
        self._count = 0
        self._sweeps: dict[Path, float] = {}
        self._tasks: deque[Task] = deque()
        self._woken = False

    def __len__(self) -> int:
        with self._changed:
            return len(self._files) + len(self._sweeps)

    def put(self, job: Job) -> None:
        """Queue `job`, replacing an older one for the same path; a sweep keeps the earlier of two due times."""
        with self._changed:
            if isinstance(job, SweepJob):
                self._put_sweep(job)
            elif job.path not in self._files and len(self._files) >= self._most:
                self._collapse(job.root)
                self._put_sweep(SweepJob(job.root, job.due))
            else:
                self._put_file(job)
            self._changed.notify_all()

    def put_task(self, task: Task) -> None:
        """Queue work that precedes all jobs."""
        with self._changed:
            self._tasks.append(task)
            self._woken = True
            self._changed.notify_all()

    def take_task(self) -> Task | None:
        """Remove and return the oldest task; None if there is none."""
        with self._changed:
            return self._tasks.popleft() if self._tasks else None

    def has_tasks(self) -> bool:
        """Return whether a task waits."""
        return bool(self._tasks)

    def perform(self, work: Callable[[Callable[[T], None]], None], stop: Callable[[], bool]) -> Iterator[T]:
        """Have `work` done by the thread that takes tasks; yield what it hands to its argument.

        Raises what `work` raises, and Cancelled if `stop()` turns true before it has begun.
        """
        results: queue.SimpleQueue[tuple[T] | Exception | None] = queue.SimpleQueue()
        state, has_begun, is_cancelled = threading.Lock(), threading.Event(), threading.Event()

        def task() -> None:
            with state:
                if is_cancelled.is_set():
                    return
                has_begun.set()
            try:
                work(lambda result: results.put((result,)))
            except Exception as error:
                results.put(error)
            else:
                results.put(None)

        self.put_task(task)
        while True:
            try:
                result = results.get(timeout=_TASK_POLL_SECONDS)
            except queue.Empty:
                with state:
                    if stop() and not has_begun.is_set():
                        is_cancelled.set()
                        raise Cancelled("It was stopped before it began.") from None
                continue
            if result is None:
                return
            if isinstance(result, Exception):
                raise result
            yield result[0]

    def drop(self, is_dropped: Callable[[Path], bool]) -> None:
        """Remove the jobs of the files and roots that `is_dropped` names."""
        with self._changed:
            self._files = {path: job for path, job in self._files.items() if not is_dropped(path)}
            self._sweeps = {root: due for root, due in self._sweeps.items() if not is_dropped(root)}

    def take(self) -> Job | None:
        """Remove and return the most urgent job that is due; None if none is."""
        with self._changed:
            now = self._clock()
            file, sweep = self._first_file(), self._first_sweep()
            if sweep is not None and sweep.due <= now:
                behind = file is not None and file.due <= min(now, sweep.due + _SWEEP_HANDICAP)
                if not behind:
                    del self._sweeps[sweep.root]
                    return sweep
            return self._take_file(file, now)

    def take_file(self) -> FileJob | None:
        """Remove and return the most urgent file job that is due; None if none is. For use during a sweep."""
        with self._changed:
            return self._take_file(self._first_file(), self._clock())

    def num_files(self) -> int:
        """Return how many files wait to be read."""
        with self._changed:
            return len(self._files)

    def gone_files(self, root: Path) -> int:
        """Return how many waiting files of a folder were gone when they were queued."""
        with self._changed:
            return sum(job.root == root and job.change is Change.GONE for job in self._files.values())

    def paths(self) -> list[Path]:
        """Return the files that wait."""
        with self._changed:
            return list(self._files)

    def due(self, within: float = 0.0) -> bool:
        """Return whether `take` would return a job now or within so many seconds."""
        with self._changed:
            next_due = self._next_due()
            return next_due is not None and next_due <= self._clock() + within

    def wait(self, timeout: float, *, for_jobs: bool = True) -> None:
        """Sleep until a job is due, `wake` is called, or `timeout` seconds have passed; `for_jobs` heeds due jobs."""
        end = self._clock() + timeout
        with self._changed:
            while not self._woken:
                next_due = self._next_due() if for_jobs else None
                left = min(end, end if next_due is None else next_due) - self._clock()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._woken = False

    def wake(self) -> None:
        """End the current or the next `wait` at once."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _take_file(self, file: FileJob | None, now: float) -> FileJob | None:
        if file is None or file.due > now:
            return None
        heapq.heappop(self._order)
        del self._files[file.path]
        return file

    def _put_sweep(self, job: SweepJob) -> None:
        self._sweeps[job.root] = min(job.due, self._sweeps.get(job.root, job.due))

    def _put_file(self, job: FileJob) -> None:
        older = self._files.get(job.path)
        if older is not None and older.change is job.change and older.tries > job.tries:
            job = replace(job, tries=older.tries)  # a file that is written all the time is announced all the time
        self._files[job.path] = job
        self._count += 1
        heapq.heappush(self._order, (job.due, self._count, job.path))
        # A path that changes all the time leaves its old places behind in the heap.
        if len(self._order) > 2 * len(self._files) + 64:
            self._order = [(waiting.due, n, path) for n, (path, waiting) in enumerate(self._files.items())]
            heapq.heapify(self._order)

    def _collapse(self, root: Path) -> None:
        self._files = {path: job for path, job in self._files.items() if job.root != root}

    def _first_file(self) -> FileJob | None:
        while self._order:
            due, _, path = self._order[0]
            job = self._files.get(path)
            if job is not None and job.due == due:
                return job
            heapq.heappop(self._order)
        return None

    def _first_sweep(self) -> SweepJob | None:
        if not self._sweeps:
            return None
        root = min(self._sweeps, key=lambda root: (self._sweeps[root], root))
        return SweepJob(root, self._sweeps[root])

    def _next_due(self) -> float | None:
        file, sweep = self._first_file(), self._first_sweep()
        dues = [job.due for job in (file, sweep) if job is not None]
        return min(dues) if dues else None


def look(path: Path) -> FileSnapshot | None:
    """Return the present state of the file at `path`; None if it does not exist or is inaccessible."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileSnapshot(status.st_size, status.st_mtime_ns)


def settle_wait(settings: IndexSettings, change: Change, tries: int = 0) -> float:
    """Return the seconds until a changed file is read or a vanished one counts as deleted.

    A vanished file waits longer than a new one, so that a rename is recognised: its new name is handled first.
    """
    if change is Change.GONE:
        return max(GONE_SECONDS, settings.settle_seconds + 1)
    return min(max(settings.settle_seconds, 0.1) * 2**tries, _LONGEST_BACKOFF) if tries else settings.settle_seconds
