"""KV files become payloads on the computing device, first layers of every chunk first, while the caller goes on.

Knows threads, waves and CUDA streams; knows no question, places nothing (`layerwise` does) and decides no budget of the
disk. A wave is a run of layers over all chunks. Reader threads fill page-locked memory, raw int8 crosses the bus on a
stream of its own, and whoever needs a wave waits for that wave alone. Without a GPU the threads read straight into
the memory that is computed with; the interface is the same. (The shape of start_load and wait_for_layer in layer-wise
KV connectors; loading while another answer decodes after MatKV.)

A file that is missing, changed or damaged never reaches an answer: waiting for its wave raises ChunksLost, the caller
prefills those chunks live, hands them in with `Load.replace` and goes on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from queue import PriorityQueue

import torch

from desk_rag.errors import CorruptKV
from desk_rag.kv import payload
from desk_rag.kv.arena import aligned, round_up
from desk_rag.kv.kv_io import FileReader, Identity, identity_of
from desk_rag.kv.payload import ChunkFile, Layout
from desk_rag.kv.residency import Buffer, DeviceResidency, HostResidency, Residency
from desk_rag.kv.staging import Staging
from desk_rag.kv.types import QuantizedKV

_KNOWN_LAYOUTS = 4096


class ChunksLost(CorruptKV):
    """Some chunks cannot be had from disk; a miss for whoever loads them, found before the first token."""

    def __init__(self, indices: Sequence[int], reasons: Sequence[str]) -> None:
        super().__init__(f"{len(indices)} chunk KVs could not be loaded: {'; '.join(reasons)}")
        self.indices = tuple(indices)


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """Sizes and habits of the load path; `bench load` finds the best for a drive."""

    threads: int = 4
    waves: int = 8
    """Into how many steps a load is divided: more begin computing earlier and cost more calls."""
    direct: bool = True
    """Read past the page cache where the file system allows it. GPU only: on the CPU the page cache is the RAM tier."""
    staging_bytes: int = 1 << 30
    """Page-locked memory, allocated once: what reads land in and what was read before (GPU only)."""
    resident_bytes: int = 2 << 30
    """int8 payloads kept on the computing device between answers."""


@dataclass(slots=True, eq=False)
class Item:
    """One chunk of a load."""

    file: ChunkFile | None
    identity: Identity | None = None
    buffer: Buffer | None = None
    layout: Layout | None = None
    lost: str | None = None
    """Why it cannot be had from disk."""
    given: QuantizedKV | None = None
    """What the caller put in its place."""
    dropped: bool = False
    open_runs: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive layer groups of one file: one read, one copy."""

    item: Item
    wave: int
    groups: tuple[tuple[int, payload.Group], ...]

    @property
    def start(self) -> int:
        return self.groups[0][1].start

    @property
    def nbytes(self) -> int:
        return self.groups[-1][1].end - self.start


@dataclass(order=True, slots=True)
class _Task:
    order: tuple[int, int]
    work: tuple[Load, _Run] | None = field(compare=False)


