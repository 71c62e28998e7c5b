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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import PriorityQueue
from typing import Self

import torch

from desk_rag.errors import Cancelled, CorruptKV
from desk_rag.kv import payload
from desk_rag.kv.loading.device_cache import Buffer, DeviceResidency, HostResidency, Residency
from desk_rag.kv.loading.file_io import FileReader, Identity, identity_of
from desk_rag.kv.loading.host_memory import aligned, round_up
from desk_rag.kv.loading.load import NOT_ON_DISK, ChunksLost, Item, Load, Piece, Run
from desk_rag.kv.loading.schedule import Cuts
from desk_rag.kv.loading.staging import Staging
from desk_rag.kv.payload import ChunkFile, Header, Layout

__all__ = ["ChunksLost", "Load", "Loader", "LoaderSettings"]

_KNOWN_FILES = 4096
_AHEAD = 1 << 20
"""Bytes that cross the bus, at 50 GB/s, while one more chunk is looked up and given memory (20 us)."""


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """Sizes and habits of the load path; `drive_tuning` finds the best of the first two for a drive."""

    threads: int = 8
    waves: int = 1
    """Into how many equal steps reading is divided: with more, computing begins earlier and reads are shorter. On a
    drive of 1.7 GB/s two cost a twelfth of the time to the first token, four a seventh."""
    ram_waves: int = 2
    """The same for what is in RAM already (GPU only), about which no drive has a say. First tokens of Qwen2-7B's shape
    on an H200 with 1, 2, 4 and 8, in ms: 5.7, 5.8, 6.0 and 6.4 at 750 tokens, 10.8, 8.8, 8.7 and 10.2 at 8,192."""
    run_bytes: int = 15 << 20
    """Most bytes of one read and copy; a layer group that is larger is read as a whole."""
    direct: bool = True
    """Read past the page cache where the file system allows it. GPU only: on the CPU the page cache is the RAM tier."""
    staging_bytes: int = 1 << 30
    """Page-locked memory, allocated once: what reads land in and what was read before (GPU only)."""
    resident_bytes: int = 2 << 30
    """int8 payloads kept on the computing device between answers."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What follows from a file's header, worked out once per file."""

    header: Header
    layout: Layout
    pieces: tuple[Piece, ...]


