"""One load under way: which chunks, in which waves, what has come and what was lost. The book-keeping of `loader`.

Knows runs, waves and conditions; reads nothing, copies nothing and owns no memory: that is its `Ground`, the loader.
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
from desk_rag.kv.payload import ChunkFile, Group, Layout
from desk_rag.kv.types import QuantizedKV

NOT_ON_DISK = "not on disk"


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive layer groups of one file that are read together; worked out once per file."""

    step: int
    """When, of the steps that a load of all layers takes."""
    groups: tuple[tuple[int, Group], ...]
    """(index, group)."""
    start: int
    """First byte in the payload."""
    nbytes: int
    """Of all groups."""
    slices: tuple[Piece, ...] = ()
    """How it crosses the bus once it is in RAM, first layers first; empty for a slice."""

    @classmethod
    def of(cls, step: int, groups: Sequence[tuple[int, Group]], slices: Sequence[Piece] = ()) -> Piece:
        start = groups[0][1].start
        return cls(step, tuple(groups), start, groups[-1][1].end - start, tuple(slices))


class ChunksLost(CorruptKV):
    """Some chunks cannot be had from disk; a miss for whoever loads them, found before the first token."""

    def __init__(self, indices: Sequence[int], reasons: Sequence[str]) -> None:
        super().__init__(f"{len(indices)} chunk KVs could not be loaded: {'; '.join(reasons)}")
        self.indices = tuple(indices)


@dataclass(slots=True, eq=False)
class Item:
    """One chunk of a load."""

    file: ChunkFile | None
    identity: Identity | None = None
    buffer: Buffer | None = None
    layout: Layout | None = None
    pieces: tuple[Piece, ...] = ()
    lost: str | None = None
    """Why it cannot be had from disk."""
    given: QuantizedKV | None = None
    """What the caller put in its place."""
    dropped: bool = False
    open_runs: dict[int, int] = field(default_factory=dict)
    """Runs that nobody has dealt with yet, by wave."""
    not_brought: int = 0
    """Runs whose bytes are not there; 0 makes the buffer complete."""


@dataclass(slots=True, eq=False)  # not frozen, which takes three times as long to make: a load has hundreds
class Run:
    """One piece of one chunk on its way: one read, one copy. Or one slice of a piece that is in RAM: one copy."""

    item: Item
    wave: int
    piece: Piece
    whole: Piece
    """What it was, or will be, read as a part of."""

    @property
    def key(self) -> tuple[Identity | None, int, int]:
        """Under which the whole's bytes are found again."""
        return self.item.identity, self.whole.start, self.whole.nbytes

    @property
    def offset(self) -> int:
        """Of its first byte in the whole."""
        return self.piece.start - self.whole.start

    def by_itself(self) -> Run:
        """As something that is read: a slice whose whole is in RAM no longer is read alone."""
        return self if self.piece is self.whole else Run(self.item, self.wave, self.piece, self.piece)

    @property
    def target(self) -> torch.Tensor:
        """Where its bytes belong on the computing device, uint8 [nbytes]."""
        assert self.item.buffer is not None
        return self.item.buffer.data.narrow(0, self.piece.start, self.piece.nbytes)


class Ground(Protocol):
    """What a load needs of its loader."""

    def mark(self) -> torch.cuda.Event | None:
        """An event behind everything copied so far; None where nothing has to be copied."""

    def computing(self) -> torch.cuda.Stream | None:
        """The stream of whoever asks; None where there are none."""

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        """A buffer is no longer used; `keep` says that it is complete and right."""


