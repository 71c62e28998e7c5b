"""Host buffer that keeps what is used most, allocated once and page-locked where a GPU reads from it.

It serves as read buffer and as cache of file bytes: a published extent stays until its space is needed, and the least
used goes first. It is allocated once because locking pages takes about a quarter of a second per GiB, and
because touching fresh memory takes longer than reading a cached file.
"""

from __future__ import annotations

import mmap
import random
import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from desk_rag.kv.loading.retention import Uses
from desk_rag.model.memory.page_locked import page_lock

BLOCK = 4096
"""Alignment of extents in bytes, as O_DIRECT requires of buffer, offset and length."""
_SAMPLE = 64
"""Places that are compared when space is needed; all of them would take milliseconds with thousands of extents."""


@dataclass(slots=True, eq=False)
class Extent:
    """A byte range of the arena that is in use or published."""

    start: int
    data: torch.Tensor
    """uint8, a multiple of 4,096 bytes at an aligned address."""
    users: int = 1
    key: Hashable | None = None
    """Name under which `Arena.find` returns it; None until it is published."""

    @property
    def end(self) -> int:
        return self.start + self.data.shape[0]


class Arena:
    """One block of host memory, divided into extents. Thread-safe."""

    def __init__(self, nbytes: int, *, pinned: bool) -> None:
        nbytes = round_up(max(nbytes, BLOCK))
        self.memory = aligned(nbytes)
        self.pinned = pinned and page_lock(self.memory)
        self._lock = threading.Lock()
        self._extents: list[Extent] = []
        self._published: dict[Hashable, Extent] = {}
        self._uses = Uses()
        self._random = random.Random(0)

    @property
    def nbytes(self) -> int:
        return int(self.memory.shape[0])

    def holds(self, key: Hashable) -> bool:
        """True if `key` is published now; it may be evicted at any time."""
        return key in self._published

    def find(self, key: Hashable) -> Extent | None:
        """Return the published extent of `key` and count the caller as a user; None if there is none."""
        with self._lock:
            extent = self._published.get(key)
            if extent is not None:
                extent.users += 1
                self._uses.note(key)
            return extent

    def reserve(self, nbytes: int) -> Extent | None:
        """Return a free extent of at least `nbytes`, used by the caller; None while no space can be freed."""
        size = round_up(nbytes)
        with self._lock:
            if size > self.nbytes:
                return None
            place = self._gap(size) or self._cleared(size)
            if place is None:
                return None
            index, start = place
            extent = Extent(start, self.memory[start : start + size])
            self._extents.insert(index, extent)
            return extent

    def publish(self, extent: Extent, key: Hashable) -> None:
        """Make a complete, verified extent available to `find`; the first to publish a key wins."""
        with self._lock:
            self._uses.note(key)
            if key not in self._published:
                extent.key = key
                self._published[key] = extent

    def release(self, extent: Extent) -> None:
        """Declare that the caller no longer uses the extent; an unpublished one is free at once."""
        with self._lock:
            extent.users -= 1
            assert extent.users >= 0
            if not extent.users and extent.key is None:
                self._extents.remove(extent)

    def discard(self, key: Hashable) -> None:
        """Unpublish a key; its extent is free as soon as it has no users."""
        with self._lock:
            extent = self._published.pop(key, None)
            if extent is not None:
                extent.key = None
                if not extent.users:
                    self._extents.remove(extent)

    def clear(self) -> None:
        """Drop every extent that is not in use."""
        with self._lock:
            for extent in [extent for extent in self._published.values() if not extent.users]:
                self._forget(extent)

    def close(self) -> None:
        """Unlock the pages. No extent may be used afterwards."""
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr())  # type: ignore[no-untyped-call]
            self.pinned = False

    def _cleared(self, size: int) -> tuple[int, int] | None:
        """(index, start) of a run of that size, freed of the idle extents that are worth least together."""
        count = len(self._extents)
        run = self._cheapest(size, range(count) if count <= _SAMPLE else self._random.sample(range(count), _SAMPLE))
        if run is None and count > _SAMPLE:
            run = self._cheapest(size, range(count))
        if run is None:
            return None
        _, first, end, start = run
        for extent in self._extents[first:end]:
            self._forget(extent)
        return first, start

    def _cheapest(self, size: int, firsts: Iterable[int]) -> tuple[float, int, int, int] | None:
        runs = (run for first in firsts if (run := self._run(size, first)) is not None)
        return min(runs, default=None)

    def _run(self, size: int, first: int) -> tuple[float, int, int, int] | None:
        """(worth, first, end, start) of the run that begins behind the extent before `first`; None if it is in use."""
        start = self._extents[first - 1].end if first else 0
        end, worth = first, 0.0
        if start + size > self.nbytes:
            return None
        while end < len(self._extents) and (extent := self._extents[end]).start < start + size:
            if extent.users:
                return None
            worth += self._uses.worth(extent.key, len(self._published)) * extent.data.shape[0]
            end += 1
        return worth, first, end, start

    def _forget(self, extent: Extent) -> None:
        del self._published[extent.key]
        self._extents.remove(extent)

    def _gap(self, size: int) -> tuple[int, int] | None:
        """(index, start) of the first gap of that size between extents, which are sorted by address."""
        start = 0
        for index, extent in enumerate(self._extents):
            if extent.start - start >= size:
                return index, start
            start = extent.end
        return (len(self._extents), start) if self.nbytes - start >= size else None


def aligned(nbytes: int) -> torch.Tensor:
    """Allocate page-aligned uint8 [nbytes] outside any arena."""
    return torch.from_numpy(np.frombuffer(mmap.mmap(-1, round_up(max(nbytes, BLOCK))), dtype=np.uint8))[:nbytes]


def round_up(nbytes: int) -> int:
    """Round up to a multiple of 4,096."""
    return -(-nbytes // BLOCK) * BLOCK
