"""Chunk payloads where they are computed with: in GPU memory, or in host memory when there is no GPU.

Knows buffers and a byte cap; knows no file and no layer. Complete payloads stay after their answer, least recently
used first to go, so that a chunk asked for again is not loaded again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from desk_rag.kv.loading.host_memory import Arena, Extent, aligned, round_up


@dataclass(slots=True, eq=False)
class Buffer:
    """One chunk's payload on the computing device."""

    key: Hashable
    data: torch.Tensor
    """uint8, at least the payload, rounded up to 4,096 bytes."""
    complete: bool
    """Everything is in it and was checked."""
    extent: Extent | None = None


class Residency(Protocol):
    """Lends buffers and keeps complete ones."""

    def borrow(self, wanted: Sequence[tuple[Hashable, int]]) -> list[Buffer]:
        """Per (key, bytes) the complete payload of `key` if it is here, else an empty buffer of that size."""

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        """The borrower is done; `keep` says that the buffer is complete and right."""

    def clear(self) -> None:
        """Forget what nobody uses."""


class HostResidency:
    """In an arena, because the first touch of fresh memory costs more than reading a cached file into used memory."""

    def __init__(self, nbytes: int) -> None:
        self._arena = Arena(nbytes, pinned=False)

    def borrow(self, wanted: Sequence[tuple[Hashable, int]]) -> list[Buffer]:
        return [self._one(key, nbytes) for key, nbytes in wanted]

    def _one(self, key: Hashable, nbytes: int) -> Buffer:
        found = self._arena.find(key)
        if found is not None:
            return Buffer(key, found.data, complete=True, extent=found)
        fresh = self._arena.reserve(nbytes)
        if fresh is None:  # more than the cap is in use at once: memory of its own, for this answer only
            return Buffer(key, aligned(round_up(nbytes)), complete=False)
        return Buffer(key, fresh.data, complete=False, extent=fresh)

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        if buffer.extent is None:
            return
        if keep:
            self._arena.publish(buffer.extent, buffer.key)
        self._arena.release(buffer.extent)

    def clear(self) -> None:
        self._arena.clear()


class DeviceResidency:
    """In GPU memory, from torch's allocator; at most `nbytes` are kept between answers."""

    def __init__(self, nbytes: int, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._cap, self._device, self._stream = nbytes, device, stream
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self._kept_bytes = 0
        self._lent_bytes = 0
        """Of buffers that are being filled; they count, so that loading ahead takes no more than the cap."""

    def borrow(self, wanted: Sequence[tuple[Hashable, int]]) -> list[Buffer]:
        with self._lock:
            here = {key: self._kept[key] for key, _ in wanted if key in self._kept}
            for key in here:
                self._kept.move_to_end(key)
        try:
            lent = self._lend(wanted, here)
        except torch.OutOfMemoryError:  # what is kept for later gives way to what is needed now
            self.clear()
            torch.cuda.empty_cache()
            lent = self._lend(wanted, here)
        with self._lock:
            self._lent_bytes += sum(int(buffer.data.shape[0]) for buffer in lent if not buffer.complete)
            self._evict()
        return lent

    def _lend(self, wanted: Sequence[tuple[Hashable, int]], here: dict[Hashable, torch.Tensor]) -> list[Buffer]:
        # Allocated on the copying stream: memory that the computing stream has just freed may still be read there.
        # A tensor born in inference mode could not be written by another thread that is not in it.
        with torch.cuda.stream(self._stream), torch.inference_mode(mode=False):
            return [
                Buffer(key, here[key], complete=True)
                if key in here
                else Buffer(key, torch.empty(round_up(nbytes), dtype=torch.uint8, device=self._device), complete=False)
                for key, nbytes in wanted
            ]

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        if buffer.complete:  # it was kept all the while, or given up and lives as long as somebody uses it
            return
        size = int(buffer.data.shape[0])
        with self._lock:
            self._lent_bytes -= size
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
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= int(oldest.shape[0])
