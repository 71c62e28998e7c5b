"""Cache of chunk payloads on the computing device: GPU memory, or host memory without a GPU.

Complete payloads stay after their answer, up to a number of bytes, so that a chunk that is used again is not loaded
again; the least used goes first.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from desk_rag.kv.loading.host_memory import Arena, Extent, aligned, round_up
from desk_rag.kv.loading.retention import Uses


@dataclass(slots=True, eq=False)
class Buffer:
    """One chunk's payload on the computing device."""

    key: Hashable
    data: torch.Tensor
    """uint8, at least the payload, rounded up to 4,096 bytes."""
    complete: bool
    """All bytes are in it and were verified."""
    extent: Extent | None = None


class PayloadCache(Protocol):
    """Lends buffers and keeps the complete ones."""

    def borrow(self, requests: Sequence[tuple[Hashable, int]]) -> list[Buffer]:
        """Return per (key, bytes) the complete payload of `key` if it is cached, else an empty buffer."""

    def holds(self, key: Hashable) -> bool:
        """Return whether the payload of `key` is cached now; it may be evicted at any time."""

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        """Return a borrowed buffer; `keep` if it is complete and verified."""

    def clear(self) -> None:
        """Drop every payload that is not in use."""


class HostPayloadCache:
    """Payloads in host memory, in an arena: touching fresh memory costs more than reading a cached file."""

    def __init__(self, nbytes: int) -> None:
        self._arena = Arena(nbytes, pinned=False)

    def borrow(self, requests: Sequence[tuple[Hashable, int]]) -> list[Buffer]:
        cached = [self._arena.find(key) for key, _ in requests]  # before any of them makes room for another
        return [
            self._empty(key, nbytes) if extent is None else Buffer(key, extent.data, complete=True, extent=extent)
            for (key, nbytes), extent in zip(requests, cached, strict=True)
        ]

    def holds(self, key: Hashable) -> bool:
        return self._arena.holds(key)

    def _empty(self, key: Hashable, nbytes: int) -> Buffer:
        empty = self._arena.reserve(nbytes)
        if empty is None:  # more than the cap is in use at once: allocate memory for this answer only
            return Buffer(key, aligned(round_up(nbytes)), complete=False)
        return Buffer(key, empty.data, complete=False, extent=empty)

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        if buffer.extent is None:
            return
        if keep:
            self._arena.publish(buffer.extent, buffer.key)
        self._arena.release(buffer.extent)

    def clear(self) -> None:
        self._arena.clear()


class DevicePayloadCache:
    """Payloads in GPU memory from torch's allocator; at most `nbytes` are kept between answers."""

    def __init__(self, nbytes: int, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._cap, self._device, self._stream = nbytes, device, stream
        self._lock = threading.Lock()
        self._kept: dict[Hashable, torch.Tensor] = {}
        self._uses = Uses()
        self._kept_bytes = 0
        self._lent_bytes = 0
        """Size of the buffers being filled; it counts towards the cap, so prefetching stays below it."""

    def borrow(self, requests: Sequence[tuple[Hashable, int]]) -> list[Buffer]:
        with self._lock:
            cached = {key: self._kept[key] for key, _ in requests if key in self._kept}
            for key in cached:
                self._uses.note(key)
        try:
            lent = self._lend(requests, cached)
        except torch.OutOfMemoryError:  # free cached payloads and try again
            self.clear()
            torch.cuda.empty_cache()
            lent = self._lend(requests, cached)
        with self._lock:
            self._lent_bytes += sum(int(buffer.data.shape[0]) for buffer in lent if not buffer.complete)
            self._evict()
        return lent

    def holds(self, key: Hashable) -> bool:
        return key in self._kept

    def _lend(self, requests: Sequence[tuple[Hashable, int]], cached: dict[Hashable, torch.Tensor]) -> list[Buffer]:
        # Allocate on the copy stream: the compute stream may still read memory that it has just freed.
        # Threads outside inference mode cannot write to a tensor that was created in it.
        with torch.cuda.stream(self._stream), torch.inference_mode(mode=False):
            return [
                Buffer(key, cached[key], complete=True)
                if key in cached
                else Buffer(key, torch.empty(round_up(nbytes), dtype=torch.uint8, device=self._device), complete=False)
                for key, nbytes in requests
            ]

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        if buffer.complete:  # still cached, or evicted and alive as long as an answer refers to it
            return
        size = int(buffer.data.shape[0])
        with self._lock:
            self._lent_bytes -= size
            if keep:
                self._uses.note(buffer.key)
            if keep and size <= self._cap and buffer.key not in self._kept:
                self._kept[buffer.key] = buffer.data
                self._kept_bytes += size
            self._evict()

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0

    def _evict(self) -> None:
        while self._kept and self._kept_bytes + self._lent_bytes > self._cap:
            least = min(self._kept, key=lambda key: self._uses.worth(key, len(self._kept)))
            self._kept_bytes -= int(self._kept.pop(least).shape[0])
