"""Eviction policies to compare the store's own with: LRU, LFU, GDSF, S3-FIFO, and the store's rule as `Worth`."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from typing import Protocol

from desk_rag.kv.loading.retention import decayed
from desk_rag.store.kv.policy import ADMIT_FROM, Cost, priority, rank


class Policy(Protocol):
    """A cache of a fixed number of bytes, as the simulation sees it."""

    name: str

    def access(self, key: int, cost: Cost) -> bool:
        """Ask for an item and admit it if it is absent; True for a hit."""
        ...


class LRU:
    """Evicts what was not used for longest."""

    name = "LRU"

    def __init__(self, capacity: int) -> None:
        self._room = capacity
        self._items: OrderedDict[int, int] = OrderedDict()

    def access(self, key: int, cost: Cost) -> bool:
        """See `Policy.access`."""
        if key in self._items:
            self._items.move_to_end(key)
            return True
        self._room -= cost.size
        self._items[key] = cost.size
        while self._room < 0:
            self._room += self._items.popitem(last=False)[1]
        return False


class _Ranked:
    """Evicts the item of lowest rank; a heap with stale entries that are skipped."""

    def __init__(self, capacity: int) -> None:
        self._room = capacity
        self._heap: list[tuple[float, int, int]] = []
        self._rank: dict[int, tuple[float, int]] = {}
        self._sizes: dict[int, int] = {}
        self._now = 0

    def _place(self, key: int, rank: float, size: int) -> None:
        self._rank[key] = (rank, self._now)
        self._sizes[key] = size
        heapq.heappush(self._heap, (rank, self._now, key))

    def _evict(self) -> float:
        while True:
            rank, placed, key = heapq.heappop(self._heap)
            if self._rank.get(key) == (rank, placed):
                del self._rank[key]
                self._room += self._sizes.pop(key)
                return rank


class LFU(_Ranked):
    """Evicts what was used least often, among equals the oldest."""

    name = "LFU"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._hits: dict[int, int] = {}

    def access(self, key: int, cost: Cost) -> bool:
        """See `Policy.access`."""
        self._now += 1
        hit = key in self._sizes
        self._hits[key] = self._hits.get(key, 0) + 1 if hit else 1
        if not hit:
            self._room -= cost.size
        self._place(key, float(self._hits[key]), cost.size)
        while self._room < 0:
            self._evict()
        return hit


class GDSF(_Ranked):
    """Evicts by hits x saved time per byte on top of a clock that rises with every eviction; admits everything."""

    name = "GDSF"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._clock = 0.0
        self._hits: dict[int, tuple[float, int]] = {}

    def access(self, key: int, cost: Cost) -> bool:
        """See `Policy.access`."""
        self._now += 1
        hit = key in self._sizes
        hits, last = self._hits.get(key, (0.0, self._now))
        hits = decayed(hits, self._now - last) + 1
        self._hits[key] = (hits, self._now)
        if not hit:
            self._room -= cost.size
        self._place(key, self._clock + priority(hits, cost), cost.size)
        while self._room < 0:
            self._clock = max(self._clock, self._evict())
        return hit


class Worth(_Ranked):
    """The store's policy: evict the least decayed hits x saved time per byte, admit only what is worth more."""

    name = "desk-rag"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._hits: dict[int, tuple[float, int]] = {}

    def access(self, key: int, cost: Cost) -> bool:
        """See `Policy.access`. Uses of absent items are remembered, as the catalog remembers those of chunks."""
        self._now += 1
        hits, last = self._hits.get(key, (0.0, self._now))
        hits = decayed(hits, self._now - last) + 1
        self._hits[key] = (hits, self._now)
        priority = rank(hits, cost, self._now)
        if key in self._sizes:
            self._place(key, priority, cost.size)
            return True
        if self._room < cost.size and (hits < ADMIT_FROM - 0.5 or not self._displace(priority, cost.size)):
            return False
        self._room -= cost.size
        self._place(key, priority, cost.size)
        return False

    def _displace(self, standing: float, size: int) -> bool:
        """Make room of what ranks lower; if that does not do, change nothing."""
        victims: list[tuple[float, int, int]] = []
        room = self._room
        while room < size:
            entry = heapq.heappop(self._heap)
            if self._rank.get(entry[2]) != entry[:2]:
                continue
            victims.append(entry)
            room += self._sizes[entry[2]]
            if entry[0] >= standing:
                for victim in victims:
                    heapq.heappush(self._heap, victim)
                return False
        for _, _, key in victims:
            del self._rank[key]
            self._room += self._sizes.pop(key)
        return True


class S3FIFO:
    """Three queues: a small one that filters one-time items, a main one, and a memory of what was filtered out."""

    name = "S3-FIFO"

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._items: dict[int, tuple[int, int, bool]] = {}  # size, frequency 0..3, in the small queue
        self._small_bytes = self._bytes = 0

    def access(self, key: int, cost: Cost) -> bool:
        """See `Policy.access`."""
        if key in self._items:
            size, frequency, small = self._items[key]
            self._items[key] = (size, min(3, frequency + 1), small)
            return True
        small = key not in self._ghost
        self._ghost.pop(key, None)
        self._items[key] = (cost.size, 0, small)
        (self._small if small else self._main).append(key)
        self._bytes += cost.size
        self._small_bytes += cost.size if small else 0
        while self._bytes > self._capacity:
            self._evict()
        return False

    def _evict(self) -> None:
        if self._small and (self._small_bytes > self._capacity // 10 or not self._main):
            self._evict_small()
        else:
            self._evict_main()

    def _evict_small(self) -> None:
        key = self._small.popleft()
        size, frequency, _ = self._items[key]
        self._small_bytes -= size
        if frequency > 1:
            self._items[key] = (size, 0, False)
            self._main.append(key)
            return
        del self._items[key]
        self._bytes -= size
        self._ghost[key] = None
        while len(self._ghost) > max(1, len(self._items)):
            self._ghost.popitem(last=False)

    def _evict_main(self) -> None:
        key = self._main.popleft()
        size, frequency, _ = self._items[key]
        if frequency:
            self._items[key] = (size, frequency - 1, False)
            self._main.append(key)
            return
        del self._items[key]
        self._bytes -= size
