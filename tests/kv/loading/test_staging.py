"""From RAM to where it is computed with: in slices, first layers first, beginning before all chunks are looked up."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from desk_rag.kv.loading.device_cache import DevicePayloadCache
from desk_rag.kv.loading.file_io import Identity
from desk_rag.kv.loading.host_memory import Arena
from desk_rag.kv.loading.load import ChunkLoad
from desk_rag.kv.loading.loader import Load, Loader, LoaderSettings
from desk_rag.kv.loading.staging import Staging
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.types import QuantizedKV
from tests.kv.loading.test_loader import same, some_kv, whole, write

LAYERS = 12


class Done:
    """An event behind copies that were made at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class OnHost(Staging):
    """The real one with a stand-in for the bus: torch's stream None changes nothing, copies are made at once."""

    def __init__(self, nbytes: int) -> None:
        self.arena = Arena(nbytes, pinned=True)
        self.stream = None  # type: ignore[assignment]
        self._copying = deque()
        self._lock = threading.Lock()
        self.log: list[tuple[object, int, int]] = []
        """(key, offset, bytes) of what was in RAM and sent again."""

    def mark(self) -> torch.cuda.Event:
        return Done()  # type: ignore[return-value]

    def send_again(self, requests: Iterable[tuple[Hashable, int, torch.Tensor]]) -> list[bool]:
        listed = list(requests)
        sent = super().send_again(listed)
        copied = itertools.compress(listed, sent)
        self.log.extend((key, offset, int(target.shape[0])) for key, offset, target in copied)
        return sent


class HostLoader(Loader):
    """A loader that takes a GPU's way through host memory."""

    def __init__(self, settings: LoaderSettings) -> None:
        super().__init__(torch.device("cpu"), settings)
        self.bus = OnHost(settings.staging_bytes)
        self._staging = self.bus
        self.payload_cache = DevicePayloadCache(settings.resident_bytes, self.device, self.bus.stream)

    def computing(self) -> torch.cuda.Stream | None:
        return None


def settings(waves: int = 1, ram_waves: int = 3, run_mib: int = 64) -> LoaderSettings:
    return LoaderSettings(
        threads=2, waves=waves, ram_waves=ram_waves, run_bytes=run_mib << 20, staging_bytes=1 << 26,
        resident_bytes=1 << 26,
    )  # fmt: skip


@pytest.fixture(scope="module")
def written() -> list[QuantizedKV]:
    """Twelve groups of a layer each and more."""
    return [some_kv(1100, layers=LAYERS, seed=1), some_kv(1030, layers=LAYERS, seed=2, raw_layer=4)]


@pytest.fixture(scope="module")
def files(written: Sequence[QuantizedKV], tmp_path_factory: pytest.TempPathFactory) -> list[ChunkFile]:
    place = tmp_path_factory.mktemp("staging")
    chunk_files = [write(place, number, kv) for number, kv in enumerate(written)]
    assert all(len(file.header.groups) > 8 for file in chunk_files), "the tests need files of many groups"
    return chunk_files


def hot(loader: HostLoader, files: Sequence[ChunkFile]) -> Load:
    """A load of what is in RAM and nowhere else."""
    loader.forget(staged=False)
    loader.bus.log.clear()
    return loader.start(files)


def loaded(load: Load, written: Sequence[QuantizedKV]) -> bool:
    right = all(same(one, other) for one, other in zip(whole(load), written, strict=True))
    load.close()
    return right


@pytest.mark.parametrize(
    ("waves", "ram_waves", "run_mib"), [(1, 4, 64), (2, 3, 2), (4, 1, 64), (5, 7, 64), (50, 50, 1), (4, 4, 8)]
)
def test_every_division_brings_the_same_from_disk_and_from_ram(
    files: list[ChunkFile], written: list[QuantizedKV], waves: int, ram_waves: int, run_mib: int
) -> None:
    with HostLoader(settings(waves, ram_waves, run_mib)) as loader:
        cold = loader.start(files)
        assert cold.wave_ends[-1] == LAYERS and list(cold.wave_ends) == sorted(set(cold.wave_ends))
        assert loaded(cold, written)
        read = loader.reader.bytes_read
        again = hot(loader, files)
        assert again.wave_ends[-1] == LAYERS and list(again.wave_ends) == sorted(set(again.wave_ends))
        assert loaded(again, written)
        assert loader.reader.bytes_read == read == sum(file.payload for file in files)
        assert sum(nbytes for _, _, nbytes in loader.bus.log) == read, "each byte crosses once"


def test_what_is_in_ram_comes_in_its_own_waves_whatever_the_drive_likes(
    files: list[ChunkFile], written: list[QuantizedKV]
) -> None:
    with HostLoader(settings(waves=1, ram_waves=4)) as loader:
        cold = loader.start(files)
        assert cold.wave_ends == (LAYERS,), "one read for each"
        assert loaded(cold, written)
        load = hot(loader, [files[1]])
        assert load.wave_ends == (3, 6, 9, 12)
        offsets = [offset for _, offset, _ in loader.bus.log]
        assert offsets == sorted(offsets) and len(offsets) == 4
        for wave in range(4):
            load.wait(wave)
        assert loaded(load, written[1:])