class Load:
    """Chunk KVs on their way. Made by `Loader.start`, used by one thread, closed when placed or no longer wanted."""

    def __init__(self, loader: Loader, items: list[Item], cuts: tuple[int, ...]) -> None:
        self.items = items
        self.cuts = cuts
        """Wave w brings the layers below cuts[w]."""
        self.events: list[torch.cuda.Event | None] = [None] * len(cuts)
        self._loader = loader
        self._every_item = tuple(items)
        self._changed = threading.Condition()
        self._open_runs = [0] * len(cuts)
        self._failure: BaseException | None = None
        self._closed = False

    def layers_of(self, wave: int) -> range:
        """The layers that wave brings."""
        return range(self.cuts[wave - 1] if wave else 0, self.cuts[wave])

    def wait(self, wave: int) -> None:
        """Return when the current stream may use that wave's layers of every chunk. Raises ChunksLost."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not any(self._open_runs[: wave + 1]))
        if self._failure is not None:
            raise RuntimeError("a reader thread failed") from self._failure
        self._loader.join_streams(self, wave)
        lost = [index for index, item in enumerate(self.items) if item.lost is not None and item.given is None]
        if lost:
            raise ChunksLost(lost, [self.items[index].lost or "" for index in lost])

    def wait_all(self) -> None:
        """As `wait` for the last wave."""
        self.wait(len(self.cuts) - 1)

    def keep(self, indices: Sequence[int]) -> None:
        """Go on with these chunks in this order; what only the others need is not read any more."""
        chosen = [self.items[index] for index in indices]
        for item in self.items:
            item.dropped = item not in chosen
        self.items = chosen

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

    def close(self) -> None:
        """Give the memory back; reads that have not begun are cancelled. Complete chunks are kept."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for item in self._every_item:
                item.dropped = True
            idle = not any(self._open_runs)
        if idle:
            self._give_back()

    def expect(self, run: _Run) -> None:
        """Count a run that somebody else will bring."""
        self._open_runs[run.wave] += 1
        run.item.open_runs += 1

    def arrived(self, run: _Run, *, lost: str | None = None, failure: BaseException | None = None) -> None:
        """A run was brought, skipped or lost."""
        with self._changed:
            if lost is not None and run.item.lost is None:
                run.item.lost = lost
            elif lost is None and failure is None and not run.item.dropped:
                run.item.open_runs -= 1
            self._failure = self._failure or failure
            self._open_runs[run.wave] -= 1
            if not self._open_runs[run.wave]:
                self.events[run.wave] = self._loader.mark()
            self._changed.notify_all()
            finished = self._closed and not any(self._open_runs)
        if finished:
            self._give_back()

    def _give_back(self) -> None:
        for item in self._every_item:
            if item.buffer is not None:
                whole = item.lost is None and not item.open_runs
                self._loader.residency.give_back(item.buffer, keep=whole)


