"""State of one asynchronous load: its chunks, its waves, what has arrived and what could not be loaded.

Reading, copying and memory are the loader's (`loader`); this is its book-keeping.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from desk_rag.errors import CorruptKV
from desk_rag.kv import payload
from desk_rag.kv.loading.device_cache import Buffer
from desk_rag.kv.loading.file_io import Identity
from desk_rag.kv.payload import ChunkFile, LayerGroup, PayloadLayout
from desk_rag.kv.types import QuantizedKV

NOT_ON_DISK = "not on disk"


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Consecutive layer groups of one file that are read together; computed once per file."""

    step: int
    """Step of a full load that it belongs to (`schedule.LoadSchedule.step_ends`)."""
    groups: tuple[tuple[int, LayerGroup], ...]
    """Pairs (index in the file, group)."""
    start: int
    """First byte in the payload."""
    nbytes: int
    """Size of all groups."""
    slices: tuple[ReadRange, ...] = ()
    """Sub-ranges in which it is copied from RAM, first layers first; empty for a slice."""
    thin_slices: tuple[ReadRange, ...] = ()
    """The same for a large load, whose first layers would otherwise be long in coming."""

    @classmethod
    def of(
        cls,
        step: int,
        groups: Sequence[tuple[int, LayerGroup]],
        slices: Sequence[ReadRange] = (),
        thin_slices: Sequence[ReadRange] = (),
    ) -> ReadRange:
        start = groups[0][1].start
        return cls(step, tuple(groups), start, groups[-1][1].end - start, tuple(slices), tuple(thin_slices))


class ChunksLost(CorruptKV):
    """Some chunks cannot be loaded; raised before the first token, so that they can be prefilled instead."""

    def __init__(self, indices: Sequence[int], reasons: Sequence[str]) -> None:
        super().__init__(f"{len(indices)} chunk KVs could not be loaded: {'; '.join(reasons)}")
        self.indices = tuple(indices)


@dataclass(slots=True, eq=False)
class ChunkLoad:
    """One chunk of a load."""

    file: ChunkFile | None
    identity: Identity | None = None
    buffer: Buffer | None = None
    layout: PayloadLayout | None = None
    read_ranges: tuple[ReadRange, ...] = ()
    lost: str | None = None
    """Reason why it cannot be loaded; None if it can."""
    replacement: QuantizedKV | None = None
    """Chunk KV that the caller computed in its place."""
    dropped: bool = False
    open_transfers: dict[int, int] = field(default_factory=dict)
    """Number of unfinished transfers by wave."""
    outstanding: int = 0
    """Transfers whose bytes have not arrived; the buffer is complete at 0."""


@dataclass(slots=True, eq=False)  # not frozen: a load creates hundreds, and frozen ones take three times as long
class Transfer:
    """One read and copy of a range of one chunk, or one copy of a slice that is in RAM already."""

    item: ChunkLoad
    wave: int
    part: ReadRange
    parent: ReadRange
    """The range in which it was, or will be, read from disk."""

    @property
    def key(self) -> tuple[Identity | None, int, int]:
        """Key of the parent's bytes in the RAM tier."""
        return self.item.identity, self.parent.start, self.parent.nbytes

    @property
    def offset(self) -> int:
        """Offset of its first byte in the parent."""
        return self.part.start - self.parent.start

    def as_read(self) -> Transfer:
        """The transfer as a read of its own, for a slice whose parent is no longer in RAM."""
        return self if self.part is self.parent else Transfer(self.item, self.wave, self.part, self.part)

    @property
    def target(self) -> torch.Tensor:
        """Destination on the computing device, uint8 [nbytes]."""
        assert self.item.buffer is not None
        return self.item.buffer.data.narrow(0, self.part.start, self.part.nbytes)


class LoaderCallbacks(Protocol):
    """The part of a loader that its loads call."""

    def mark(self) -> torch.cuda.Event | None:
        """Record an event behind every copy enqueued so far; None without a GPU."""

    def computing(self) -> torch.cuda.Stream | None:
        """Current stream of the calling thread; None without a GPU."""

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        """Return a buffer that is no longer used; `keep` if it is complete and verified."""


