"""Host memory for file bytes: allocated once, page-locked where a GPU reads it, handed out in runs, reused by age.

Knows bytes and keys; knows no file format and no GPU stream. It is both the ring that reads land in and the tier of
bytes that were read before: a run that is published stays until its room is needed, least recently used first.
Allocating once matters: locking pages costs about a quarter of a second per GiB, and the first touch of fresh memory
costs more than reading a cached file.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch

BLOCK = 4096
"""Alignment of runs: what O_DIRECT asks of buffer, offset and length."""


@dataclass(slots=True, eq=False)
class Extent:
    """A run of the arena that somebody uses, or used."""

    start: int
    data: torch.Tensor
    """uint8, a multiple of 4,096 bytes at an aligned address."""
    users: int = 1
    key: Hashable | None = None
    """Under which it can be found again; None until it is published."""

    @property
    def end(self) -> int:
        return self.start + self.data.shape[0]


class Arena:
    """One block of host memory. Safe to use from several threads."""

    def __init__(self, nbytes: int, *, pinned: bool) -> None:
        nbytes = round_up(max(nbytes, BLOCK))
        self.memory = aligned(nbytes)
        self.pinned = pinned and _page_lock(self.memory)
        self._lock = threading.Lock()
        self._extents: list[Extent] = []
        self._published: OrderedDict[Hashable, Extent] = OrderedDict()

    @property
    def nbytes(self) -> int:
        return int(self.memory.shape[0])

    def holds(self, key: Hashable) -> bool:
        """Whether `find` would find that key now; it may be gone a moment later."""
        return key in self._published

    def find(self, key: Hashable) -> Extent | None:
        """The published run of that key, now in use by the caller too."""
        with self._lock:
            extent = self._published.get(key)
            if extent is not None:
                extent.users += 1
                self._published.move_to_end(key)
            return extent

    def reserve(self, nbytes: int) -> Extent | None:
        """A run of at least `nbytes`, in use by the caller; None while everything that stands in its way is in use."""
        size = round_up(nbytes)
        with self._lock:
            while size <= self.nbytes:
                found = self._gap(size)
                if found is not None:
                    index, start = found
                    extent = Extent(start, self.memory[start : start + size])
                    self._extents.insert(index, extent)
                    return extent
                idle = next((extent for extent in self._published.values() if not extent.users), None)
                if idle is None:
                    return None
                self._forget(idle)
        return None

    def publish(self, extent: Extent, key: Hashable) -> None:
        """Let others find the run; its bytes must be complete and right. The first to publish a key wins."""
        with self._lock:
            if key not in self._published:
                extent.key = key
                self._published[key] = extent

    def release(self, extent: Extent) -> None:
        """The caller no longer reads or writes the run. One that is not published is free at once."""
        with self._lock:
            extent.users -= 1
            assert extent.users >= 0
            if not extent.users and extent.key is None:
                self._extents.remove(extent)

    def discard(self, key: Hashable) -> None:
        """Make a key unknown; the run is free as soon as nobody uses it."""
        with self._lock:
            extent = self._published.pop(key, None)
            if extent is not None:
                extent.key = None
                if not extent.users:
                    self._extents.remove(extent)

    def clear(self) -> None:
        """Forget everything that is not in use."""
        with self._lock:
            for extent in [extent for extent in self._published.values() if not extent.users]:
                self._forget(extent)

    def close(self) -> None:
        """Unlock the pages; nobody may use a run any more."""
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr())  # type: ignore[no-untyped-call]
            self.pinned = False

    def _forget(self, extent: Extent) -> None:
        del self._published[extent.key]
        self._extents.remove(extent)

    def _gap(self, size: int) -> tuple[int, int] | None:
        """(index, start) of the first hole of that size; extents are kept in order of address."""
        start = 0
        for index, extent in enumerate(self._extents):
            if extent.start - start >= size:
                return index, start
            start = extent.end
        return (len(self._extents), start) if self.nbytes - start >= size else None


def aligned(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes] at the start of a page, outside any arena."""
    return torch.from_numpy(np.frombuffer(mmap.mmap(-1, round_up(max(nbytes, BLOCK))), dtype=np.uint8))[:nbytes]


def round_up(nbytes: int) -> int:
    """The next multiple of 4,096."""
    return -(-nbytes // BLOCK) * BLOCK


def _page_lock(memory: torch.Tensor) -> bool:
    """cudaHostRegister: exact to the byte, while torch's own pinned allocator rounds up to a power of two."""
    if not torch.cuda.is_available():
        return False
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(memory.data_ptr(), memory.shape[0], 0)) == 0:
        return True
    # CUDA remembers the refusal, and torch would blame it on whatever this thread launches next.
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
    return False
