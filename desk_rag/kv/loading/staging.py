"""Copies from page-locked host memory to the GPU on a stream of their own.

Extents stay in the arena after their copy and form the RAM tier: bytes that are needed again are copied again without
being read from disk.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable, Sequence

import torch

from desk_rag.kv.loading.host_memory import Arena, Extent


class Staging:
    """Page-locked memory and the stream that copies from it. Thread-safe."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.arena = Arena(nbytes, pinned=True)
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copying: deque[tuple[torch.cuda.Event, Sequence[Extent]]] = deque()
        self._lock = threading.Lock()

    def room(self, nbytes: int) -> Extent | None:
        """Reserve memory, waiting for copies to finish if necessary; None if `nbytes` can never fit."""
        while (extent := self.arena.reserve(nbytes)) is None:
            if not self._free(wait=True):
                return None
        return extent

    def send(self, extent: Extent, nbytes: int, target: torch.Tensor, key: Hashable) -> None:
        """Copy an extent to `target` on the GPU and publish it as `key`; the caller gives the extent up."""
        self.copy(extent.data[:nbytes], target)
        self.arena.publish(extent, key)
        self._release_after_copies([extent])

    def send_again(self, requests: Iterable[tuple[Hashable, int, torch.Tensor]]) -> list[bool]:
        """Copy those (key, offset in its extent, target) that the RAM tier has; returns which were copied.

        Each copy starts as soon as its extent is looked up, so that the bus does not wait for all look-ups.
        """
        extents: list[Extent] = []
        sent = []
        try:
            with torch.cuda.stream(self.stream):
                for key, offset, target in requests:
                    extent = self.arena.find(key)
                    sent.append(extent is not None)
                    if extent is not None:
                        extents.append(extent)
                        target.copy_(extent.data.narrow(0, offset, target.shape[0]), non_blocking=True)
        finally:
            if extents:
                self._release_after_copies(extents)
            self._free(wait=False)
        return sent

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Enqueue one copy; returns at once if `source` is page-locked."""
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """Record an event behind every copy enqueued so far."""
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event

    def drain(self) -> None:
        """Wait for every copy, so that no extent is in use."""
        while self._free(wait=True):
            pass

    def close(self) -> None:
        """Wait for every copy and unlock the memory."""
        self.drain()
        self.arena.close()

    def _release_after_copies(self, extents: Sequence[Extent]) -> None:
        """Release these extents once the copies enqueued so far are done."""
        event = self.mark()
        with self._lock:
            self._copying.append((event, extents))

    def _free(self, *, wait: bool) -> bool:
        """Release extents whose copies are done; with `wait`, wait for the oldest. False if none was freed."""
        freed = False
        while True:
            with self._lock:
                if not self._copying or not ((wait and not freed) or _is_done(self._copying[0][0])):
                    return freed
                event, extents = self._copying.popleft()
            event.synchronize()
            for extent in extents:
                self.arena.release(extent)
            freed = True


def _is_done(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]
