"""Memory for reading files into, used again as soon as nothing looks at it any more. Knows bytes; knows no file format.

First touch of fresh memory costs more than reading a cached file into memory already touched, so a buffer goes back to
the pool when the last tensor over it is gone. A buffer is lent as a numpy view; a torch storage made by
`torch.from_numpy` holds that view alive, and its finaliser is what gives the buffer back: no caller has to remember.
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
    """Lends page-aligned buffers of uint8; keeps at most `idle_bytes` of them for the next time."""

    def __init__(self, idle_bytes: int) -> None:
        self._idle_bytes = idle_bytes
        self._lock = threading.Lock()
        self._idle: list[Bytes] = []
        # A finaliser may run in any thread at any allocation, also inside our own lock: it must not take one.
        self._returned: deque[Bytes] = deque()

    def lend(self, size: int) -> Bytes:
        """Return a buffer of exactly `size` bytes (uint8 [size]); its content is undefined."""
        with self._lock:
            self._collect()
            slab = self._fitting(size)
        if slab is None:
            slab = np.frombuffer(mmap.mmap(-1, max(_UNIT, -(-size // _UNIT) * _UNIT)), dtype=np.uint8)
        loan = slab[:size]
        weakref.finalize(loan, self._returned.append, slab).atexit = False
        return loan

    @property
    def idle_bytes(self) -> int:
        """Bytes that wait to be lent again."""
        with self._lock:
            self._collect()
            return sum(slab.nbytes for slab in self._idle)

    def _fitting(self, size: int) -> Bytes | None:
        for index, slab in enumerate(self._idle):
            if size <= slab.nbytes <= 2 * size + _UNIT:
                return self._idle.pop(index)
        return None

    def _collect(self) -> None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        self._idle.sort(key=lambda slab: slab.nbytes)
        total = sum(slab.nbytes for slab in self._idle)
        while self._idle and total > self._idle_bytes:
            total -= self._idle.pop().nbytes
