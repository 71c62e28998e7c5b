"""Load KV files to the computing device asynchronously, the first layers of every chunk first.

A wave is a range of layers of all chunks. Reader threads fill page-locked memory, int8 payloads are copied to the GPU
on a separate stream, and a caller waits only for the wave it needs. Without a GPU the threads read straight into the
memory that is computed on. (Layer-wise like the start_load and wait_for_layer of KV connectors; loading while another
answer decodes as in MatKV.) `layerwise` places what was loaded into the cache.

A missing, changed or damaged file never reaches an answer: waiting for its wave raises ChunksLost; the caller prefills
those chunks, passes them to `Load.replace` and continues.
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
from desk_rag.kv.loading.costs import Tier
from desk_rag.kv.loading.device_cache import Buffer, DevicePayloadCache, HostPayloadCache, PayloadCache
from desk_rag.kv.loading.file_io import FileReader, Identity, identity_of, is_in_page_cache
from desk_rag.kv.loading.host_memory import aligned, round_up
from desk_rag.kv.loading.load import NOT_ON_DISK, ChunkLoad, ChunksLost, Load, ReadRange, Transfer
from desk_rag.kv.loading.schedule import LoadSchedule
from desk_rag.kv.loading.staging import Staging
from desk_rag.kv.payload import ChunkFile, KVHeader, PayloadLayout

__all__ = ["ChunksLost", "Load", "Loader", "LoaderSettings"]

_KNOWN_FILES = 4096
_AHEAD_BYTES = 1 << 20
"""Bytes copied in the 20 us that it takes to look up one more chunk (at 50 GB/s)."""
_LARGE_BYTES = 384 << 20
"""Bytes from which a load is large: 7 ms at 50 GB/s."""


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """Settings of the loader; `desk-rag bench load` measures others on a drive."""

    threads: int = 8
    waves: int = 1
    """Number of waves that are read from disk. With more waves computation starts earlier, and reads are shorter
    (bench/LOG.md, "Waves of the loader")."""
    ram_waves: int = 2
    """Number of waves that are copied from RAM (GPU only), independent of the drive."""
    large_waves: int = 7
    """The same for a large load, such as that of several questions: a pass waits for the first wave, and runs on for
    as long as the last one takes it."""
    run_bytes: int = 15 << 20
    """Maximum bytes of one read and copy; a larger layer group is still read at once."""
    direct: bool = True
    """Bypass the page cache where the file system allows it (GPU only; on a CPU the page cache is the RAM tier)."""
    staging_bytes: int = 1 << 30
    """Size of the page-locked memory for reads and for the RAM tier, allocated once (GPU only)."""
    resident_bytes: int = 2 << 30
    """Bytes of int8 payloads kept on the computing device between answers."""


@dataclass(frozen=True, slots=True)
class _FileFacts:
    """Facts computed once per file from its header."""

    header: KVHeader
    layout: PayloadLayout
    read_ranges: tuple[ReadRange, ...]


@dataclass(order=True, slots=True)
class _Task:
    order: tuple[int, int]
    work: tuple[Load, Transfer] | None = field(compare=False)


class Loader:
    """Reader threads and memory tiers; one per process and device. A context manager."""

    def __init__(self, device: torch.device, settings: LoaderSettings = LoaderSettings()) -> None:
        self.device = device
        self.settings = settings
        on_gpu = device.type == "cuda"
        self.reader = FileReader(direct=settings.direct and on_gpu)
        self._staging = Staging(device, settings.staging_bytes) if on_gpu else None
        self.payload_cache: PayloadCache = (
            DevicePayloadCache(settings.resident_bytes, device, self._staging.stream)
            if self._staging is not None
            else HostPayloadCache(settings.resident_bytes)
        )
        self._facts: dict[Identity, _FileFacts] = {}
        self._schedules: dict[int, LoadSchedule] = {}
        """Load schedule by number of layers."""
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
        """Start loading these chunks and return at once; None stands for a chunk known to be missing.

        A load that is not urgent (a prefetch) is read when no other load waits. Raises torch.OutOfMemoryError if the
        computing device has too little memory even without cached payloads, and Cancelled if the loader was closed.
        """
        large = sum(file.payload for file in files if file is not None) >= _LARGE_BYTES
        items, ahead = self._load_chunks(files, large)
        wave_ends, transfers = self._plan_transfers(items, large)
        load = Load(self, items, wave_ends, transfers)
        rank = 0 if urgent else 1
        for wave in _by_wave(transfers):
            early, late = _partition(wave, items[0], ahead) if ahead else ([], wave)
            in_ram = self._send_again(late)
            load.completed([*early, *itertools.compress(late, in_ram)])
            for transfer, sent in zip(late, in_ram, strict=True):
                if not sent:
                    self._enqueue(_Task((rank, next(self._serial)), (load, transfer.as_read())))
        return load

    def tier_of(self, file: ChunkFile) -> Tier:
        """Return where the nearest copy of a chunk's KV is now."""
        item = self._chunk_load(file)
        if item.identity is None:
            return Tier.DRIVE
        if self.payload_cache.holds(item.identity):
            return Tier.DEVICE
        in_ram = (
            is_in_page_cache(file.path, file.header.data_start)
            if self._staging is None
            else all(self._holds(item, part) for part in item.read_ranges)
        )
        return Tier.RAM if in_ram else Tier.DRIVE

    def mark(self) -> torch.cuda.Event | None:
        """Record an event behind every copy enqueued so far; None without a GPU."""
        return self._staging.mark() if self._staging is not None else None

    def computing(self) -> torch.cuda.Stream | None:
        """Current stream of the calling thread; None without a GPU."""
        return torch.cuda.current_stream(self.device) if self._staging is not None else None

    def give_back(self, buffer: Buffer, *, keep: bool) -> None:
        """Return a borrowed buffer; `keep` if it is complete and verified."""
        self.payload_cache.give_back(buffer, keep=keep)

    def forget(self, *, staged: bool = True) -> None:
        """Empty the memory tiers and verify files again; without `staged`, keep the RAM tier and verification."""
        self.payload_cache.clear()
        if staged:
            self.reader.forget_verified()
        if staged and self._staging is not None:
            self._staging.drain()
            self._staging.arena.clear()

    def close(self) -> None:
        """Stop the threads and free all memory. Open loads must be closed first."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._tasks.put(_Task((2, next(self._serial)), None))
        for thread in self._threads:
            thread.join()
        self.payload_cache.clear()
        if self._staging is not None:
            self._staging.close()

    def _enqueue(self, task: _Task) -> None:
        with self._gate:  # a task behind the stop markers would never run, and its load would wait forever
            if self._closed:
                raise Cancelled("The loader was closed.")
            self._tasks.put(task)

    def _load_chunks(self, files: Sequence[ChunkFile | None], large: bool) -> tuple[list[ChunkLoad], list[ReadRange]]:
        """Look up every chunk and its buffer; also returns the slices of the first chunk that are being copied.

        Copying starts with the first chunk so that the bus is not idle while the others are looked up.
        """
        if self._staging is None or not files:
            items = [self._chunk_load(file) for file in files]
            self._borrow(items)
            return items, []
        first = self._chunk_load(files[0])
        self._borrow([first])
        try:
            ahead = self._send_ahead(first, _AHEAD_BYTES * (len(files) - 1), large)
            others = [self._chunk_load(file) for file in files[1:]]
            self._borrow(others)
        except BaseException:  # no room for the others; the buffer's next user follows these copies in stream order
            if first.buffer is not None:
                self.give_back(first.buffer, keep=False)
            raise
        return [first, *others], ahead

    def _send_ahead(self, item: ChunkLoad, max_bytes: int, large: bool) -> list[ReadRange]:
        """Copy slices of a chunk from the RAM tier, first layers first, up to about `max_bytes`."""
        if item.buffer is None or item.buffer.complete:
            return []
        in_ram = [parent for parent in item.read_ranges if self._holds(item, parent)]
        slices = [Transfer(item, 0, part, parent) for parent in in_ram for part in _slices(parent, large)]
        before = itertools.accumulate((transfer.part.nbytes for transfer in slices), initial=0)
        early = [transfer for transfer, nbytes in zip(slices, before, strict=False) if nbytes < max_bytes]
        return [transfer.part for transfer in itertools.compress(early, self._send_again(early))]

    def _chunk_load(self, file: ChunkFile | None) -> ChunkLoad:
        if file is None:
            return ChunkLoad(None, lost=NOT_ON_DISK)
        try:
            identity = identity_of(file.path)
        except OSError as error:
            return ChunkLoad(file, lost=f"{file.path}: {error.strerror}")
        facts = self._facts.get(identity)
        # A different header means that the file was replaced between reading its header and this call.
        if facts is None or facts.header is not file.header:
            if len(self._facts) >= _KNOWN_FILES:
                self._facts.clear()
            facts = self._facts[identity] = _FileFacts(
                file.header,
                payload.layout(file.header),
                self._schedule_of(file.num_layers).read_ranges(file.header.groups, self.settings.run_bytes),
            )
        return ChunkLoad(file, identity, layout=facts.layout, read_ranges=facts.read_ranges)

    def _borrow(self, items: Sequence[ChunkLoad]) -> None:
        """Borrow a buffer for every item that has a file."""
        with_file = [item for item in items if item.file is not None and item.identity is not None]
        buffers = self.payload_cache.borrow([(item.identity, item.file.payload) for item in with_file if item.file])
        for item, buffer in zip(with_file, buffers, strict=True):
            item.buffer = buffer

    def _plan_transfers(self, items: Sequence[ChunkLoad], large: bool) -> tuple[tuple[int, ...], list[Transfer]]:
        """Divide the layers into waves and the files into transfers, in the order of loading."""
        layers = {item.file.num_layers for item in items if item.file is not None}
        assert len(layers) <= 1, "chunks of different models in one load"
        total = layers.pop() if layers else 1
        staged = self._staging is not None
        ranges = [
            (item, part, parent)
            for item in items
            if item.buffer is not None and not item.buffer.complete
            for parent in item.read_ranges
            for part in (_slices(parent, large) if staged and self._holds(item, parent) else (parent,))
        ]
        # Join steps without transfers to the step before, so that a fully resident load is one wave.
        used = sorted({part.step for _, part, _ in ranges}) or [0]
        ends = self._schedule_of(total).step_ends
        wave_ends = (*(ends[following - 1] for following in used[1:]), total)
        number = {step: wave for wave, step in enumerate(used)}
        transfers = [Transfer(item, number[part.step], part, parent) for item, part, parent in ranges]
        return wave_ends, sorted(transfers, key=lambda transfer: transfer.wave)

    def _schedule_of(self, layers: int) -> LoadSchedule:
        if layers not in self._schedules:
            self._schedules[layers] = LoadSchedule.of(
                layers, self.settings.waves, self.settings.ram_waves, self.settings.large_waves
            )
        return self._schedules[layers]

    def _holds(self, item: ChunkLoad, part: ReadRange) -> bool:
        return self._staging is not None and self._staging.arena.holds((item.identity, part.start, part.nbytes))

    # Reading ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (work := self._tasks.get().work) is not None:
            try:
                self._process(*work)
            except BaseException as error:  # even book-keeping can fail, for example when the GPU is lost
                work[0].fail(error)
            del work  # an idle thread must not keep the chunks of its last load in memory

    def _process(self, load: Load, transfer: Transfer) -> None:
        if transfer.item.dropped or transfer.item.lost is not None:
            load.settle(transfer)
            return
        try:
            self._fetch(transfer)
        except (OSError, CorruptKV) as error:
            load.settle(transfer, lost=str(error))
        except BaseException as error:  # pass it to the waiting thread, which would otherwise wait forever
            load.settle(transfer, failure=error)
        else:
            load.settle(transfer)

    def _fetch(self, transfer: Transfer) -> None:
        """Read and verify one range; it is then on the computing device or being copied there."""
        item, staging = transfer.item, self._staging
        assert item.buffer is not None
        if staging is None:
            self._read(transfer, item.buffer.data[transfer.part.start :])
            return
        if all(self._send_again([transfer])):  # another load has read it in the meantime
            return
        nbytes = transfer.part.nbytes
        extent = staging.room(nbytes)
        if extent is None:  # larger than all page-locked memory: copy from ordinary memory, which is slower
            buffer = aligned(round_up(nbytes))
            self._read(transfer, buffer)
            staging.copy(buffer[:nbytes], transfer.target)
            staging.stream.synchronize()
            return
        try:
            self._read(transfer, extent.data)
        except BaseException:
            staging.arena.release(extent)
            raise
        staging.send(extent, nbytes, transfer.target, transfer.key)

    def _read(self, transfer: Transfer, into: torch.Tensor) -> None:
        file, identity = transfer.item.file, transfer.item.identity
        assert file is not None and identity is not None
        part = transfer.part
        self.reader.read(file.path, identity, file.header.data_start + part.start, part.nbytes, into)
        self.reader.verify(file.path, identity, part.groups, into)

    def _send_again(self, transfers: Sequence[Transfer]) -> list[bool]:
        """Copy the transfers whose bytes the RAM tier has; returns which were copied."""
        if self._staging is None:
            return [False] * len(transfers)
        return self._staging.send_again((transfer.key, transfer.offset, transfer.target) for transfer in transfers)


def _slices(parent: ReadRange, large: bool) -> tuple[ReadRange, ...]:
    return parent.thin_slices if large else parent.slices


def _partition(
    transfers: Sequence[Transfer], item: ChunkLoad, parts: Sequence[ReadRange]
) -> tuple[list[Transfer], list[Transfer]]:
    """Separate the transfers of these parts of `item` from the others."""
    matches = [transfer.item is item and any(transfer.part is part for part in parts) for transfer in transfers]
    others = [transfer for transfer, match in zip(transfers, matches, strict=True) if not match]
    return list(itertools.compress(transfers, matches)), others


def _by_wave(transfers: Sequence[Transfer]) -> Iterator[list[Transfer]]:
    for _, wave in itertools.groupby(transfers, key=lambda transfer: transfer.wave):
        yield list(wave)
