"""Lend buffers for reading files, and take them back when no tensor uses them any more.

Touching fresh memory for the first time costs more than reading a cached file into memory already in use. A buffer is
lent as a numpy view, which a torch storage made by `torch.from_numpy` keeps alive; the view's finaliser returns the
buffer, so callers need not.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_UNIT = 1 << 18


class BufferPool:
    """Lends page-aligned buffers of uint8; keeps at most `idle_bytes` of them for reuse."""

    def __init__(self, idle_bytes: int) -> None:
        self._idle_bytes = idle_bytes
        self._lock = threading.Lock()
        self._idle: list[Bytes] = []
        # A finaliser may run in any thread at any allocation, even while we hold the lock, so it must not take one.
        self._returned: deque[Bytes] = deque()

    def lend(self, size: int) -> Bytes:
        """Return a buffer of exactly `size` bytes (uint8 [size]); its content is undefined."""
        with self._lock:
            self._collect()
            buffer = self._fitting(size)
        if buffer is None:
            buffer = np.frombuffer(mmap.mmap(-1, max(_UNIT, -(-size // _UNIT) * _UNIT)), dtype=np.uint8)
        view = buffer[:size]
        weakref.finalize(view, self._returned.append, buffer).atexit = False
        return view

    @property
    def idle_bytes(self) -> int:
        """Bytes kept for reuse."""
        with self._lock:
            self._collect()
            return sum(buffer.nbytes for buffer in self._idle)

    def _fitting(self, size: int) -> Bytes | None:
        for index, buffer in enumerate(self._idle):
            if size <= buffer.nbytes <= 2 * size + _UNIT:
                return self._idle.pop(index)
        return None

    def _collect(self) -> None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        self._idle.sort(key=lambda buffer: buffer.nbytes)
        total = sum(buffer.nbytes for buffer in self._idle)
        while self._idle and total > self._idle_bytes:
            total -= self._idle.pop().nbytes