def test_a_large_load_comes_from_ram_in_more_waves(
    files: list[ChunkFile], written: list[QuantizedKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = sum(file.payload for file in files)
    monkeypatch.setattr("desk_rag.kv.loading.loader._LARGE_BYTES", both)
    with HostLoader(replace(settings(waves=1, ram_waves=2), large_waves=6)) as loader:
        cold = loader.start(files)
        assert cold.wave_ends == (LAYERS,), "from the drive in as many as ever"
        assert loaded(cold, written)
        large = hot(loader, files)
        assert large.wave_ends == (2, 4, 6, 8, 10, 12)
        offsets = [offset for key, offset, _ in loader.bus.log if key == loader.bus.log[0][0]]
        assert offsets == sorted(offsets) and len(offsets) == 6
        for wave in range(6):
            large.wait(wave)
        assert loaded(large, written)
        assert sum(nbytes for _, _, nbytes in loader.bus.log) == both, "each byte crosses once"
        small = hot(loader, files[:1])
        assert small.wave_ends == (6, 12)
        assert loaded(small, written[:1])


def test_half_in_ram_and_half_on_the_drive(files: list[ChunkFile], written: list[QuantizedKV]) -> None:
    with HostLoader(settings(waves=2, ram_waves=3)) as loader:
        assert loaded(loader.start(files[1:]), written[1:])
        read = loader.reader.bytes_read
        load = hot(loader, files)
        assert load.wave_ends == (4, 6, 8, 12), "of both"
        for wave in range(4):
            load.wait(wave)
            for index, kv in enumerate(written):
                got = load.quantized(index)
                for layer in load.layers_of(wave):
                    assert torch.equal(got.layers[layer].values, kv.layers[layer].values)
        assert loaded(load, written)
        assert loader.reader.bytes_read == read + files[0].payload


def test_what_leaves_the_ram_meanwhile_is_read(
    files: list[ChunkFile], written: list[QuantizedKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostLoader(settings(waves=1, ram_waves=3)) as loader:
        monkeypatch.setattr(loader.bus.arena, "holds", lambda _key: True, raising=False)
        load = loader.start(files)
        assert load.wave_ends == (4, 8, 12)
        assert loaded(load, written)
        assert loader.reader.bytes_read == sum(file.payload for file in files)


def test_the_first_chunk_is_on_its_way_before_the_others_are_looked_up(
    files: list[ChunkFile], written: list[QuantizedKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostLoader(settings(waves=1, ram_waves=12)) as loader:
        assert loaded(loader.start(files), written)
        sent_by_then: list[list[tuple[object, int, int]]] = []
        item = loader._chunk_load

        def noted(file: ChunkFile | None) -> ChunkLoad:
            sent_by_then.append(list(loader.bus.log))
            return item(file)

        monkeypatch.setattr(loader, "_chunk_load", noted)
        load = hot(loader, files)
        before_first, before_second = sent_by_then
        assert not before_first
        assert [offset for _, offset, _ in before_second] == [0], "a MiB for each other chunk, in whole groups"
        assert len(set(loader.bus.log)) == len(loader.bus.log) == 2 * len(load.wave_ends), "nothing is sent twice"
        assert loaded(load, written)
        alone = hot(loader, files[:1])
        assert len(loader.bus.log) == len(set(loader.bus.log)) == len(alone.wave_ends)
        assert loaded(alone, written[:1])


def test_no_room_for_the_others_leaves_nothing_lent(
    files: list[ChunkFile], written: list[QuantizedKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostLoader(settings()) as loader:
        assert loaded(loader.start(files), written)
        payload_cache = loader.payload_cache
        assert isinstance(payload_cache, DevicePayloadCache)
        borrow = payload_cache.borrow

        def full(wanted: Sequence[tuple[Identity, int]]) -> object:
            if wanted[0][1] == files[1].payload:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return borrow(wanted)

        with monkeypatch.context() as patch:
            patch.setattr(payload_cache, "borrow", full)
            with pytest.raises(torch.OutOfMemoryError):
                hot(loader, files)
        assert payload_cache._lent_bytes == 0 and payload_cache._kept_bytes == 0
        assert loaded(hot(loader, files), written)


def test_a_missing_first_chunk_is_no_obstacle(files: list[ChunkFile], written: list[QuantizedKV]) -> None:
    with HostLoader(settings()) as loader:
        assert loaded(loader.start(files), written)
        load = hot(loader, [None, files[1]])  # type: ignore[list-item]
        load.replace(0, written[0])
        assert loaded(load, written)
        empty = loader.start([])
        empty.wait_all()
        empty.close()


@pytest.mark.gpu
def test_a_gpu_is_brought_the_same(files: list[ChunkFile], written: list[QuantizedKV], tmp_path: Path) -> None:
    more = [some_kv(1100, layers=LAYERS, seed=number) for number in range(8)]
    wanted = [*files, *(write(tmp_path, number, kv) for number, kv in enumerate(more))]
    chosen = LoaderSettings(threads=2, waves=2, ram_waves=3, staging_bytes=1 << 28, resident_bytes=1 << 28)
    with Loader(torch.device("cuda"), chosen) as loader:
        assert loaded(loader.start(wanted), [*written, *more])
        for _ in range(4):
            loader.forget(staged=False)
            assert loaded(loader.start(wanted), [*written, *more])