class Loader:
    """The threads, the memory and the tiers; one per process and device. A context manager."""

    def __init__(self, device: torch.device, settings: LoaderSettings = LoaderSettings()) -> None:
        self.device = device
        self.settings = settings
        on_gpu = device.type == "cuda"
        self.reader = FileReader(direct=settings.direct and on_gpu)
        self._staging = Staging(device, settings.staging_bytes) if on_gpu else None
        self.residency: Residency = (
            DeviceResidency(settings.resident_bytes, device, self._staging.stream)
            if self._staging is not None
            else HostResidency(settings.resident_bytes)
        )
        self._layouts: dict[Identity, Layout] = {}
        self._serial = itertools.count()
        self._tasks: PriorityQueue[_Task] = PriorityQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"kv-load-{index}", daemon=True)
            for index in range(settings.threads)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, files: Sequence[ChunkFile | None], *, urgent: bool = True) -> Load:
        """Begin to load these chunks and return at once; None stands for one that is known to be missing.

        A load that is not urgent (neighbours, the next question in the queue) is read when no other one waits.
        """
        items = [self._item(file) for file in files]
        cuts, runs = self._divide(items)
        load = Load(self, items, cuts)
        for run in runs:
            load.expect(run)
        if not runs:
            load.events[0] = self.mark()
        rank = 0 if urgent else 1
        for run in runs:
            if self._send_again(run):
                load.arrived(run)
            else:
                self._tasks.put(_Task((rank, next(self._serial)), (load, run)))
        return load

    def join_streams(self, load: Load, wave: int) -> None:
        """Make the current stream wait for the copies of all waves up to `wave`."""
        if self._staging is None:
            return
        current = torch.cuda.current_stream(self.device)
        for event in load.events[: wave + 1]:
            assert event is not None
            current.wait_event(event)
        for item in load.items:
            if item.buffer is not None:
                item.buffer.data.record_stream(current)

    def mark(self) -> torch.cuda.Event | None:
        """An event behind everything copied so far; None where nothing has to be copied."""
        return self._staging.mark() if self._staging is not None else None

    def forget(self, *, staged: bool = True) -> None:
        """Empty the tiers and verify every file again, as after a restart; without `staged` the RAM tier stays."""
        self.residency.clear()
        if staged:
            self.reader.forget_verified()
        if staged and self._staging is not None:
            self._staging.drain()
            self._staging.arena.clear()

    def close(self) -> None:
        """End the threads and give up all memory. Loads that are open must be closed first."""
        for _ in self._threads:
            self._tasks.put(_Task((2, next(self._serial)), None))
        for thread in self._threads:
            thread.join()
        self.residency.clear()
        if self._staging is not None:
            self._staging.close()

    def _item(self, file: ChunkFile | None) -> Item:
        if file is None:
            return Item(None, lost="not on disk")
        try:
            identity = identity_of(file.path)
        except OSError as error:
            return Item(file, lost=f"{file.path}: {error.strerror}")
        layout = self._layouts.get(identity)
        if layout is None:
            if len(self._layouts) >= _KNOWN_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[identity] = payload.layout(file.header)
        buffer = self.residency.borrow(identity, file.payload)
        return Item(file, identity, buffer, layout)

    def _divide(self, items: Sequence[Item]) -> tuple[tuple[int, ...], list[_Run]]:
        """Cut the layers into waves and the files into runs, in the order in which they should come."""
        layers = {item.file.num_layers for item in items if item.file is not None}
        assert len(layers) <= 1, "chunks of different models in one load"
        total = layers.pop() if layers else 1
        steps = min(self.settings.waves, total)
        ends = [-(-total * (step + 1) // steps) for step in range(steps)]
        found: dict[int, list[_Run]] = {}
        for item in items:
            if item.file is None or item.buffer is None or item.buffer.complete:
                continue
            numbered = list(enumerate(item.file.header.groups))
            for wave, end in enumerate(ends):
                start = ends[wave - 1] if wave else 0
                groups = tuple((index, group) for index, group in numbered if start <= group.first_layer < end)
                if groups:
                    found.setdefault(wave, []).append(_Run(item, wave, groups))
        # Waves that bring nothing are joined to the one before, so that everything resident is one wave.
        used = sorted(found) or [0]
        cuts = tuple(ends[following - 1] for following in used[1:]) + (total,)
        return cuts, [replace(run, wave=number) for number, wave in enumerate(used) for run in found.get(wave, [])]

    # Reading ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (work := self._tasks.get().work) is not None:
            load, run = work
            if run.item.dropped or run.item.lost is not None:
                load.arrived(run)
                continue
            try:
                self._bring(run)
            except (OSError, CorruptKV) as error:
                load.arrived(run, lost=str(error))
            except BaseException as error:  # the waiting thread must learn of it, or it would wait for ever
                load.arrived(run, failure=error)
            else:
                load.arrived(run)

    def _bring(self, run: _Run) -> None:
        """Read one run, check it, and have it on the computing device or on its way there."""
        item, staging = run.item, self._staging
        assert item.buffer is not None
        if staging is None:
            self._read(run, item.buffer.data[run.start :])
            return
        if self._send_again(run):
            return
        target = item.buffer.data[run.start : run.start + run.nbytes]
        extent = staging.room(run.nbytes)
        if extent is None:  # larger than all page-locked memory: slower, but it goes
            room = aligned(round_up(run.nbytes))
            self._read(run, room)
            staging.copy(room[: run.nbytes], target)
            staging.stream.synchronize()
            return
        try:
            self._read(run, extent.data)
        except BaseException:
            staging.arena.release(extent)
            raise
        staging.send(extent, run.nbytes, target, _key(run))

    def _read(self, run: _Run, room: torch.Tensor) -> None:
        file, identity = run.item.file, run.item.identity
        assert file is not None and identity is not None
        self.reader.read(file.path, identity, file.header.data_start + run.start, run.nbytes, room)
        self.reader.verify(file.path, identity, run.groups, room)

    def _send_again(self, run: _Run) -> bool:
        """Send a run that the RAM tier holds; False if it does not."""
        if self._staging is None or run.item.buffer is None:
            return False
        target = run.item.buffer.data[run.start : run.start + run.nbytes]
        return self._staging.send_again(_key(run), run.nbytes, target)


def _key(run: _Run) -> tuple[Identity | None, int, int]:
    return run.item.identity, run.groups[0][0], run.groups[-1][0]