class Load:
    """Chunk KVs being loaded. Created by `Loader.start`, used by one thread, closed after placement."""

    def __init__(
        self,
        callbacks: LoaderCallbacks,
        items: list[ChunkLoad],
        wave_ends: tuple[int, ...],
        transfers: Sequence[Transfer],
    ) -> None:
        self.items = items
        self.wave_ends = wave_ends
        """Wave w loads the layers below wave_ends[w]."""
        self._events: list[torch.cuda.Event | None] = [None] * len(wave_ends)
        self._callbacks = callbacks
        self._every_item = tuple(items)
        self._changed = threading.Condition()
        self._open_transfers = [0] * len(wave_ends)
        self._in_flight = len(transfers)
        for transfer in transfers:
            self._open_transfers[transfer.wave] += 1
            transfer.item.open_transfers[transfer.wave] = transfer.item.open_transfers.get(transfer.wave, 0) + 1
            transfer.item.outstanding += 1
        if not transfers:  # all resident, but the last copies may not be done yet
            self._events[0] = callbacks.mark()
        self.resident = not transfers
        """True if nothing has to be loaded."""
        self._failure: BaseException | None = None
        self._unattended = False
        self._given_back = False
        self._joined: tuple[torch.cuda.Stream | None, int] = (None, 0)
        self._blocked = 0.0
        self._stalls: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def nbytes(self) -> int:
        """Payload bytes of the chunks that come from disk or from memory."""
        return sum(item.file.payload for item in self.items if item.file is not None and item.replacement is None)

    def layers_of(self, wave: int) -> range:
        """Layers that this wave loads."""
        return range(self.wave_ends[wave - 1] if wave else 0, self.wave_ends[wave])

    def wait(self, wave: int) -> None:
        """Wait until the current stream may use the layers of `wave` of every chunk. Raises ChunksLost."""
        stream = self._callbacks.computing()
        stall = _Stall(stream) if stream is not None else None
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not any(self._open_transfers[: wave + 1]))
        self._blocked += time.perf_counter() - began
        if self._failure is not None:
            raise RuntimeError("a reader thread failed") from self._failure
        if stream is not None and stall is not None:
            self._join(stream, wave)
            self._stalls.append((stall.begin, stall.end()))
        if lost := self.missing():
            raise ChunksLost(lost, [self.items[index].lost or "" for index in lost])

    def wait_all(self) -> None:
        """Wait for the last wave. Raises ChunksLost."""
        self.wait(len(self.wave_ends) - 1)

    def missing(self) -> list[int]:
        """Indices of the chunks known to be lost and not yet replaced."""
        return [index for index, item in enumerate(self.items) if item.lost is not None and item.replacement is None]

    def waited(self) -> float:
        """Seconds for which computation was stalled by loading.

        On a GPU this is device time from the end of the previous work to the arrival of a wave; synchronize first.
        """
        if not self._stalls:
            return self._blocked
        return sum(float(begin.elapsed_time(end)) for begin, end in self._stalls) / 1e3

    def keep(self, indices: Sequence[int | None]) -> None:
        """Continue with these chunks in this order; the others are neither read nor waited for.

        None stands for a chunk that is known to be missing.
        """
        kept = [ChunkLoad(None, lost=NOT_ON_DISK) if index is None else self.items[index] for index in indices]
        with self._changed:
            for item in self.items:
                if item not in kept:
                    self._drop(item)
            self.items = kept
            self._changed.notify_all()

    def replace(self, index: int, chunk: QuantizedKV) -> None:
        """Use this chunk KV, on the computing device, in place of one that could not be loaded."""
        self.items[index].replacement = chunk

    def quantized(self, index: int) -> QuantizedKV:
        """View one chunk's loaded payload as a chunk KV, valid until `close`; call `wait_all` first."""
        item = self.items[index]
        if item.replacement is not None:
            return item.replacement
        assert item.file is not None and item.buffer is not None
        return payload.as_quantized(item.file.header, item.buffer.data)

    def leave(self) -> None:
        """Let the load finish unattended: payloads are cached, buffers are returned after the last transfer."""
        with self._changed:
            self._unattended = True
        self._give_back_if_done()

    def take_back(self) -> bool:
        """Attend to the load again after `leave`; False if it has finished and returned its buffers."""
        with self._changed:
            self._unattended = self._given_back
            return not self._given_back

    def close(self) -> None:
        """Return the buffers and cancel reads that have not begun; complete chunks stay cached."""
        with self._changed:
            self._unattended = True
            for item in self._every_item:
                self._drop(item)
        self._give_back_if_done()

    def completed(self, transfers: Sequence[Transfer]) -> None:
        """Count these transfers as completed."""
        with self._changed:
            for transfer in transfers:
                self._count_off(transfer, completed=True)
            self._changed.notify_all()
        self._give_back_if_done()

    def settle(self, transfer: Transfer, *, lost: str | None = None, failure: BaseException | None = None) -> None:
        """Count one transfer as completed, skipped, lost (with the reason) or failed."""
        with self._changed:
            if lost is not None and transfer.item.lost is None:
                transfer.item.lost = lost
            self._failure = self._failure or failure
            self._count_off(transfer, completed=lost is None and failure is None)
            self._changed.notify_all()
        self._give_back_if_done()

    def _count_off(self, transfer: Transfer, *, completed: bool) -> None:
        item = transfer.item
        self._in_flight -= 1
        item.open_transfers[transfer.wave] -= 1
        if not item.dropped:
            item.outstanding -= int(completed)
            self._count_down(transfer.wave, 1)

    def fail(self, error: BaseException) -> None:
        """Record an error that belongs to no single transfer, and wake up waiting threads."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _drop(self, item: ChunkLoad) -> None:
        if not item.dropped:
            item.dropped = True
            for wave, count in item.open_transfers.items():
                self._count_down(wave, count)

    def _count_down(self, wave: int, count: int) -> None:
        if not count:
            return
        self._open_transfers[wave] -= count
        if not self._open_transfers[wave]:
            self._events[wave] = self._callbacks.mark()

    def _join(self, stream: torch.cuda.Stream, wave: int) -> None:
        """Make `stream` wait for the copies of all waves up to `wave`."""
        known, first = self._joined
        if known is None or known != stream:
            first = 0
            for item in self.items:
                if item.buffer is not None:
                    item.buffer.data.record_stream(stream)
        for event in self._events[first : wave + 1]:
            if event is not None:
                stream.wait_event(event)
        self._joined = stream, max(first, wave + 1)

    def _give_back_if_done(self) -> None:
        with self._changed:
            if self._given_back or not self._unattended or self._in_flight:
                return
            self._given_back = True
        for item in self._every_item:
            if item.buffer is not None:
                complete = item.lost is None and not item.outstanding
                self._callbacks.give_back(item.buffer, keep=complete)


class _Stall:
    """Two timing events around a point where a stream may wait."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self.begin = self._event()

    def end(self) -> torch.cuda.Event:
        return self._event()

    def _event(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event