@dataclass(order=True, slots=True)
class _Task:
    order: tuple[int, int]
    work: tuple[Load, Run] | None = field(compare=False)


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
        self._known: dict[Identity, _Known] = {}
        self._cuts: dict[int, Cuts] = {}
        """By the number of layers."""
        self._serial = itertools.count()
        self._tasks: PriorityQueue[_Task] = PriorityQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"kv-load-{index}", daemon=True)
            for index in range(settings.threads)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, files: Sequence[ChunkFile | None], *, urgent: bool = True) -> Load:
        """Begin to load these chunks and return at once; None stands for one that is known to be missing.

        A load that is not urgent (neighbours, the next question in the queue) is read when no other one waits.
        Raises torch.OutOfMemoryError if the computing device has no room even with its tier emptied, Cancelled if the
        loader was closed.
        """
        items, ahead = self._items(files)
        cuts, runs = self._divide(items)
        load = Load(self, items, cuts, runs)
        rank = 0 if urgent else 1
        for wave in _by_wave(runs):
            early, late = _told_apart(wave, items[0], ahead) if ahead else ([], wave)
            there = self._send_again(late)
            load.brought([*early, *itertools.compress(late, there)])
            for run, sent in zip(late, there, strict=True):
                if not sent:
                    self._put(_Task((rank, next(self._serial)), (load, run.by_itself())))
        return load

    def mark(self) -> torch.cuda.Event | None:
        """An event behind everything copied so far; None where nothing has to be copied."""
        return self._staging.mark() if self._staging is not None else None

    def computing(self) -> torch.cuda.Stream | None:
        """The current stream of the calling thread; None without a GPU."""
        return torch.cuda.current_stream(self.device) if self._staging is not None else None

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        """As `Residency.give_back`."""
        self.residency.give_back(buffer, keep=keep)

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
        with self._gate:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._tasks.put(_Task((2, next(self._serial)), None))
        for thread in self._threads:
            thread.join()
        self.residency.clear()
        if self._staging is not None:
            self._staging.close()

    def _put(self, task: _Task) -> None:
        with self._gate:  # behind the threads' last task nobody would take it, and somebody would wait for it
            if self._closed:
                raise Cancelled("The loader was closed.")
            self._tasks.put(task)

    def _items(self, files: Sequence[ChunkFile | None]) -> tuple[list[Item], list[Piece]]:
        """Every chunk with its buffer, and what of the first one crosses the bus by now.

        The bus would else stand still until all are looked up: of sixteen chunks an H200 had 93 instead of 96 % of it.
        """
        if self._staging is None or not files:
            items = [self._item(file) for file in files]
            self._borrow(items)
            return items, []
        first = self._item(files[0])
        self._borrow([first])
        try:
            ahead = self._send_ahead(first, _AHEAD * (len(files) - 1))
            others = [self._item(file) for file in files[1:]]
            self._borrow(others)
        except BaseException:  # no room for the others; on its stream the buffer's next user comes after these copies
            if first.buffer is not None:
                self.give_back(first.buffer, keep=False)
            raise
        return [first, *others], ahead

    def _send_ahead(self, item: Item, most: int) -> list[Piece]:
        """Send slices of what the RAM tier holds of a chunk, first layers first, until that many bytes are reached."""
        if item.buffer is None or item.buffer.complete:
            return []
        slices = [Run(item, 0, one, whole) for whole in item.pieces if self._holds(item, whole) for one in whole.slices]
        before = itertools.accumulate((run.piece.nbytes for run in slices), initial=0)
        wanted = [run for run, nbytes in zip(slices, before, strict=False) if nbytes < most]
        return [run.piece for run in itertools.compress(wanted, self._send_again(wanted))]

    def _item(self, file: ChunkFile | None) -> Item:
        if file is None:
            return Item(None, lost=NOT_ON_DISK)
        try:
            identity = identity_of(file.path)
        except OSError as error:
            return Item(file, lost=f"{file.path}: {error.strerror}")
        known = self._known.get(identity)
        # Another header than then: the file was exchanged between the reading of its header and a look at its identity.
        if known is None or known.header is not file.header:
            if len(self._known) >= _KNOWN_FILES:
                self._known.clear()
            known = self._known[identity] = _Known(
                file.header,
                payload.layout(file.header),
                self._cuts_of(file.num_layers).pieces(file.header.groups, self.settings.run_bytes),
            )
        return Item(file, identity, layout=known.layout, pieces=known.pieces)

    def _borrow(self, items: Sequence[Item]) -> None:
        """Give every item that there is a file of its buffer."""
        wanted = [item for item in items if item.file is not None and item.identity is not None]
        buffers = self.residency.borrow([(item.identity, item.file.payload) for item in wanted if item.file])
        for item, buffer in zip(wanted, buffers, strict=True):
            item.buffer = buffer

    def _divide(self, items: Sequence[Item]) -> tuple[tuple[int, ...], list[Run]]:
        """Cut the layers into waves and the files into runs, in the order in which they should come."""
        layers = {item.file.num_layers for item in items if item.file is not None}
        assert len(layers) <= 1, "chunks of different models in one load"
        total = layers.pop() if layers else 1
        staged = self._staging is not None
        coming = [
            (item, piece, whole)
            for item in items
            if item.buffer is not None and not item.buffer.complete
            for whole in item.pieces
            for piece in (whole.slices if staged and self._holds(item, whole) else (whole,))
        ]
        # Steps that bring nothing are joined to the one before, so that everything resident is one wave.
        used = sorted({piece.step for _, piece, _ in coming}) or [0]
        ends = self._cuts_of(total).steps
        cuts = (*(ends[following - 1] for following in used[1:]), total)
        number = {step: wave for wave, step in enumerate(used)}
        runs = [Run(item, number[piece.step], piece, whole) for item, piece, whole in coming]
        return cuts, sorted(runs, key=lambda run: run.wave)

    def _cuts_of(self, layers: int) -> Cuts:
        if layers not in self._cuts:
            self._cuts[layers] = Cuts.of(layers, self.settings.waves, self.settings.ram_waves)
        return self._cuts[layers]

    def _holds(self, item: Item, piece: Piece) -> bool:
        return self._staging is not None and self._staging.arena.holds((item.identity, piece.start, piece.nbytes))

    # Reading ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (work := self._tasks.get().work) is not None:
            try:
                self._deal(*work)
            except BaseException as error:  # even the book-keeping can fail, on a device that has gone
                work[0].fail(error)
            del work  # or an idle thread would keep that answer's chunks in memory until the next one is asked for

    def _deal(self, load: Load, run: Run) -> None:
        if run.item.dropped or run.item.lost is not None:
            load.arrived(run)
            return
        try:
            self._bring(run)
        except (OSError, CorruptKV) as error:
            load.arrived(run, lost=str(error))
        except BaseException as error:  # the waiting thread must learn of it, or it would wait for ever
            load.arrived(run, failure=error)
        else:
            load.arrived(run)

    def _bring(self, run: Run) -> None:
        """Read one run, check it, and have it on the computing device or on its way there."""
        item, staging = run.item, self._staging
        assert item.buffer is not None
        if staging is None:
            self._read(run, item.buffer.data[run.piece.start :])
            return
        if all(self._send_again([run])):  # another load has read it meanwhile
            return
        nbytes = run.piece.nbytes
        extent = staging.room(nbytes)
        if extent is None:  # larger than all page-locked memory: slower, but it goes
            room = aligned(round_up(nbytes))
            self._read(run, room)
            staging.copy(room[:nbytes], run.target)
            staging.stream.synchronize()
            return
        try:
            self._read(run, extent.data)
        except BaseException:
            staging.arena.release(extent)
            raise
        staging.send(extent, nbytes, run.target, run.key)

    def _read(self, run: Run, room: torch.Tensor) -> None:
        file, identity = run.item.file, run.item.identity
        assert file is not None and identity is not None
        piece = run.piece
        self.reader.read(file.path, identity, file.header.data_start + piece.start, piece.nbytes, room)
        self.reader.verify(file.path, identity, piece.groups, room)

    def _send_again(self, runs: Sequence[Run]) -> list[bool]:
        """Send the runs that the RAM tier holds; says of each whether it did."""
        if self._staging is None:
            return [False] * len(runs)
        return self._staging.send_again((run.key, run.offset, run.target) for run in runs)


def _told_apart(runs: Sequence[Run], item: Item, pieces: Sequence[Piece]) -> tuple[list[Run], list[Run]]:
    """Those of these pieces of that chunk, and the others."""
    ours = [run.item is item and any(run.piece is piece for piece in pieces) for run in runs]
    return list(itertools.compress(runs, ours)), [run for run, our in zip(runs, ours, strict=True) if not our]


def _by_wave(runs: Sequence[Run]) -> Iterator[list[Run]]:
    for _, wave in itertools.groupby(runs, key=lambda run: run.wave):
        yield list(wave)
