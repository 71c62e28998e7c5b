"""The way from host memory to the GPU: page-locked runs, one copying stream, events that say what has arrived.

Knows CUDA streams and the arena; knows no file and no layer. A run stays in the arena after its copy and is the RAM
tier: asked for again, it is sent again without being read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable, Sequence

import torch

from desk_rag.kv.loading.host_memory import Arena, Extent


class Staging:
    """Page-locked memory and the stream that empties it. Thread-safe."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.arena = Arena(nbytes, pinned=True)
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._leaving: deque[tuple[torch.cuda.Event, Sequence[Extent]]] = deque()
        self._lock = threading.Lock()

    def room(self, nbytes: int) -> Extent | None:
        """Memory for one run, waiting for the oldest copy under way if need be. None if there can be none."""
        while (extent := self.arena.reserve(nbytes)) is None:
            if not self._free(wait=True):
                return None
        return extent

    def send(self, extent: Extent, nbytes: int, target: torch.Tensor, key: Hashable) -> None:
        """Copy the run's bytes to `target` on the GPU and keep it under `key`; the caller is done with the run."""
        self.copy(extent.data[:nbytes], target)
        self.arena.publish(extent, key)
        self._watch([extent])

    def send_again(self, wanted: Iterable[tuple[Hashable, int, torch.Tensor]]) -> list[bool]:
        """Copy those of (key, offset in what it names, target) that were read before; says which are here.

        Each is sent as soon as it is found: the bus should not wait for the processor to have looked for all.
        """
        held: list[Extent] = []
        sent = []
        try:
            with torch.cuda.stream(self.stream):
                for key, offset, target in wanted:
                    extent = self.arena.find(key)
                    sent.append(extent is not None)
                    if extent is not None:
                        held.append(extent)
                        target.copy_(extent.data.narrow(0, offset, target.shape[0]), non_blocking=True)
        finally:
            if held:
                self._watch(held)
            self._free(wait=False)
        return sent

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Enqueue one copy; from page-locked memory it returns at once."""
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """An event behind everything copied so far."""
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event

    def drain(self) -> None:
        """Wait for every copy, so that no run is in use any more."""
        while self._free(wait=True):
            pass

    def close(self) -> None:
        """Give the page-locked memory back."""
        self.drain()
        self.arena.close()

    def _watch(self, extents: Sequence[Extent]) -> None:
        """Release these runs once the copies enqueued so far are done."""
        event = self.mark()
        with self._lock:
            self._leaving.append((event, extents))

    def _free(self, *, wait: bool) -> bool:
        """Release the runs whose copies are done, waiting for the oldest; False if none was under way."""
        freed = False
        while True:
            with self._lock:
                if not self._leaving or not ((wait and not freed) or _is_done(self._leaving[0][0])):
                    return freed
                event, extents = self._leaving.popleft()
            event.synchronize()
            for extent in extents:
                self.arena.release(extent)
            freed = True


def _is_done(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]
