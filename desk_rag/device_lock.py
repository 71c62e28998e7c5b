"""One device, two users: an answer goes first, background prefill yields within one layer.

Knows processes and lock files; knows nothing of models. Works between processes: whoever answers holds an OS lock on a
file of its own in `runtime_dir/answering`; whoever prefills in the background looks whether any such lock is held. OS
locks vanish with their process, so a killed answer never blocks indexing.

Inside one process the model is shared as well, and it is not thread-safe: `answering` and `prefilling` exclude each
other. An answer first says that it waits, which makes the running prefill give up before its next layer, then takes
the device.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from desk_rag.errors import ForeignPlace
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import require_own_file

_LOOK_EVERY = 0.02
"""Seconds between looks at other processes' locks; well inside the goal of giving way within 100 ms."""


class DeviceLock:
    """The right to use the device. One object per process; any thread may use it."""

    def __init__(self, runtime_dir: Path) -> None:
        self._dir = runtime_dir / "answering"
        # The data directory, or the directory itself where that is named alone.
        self._home = OwnedDirectory(runtime_dir.parent if runtime_dir.name == "run" else runtime_dir)
        self._make_directory()  # nobody indexes where nothing can be written, so nobody has to give way
        self._here = 0
        self._device = threading.Lock()
        self._guard = threading.Lock()
        self._own = FileLock(self._dir / f"{os.getpid()}.lock", mode=0o600, thread_local=False)
        self._looked_at = -1.0
        self._others = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Hold the turn for an answer; background work of every process gives way. A second answer waits for the
        first."""
        with self._guard:
            if self._here == 0:
                self._make_directory()  # a purge may have removed it
                with contextlib.suppress(OSError, ForeignPlace), self._home.opened(self._dir):
                    require_own_file(Path(self._own.lock_file))  # taking the lock empties it
                    self._own.acquire()
            self._here += 1
        try:
            with self._device:
                yield
        finally:
            with self._guard:
                self._here -= 1
                if self._here == 0:
                    self._own.release()

    @contextmanager
    def prefilling(self) -> Iterator[None]:
        """Hold the device of this process for one chunk of background prefill; ask `answer_waits` before every
        layer."""
        with self._device:
            yield

    def answer_waits(self) -> bool:
        """True while any process answers. Costs a directory listing at most every 20 ms, so ask as often as you
        like."""
        if self._here:
            return True
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_EVERY:
            self._others = self._someone_else()
            self._looked_at = now
        return self._others

    def wait_for_background(self, stop: Callable[[], bool], pause: float = 0.05) -> bool:
        """Sleep until no answer is being made. Returns False if `stop` asked to give up instead."""
        while self.answer_waits():
            if stop():
                return False
            time.sleep(pause)
        return True

    def _make_directory(self) -> None:
        with contextlib.suppress(OSError, ForeignPlace):
            self._home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for place in (self._dir.parent, self._dir):
                if place != self._home.root:
                    self._home.make_directory(place)

    def _someone_else(self) -> bool:
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
            # Nobody holds it: its process ended without tidying up.
            with contextlib.suppress(OSError):
                self._home.remove(file, lambda entry: entry.status.st_size == 0)
            probe.release()
        return False


def _is_lock(file: Path) -> bool:
    """True for an empty file of its own, named by a process: asking for a lock empties the file."""
    try:
        status = file.lstat()
        require_own_file(file, status)
    except (OSError, ForeignPlace):
        return False
    return file.stem.isdecimal() and status.st_size == 0
