"""Share the device between answers and background prefill; answers have priority.

Between processes: a process that answers holds an OS lock on its own file in `runtime_dir/answering`, and background
prefill checks whether any such lock is held. OS locks vanish with their process, so a killed answer never blocks
indexing.

Within a process `answering` and `prefilling` exclude each other, because the model is not thread-safe. A waiting answer
announces itself, which makes the running prefill stop before its next layer.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from desk_rag.errors import ForeignPlace
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import require_own_file

_CHECK_SECONDS = 0.02
"""Seconds between checks of other processes' locks; prefill must give way within 100 ms."""


class DeviceLock:
    """The right to use the device. One object per process; safe to use from several threads."""

    def __init__(self, runtime_dir: Path) -> None:
        self._dir = runtime_dir / "answering"
        # The data directory, or `runtime_dir` itself if it is not the `run` folder of one.
        self._home = OwnedDirectory(runtime_dir.parent if runtime_dir.name == "run" else runtime_dir)
        self._make_directory()  # if it fails nothing can be indexed here, so nothing has to give way
        self._answers = 0
        self._device = threading.Lock()
        self._guard = threading.Lock()
        self._own = FileLock(self._dir / f"{os.getpid()}.lock", mode=0o600, thread_local=False)
        self._checked_at = -1.0
        self._others = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Hold the device for an answer; background work of every process gives way, a second answer waits."""
        with self._guard:
            if self._answers == 0:
                self._make_directory()  # a purge may have removed it
                with contextlib.suppress(OSError, ForeignPlace), self._home.opened(self._dir):
                    require_own_file(Path(self._own.lock_file))  # taking the lock empties it
                    self._own.acquire()
            self._answers += 1
        try:
            with self._device:
                yield
        finally:
            with self._guard:
                self._answers -= 1
                if self._answers == 0:
                    self._own.release()

    @contextmanager
    def prefilling(self) -> Iterator[None]:
        """Hold the device for one chunk of background prefill; check `answer_waits` before every layer."""
        with self._device:
            yield

    def answer_waits(self) -> bool:
        """Return whether any process answers. Lists a directory at most every 20 ms, so call it as often as needed."""
        if self._answers:
            return True
        now = time.monotonic()
        if now - self._checked_at >= _CHECK_SECONDS:
            self._others = self._another_answers()
            self._checked_at = now
        return self._others

    def _make_directory(self) -> None:
        with contextlib.suppress(OSError, ForeignPlace):
            self._home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for directory in (self._dir.parent, self._dir):
                if directory != self._home.root:
                    self._home.make_directory(directory)

    def _another_answers(self) -> bool:
        own = f"{os.getpid()}.lock"
        for file in self._dir.glob("*.lock"):
            if file.name == own or not _is_lock(file):
                continue
            probe = FileLock(file, timeout=0, thread_local=False)
            try:
                probe.acquire()
            except Timeout:
                return True
            except OSError:
                continue
            # Nobody holds it: its process ended without removing it.
            with contextlib.suppress(OSError):
                self._home.remove(file, lambda entry: entry.status.st_size == 0)
            probe.release()
        return False


class HeldLock(DeviceLock):
    """A lock that the caller of several answers holds for all of them."""

    def __init__(self) -> None:
        """Nothing is locked by this object."""

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Begin at once."""
        yield


def _is_lock(file: Path) -> bool:
    """Return whether a file is an empty lock named after a process; taking any other file's lock would empty it."""
    try:
        status = file.lstat()
        require_own_file(file, status)
    except (OSError, ForeignPlace):
        return False
    return file.stem.isdecimal() and status.st_size == 0