class Load:
    """Chunk KVs on their way. Made by `Loader.start`, used by one thread, closed when placed or no longer wanted."""

    def __init__(self, ground: Ground, items: list[Item], cuts: tuple[int, ...], runs: Sequence[Run]) -> None:
        self.items = items
        self.cuts = cuts
        """Wave w brings the layers below cuts[w]."""
        self._events: list[torch.cuda.Event | None] = [None] * len(cuts)
        self._ground = ground
        self._every_item = tuple(items)
        self._changed = threading.Condition()
        self._open_runs = [0] * len(cuts)
        self._under_way = len(runs)
        for run in runs:
            self._open_runs[run.wave] += 1
            run.item.open_runs[run.wave] = run.item.open_runs.get(run.wave, 0) + 1
            run.item.not_brought += 1
        if not runs:  # all resident, but the last of it may still be on its way over the bus
            self._events[0] = ground.mark()
        self.resident = not runs
        """True if nothing has to be brought."""
        self._failure: BaseException | None = None
        self._left = False
        self._given_back = False
        self._joined: tuple[torch.cuda.Stream | None, int] = (None, 0)
        self._blocked = 0.0
        self._stalls: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def nbytes(self) -> int:
        """Payload bytes of the chunks that come from disk or a tier."""
        return sum(item.file.payload for item in self.items if item.file is not None and item.given is None)

    def layers_of(self, wave: int) -> range:
        """The layers that wave brings."""
        return range(self.cuts[wave - 1] if wave else 0, self.cuts[wave])

    def wait(self, wave: int) -> None:
        """Return when the current stream may use that wave's layers of every chunk. Raises ChunksLost."""
        stream = self._ground.computing()
        stall = _Stall(stream) if stream is not None else None
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not any(self._open_runs[: wave + 1]))
        self._blocked += time.perf_counter() - began
        if self._failure is not None:
            raise RuntimeError("a reader thread failed") from self._failure
        if stream is not None and stall is not None:
            self._join(stream, wave)
            self._stalls.append((stall.begin, stall.end()))
        if lost := self.missing():
            raise ChunksLost(lost, [self.items[index].lost or "" for index in lost])

    def wait_all(self) -> None:
        """As `wait` for the last wave."""
        self.wait(len(self.cuts) - 1)

    def missing(self) -> list[int]:
        """The chunks that are known to be lost by now and were not replaced."""
        return [index for index, item in enumerate(self.items) if item.lost is not None and item.given is None]

    def waited(self) -> float:
        """Seconds for which computing stood still because something was not loaded yet.

        On a GPU by the device's clock, between the end of the work before and the arrival of the wave; let the device
        finish first.
        """
        if not self._stalls:
            return self._blocked
        return sum(float(begin.elapsed_time(end)) for begin, end in self._stalls) / 1e3

    def keep(self, indices: Sequence[int | None]) -> None:
        """Go on with these chunks in this order; what only the others need is neither read nor waited for any more.

        None stands for one that is known to be missing.
        """
        chosen = [Item(None, lost=NOT_ON_DISK) if index is None else self.items[index] for index in indices]
        with self._changed:
            for item in self.items:
                if item not in chosen:
                    self._drop(item)
            self.items = chosen
            self._changed.notify_all()

    def replace(self, index: int, chunk: QuantizedKV) -> None:
        """Use this chunk KV (on the computing device) instead of what could not be loaded."""
        self.items[index].given = chunk

    def quantized(self, index: int) -> QuantizedKV:
        """One chunk as a whole: views of what was loaded, valid until `close`; call `wait_all` first."""
        item = self.items[index]
        if item.given is not None:
            return item.given
        assert item.file is not None and item.buffer is not None
        return payload.as_quantized(item.file.header, item.buffer.data)

    def leave(self) -> None:
        """Nobody waits for it: what comes goes into the tiers, and the memory is given back when the last has come."""
        with self._changed:
            self._left = True
        self._give_back_if_done()

    def take_back(self) -> bool:
        """Somebody waits for it after all; False if it is over: everything has come and was given back."""
        with self._changed:
            self._left = self._given_back
            return not self._given_back

    def close(self) -> None:
        """Give the memory back; reads that have not begun are cancelled. Complete chunks are kept."""
        with self._changed:
            self._left = True
            for item in self._every_item:
                self._drop(item)
        self._give_back_if_done()

    def brought(self, runs: Sequence[Run]) -> None:
        """All of these runs were brought, in one go."""
        with self._changed:
            for run in runs:
                self._dealt_with(run, brought=True)
            self._changed.notify_all()
        self._give_back_if_done()

    def arrived(self, run: Run, *, lost: str | None = None, failure: BaseException | None = None) -> None:
        """A run was brought, skipped or lost."""
        with self._changed:
            if lost is not None and run.item.lost is None:
                run.item.lost = lost
            self._failure = self._failure or failure
            self._dealt_with(run, brought=lost is None and failure is None)
            self._changed.notify_all()
        self._give_back_if_done()

    def _dealt_with(self, run: Run, *, brought: bool) -> None:
        item = run.item
        self._under_way -= 1
        item.open_runs[run.wave] -= 1
        if not item.dropped:
            item.not_brought -= int(brought)
            self._count_down(run.wave, 1)

    def fail(self, error: BaseException) -> None:
        """Something went wrong that belongs to no run; whoever waits must learn of it, or would wait for ever."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _drop(self, item: Item) -> None:
        if not item.dropped:
            item.dropped = True
            for wave, count in item.open_runs.items():
                self._count_down(wave, count)

    def _count_down(self, wave: int, count: int) -> None:
        if not count:
            return
        self._open_runs[wave] -= count
        if not self._open_runs[wave]:
            self._events[wave] = self._ground.mark()

    def _join(self, stream: torch.cuda.Stream, wave: int) -> None:
        """Make the stream wait for the copies of all waves up to `wave`."""
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
            if self._given_back or not self._left or self._under_way:
                return
            self._given_back = True
        for item in self._every_item:
            if item.buffer is not None:
                whole = item.lost is None and not item.not_brought
                self._ground.give_back(item.buffer, keep=whole)


class _Stall:
    """Two events around what a stream may have to wait for."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self.begin = self._event()

    def end(self) -> torch.cuda.Event:
        return self._event()

    def _event(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event
