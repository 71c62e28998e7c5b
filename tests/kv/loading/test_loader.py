"""The load path over real files written by the store: what it brings, in which order, and what it refuses."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from desk_rag.errors import Cancelled
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.kernels import availability
from desk_rag.kv.loading import host_memory as arenas
from desk_rag.kv.loading import loader as loading
from desk_rag.kv.loading.file_io import FileReader, identity_of
from desk_rag.kv.loading.layerwise import CacheTarget, Placer, layerwise
from desk_rag.kv.loading.loader import ChunksLost, Load, Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import LayerScheme, QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import ChunkKV, Int8Layer, KVKey, Namespace, QuantizedKV, RawLayer, TokenHash
from desk_rag.model.language_model import LanguageModel
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv import header as kv_header
from tests.models import DEVICE, FAMILIES, build_model, on_device

SMALL = LoaderSettings(threads=2, waves=3, staging_bytes=1 << 22, resident_bytes=1 << 22)
TEXTS = ["The boiler was serviced.", "Rent is due on Monday.", "Anna moved to Porto, then to Lyon."]


def write(folder: Path, number: int, kv: QuantizedKV) -> ChunkFile:
    key = KVKey(Namespace(f"{1:032x}"), TokenHash(f"{number:032x}"))
    path = folder / "kv" / f"{number}.safetensors"
    chunk_file.write(path, chunk_file.prepare(key, kv, ["c"], 0.1))
    return ChunkFile(path, kv_header.read_header(path))


def some_kv(tokens: int, layers: int = 6, seed: int = 0, raw_layer: int | None = None) -> QuantizedKV:
    """Large enough that a file has several groups."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(layers, 4, tokens, 128, generator=generator)
    values = torch.randn(layers, 4, tokens, 128, generator=generator)
    scheme = tuple(LayerScheme(raw=index == raw_layer) for index in range(layers))
    return quantize(ChunkKV(keys, values), QuantScheme(scheme))


def flat(kv: QuantizedKV) -> list[torch.Tensor]:
    parts = []
    for layer in kv.layers:
        names = ("keys", "values", "key_scale", "key_zero", "value_scale")
        parts += [getattr(layer, name).cpu() for name in (names if isinstance(layer, Int8Layer) else names[:2])]
    return parts


def same(one: QuantizedKV, other: QuantizedKV) -> bool:
    pairs = list(zip(flat(one), flat(other), strict=True))
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def loader() -> Iterator[Loader]:
    with Loader(DEVICE, SMALL) as loader:
        yield loader


def whole(load: Load) -> list[QuantizedKV]:
    load.wait_all()
    return [load.quantized(index) for index in range(len(load.items))]


def test_what_was_written_is_what_arrives(loader: Loader, tmp_path: Path) -> None:
    written = [some_kv(600, seed=1), some_kv(33, seed=2), some_kv(1, seed=3), some_kv(700, seed=4, raw_layer=2)]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(written)]
    assert len(files[0].header.groups) > 1, "the test needs a file of several groups"
    load = loader.start(files)
    assert all(same(a, b) for a, b in zip(whole(load), written, strict=True))
    load.close()


def test_waves_bring_the_layers_they_promise(loader: Loader, tmp_path: Path) -> None:
    written = [some_kv(700, seed=seed) for seed in range(2)]
    load = loader.start([write(tmp_path, number, kv) for number, kv in enumerate(written)])
    assert load.wave_ends[-1] == 6 and len(load.wave_ends) > 1
    assert [layer for wave in range(len(load.wave_ends)) for layer in load.layers_of(wave)] == list(range(6))
    for wave in range(len(load.wave_ends)):
        load.wait(wave)
        for index, kv in enumerate(written):
            got = load.quantized(index)
            for layer in load.layers_of(wave):
                assert torch.equal(got.layers[layer].keys.cpu(), kv.layers[layer].keys)
                assert torch.equal(got.layers[layer].values.cpu(), kv.layers[layer].values)
    load.close()


def test_a_second_load_reads_nothing(loader: Loader, tmp_path: Path) -> None:
    written = [some_kv(40, seed=seed) for seed in range(3)]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(written)]
    first = loader.start(files)
    whole(first)
    first.close()
    read = loader.reader.bytes_read
    assert read == sum(file.payload for file in files)
    second = loader.start(files)
    assert all(same(a, b) for a, b in zip(whole(second), written, strict=True))
    assert loader.reader.bytes_read == read
    second.close()
    loader.forget()
    third = loader.start(files)
    whole(third)
    assert loader.reader.bytes_read == 2 * read
    third.close()


@pytest.mark.parametrize("at", [0.1, 0.6, 0.999])
def test_a_damaged_group_is_lost_and_the_others_arrive(loader: Loader, tmp_path: Path, at: float) -> None:
    written = [some_kv(600, seed=seed) for seed in range(3)]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(written)]
    content = bytearray(files[1].path.read_bytes())
    content[files[1].header.data_start + int(at * files[1].payload)] ^= 4
    files[1].path.write_bytes(content)
    load = loader.start(files)
    with pytest.raises(ChunksLost) as caught:
        load.wait_all()
    assert caught.value.indices == (1,)
    load.replace(1, written[1])
    assert all(same(a, b) for a, b in zip(whole(load), written, strict=True))
    load.close()
    again = loader.start([files[1]])
    with pytest.raises(ChunksLost):
        again.wait_all()
    again.close()


def test_missing_shortened_and_exchanged_files_are_lost(loader: Loader, tmp_path: Path) -> None:
    files = [write(tmp_path, number, some_kv(600, seed=number)) for number in range(4)]
    files[0].path.unlink()
    os.truncate(files[1].path, files[1].path.stat().st_size - 10)
    files[3].path.replace(files[2].path)
    load = loader.start([*files[:3], None])
    with pytest.raises(ChunksLost) as caught:
        load.wait_all()
    assert caught.value.indices == (0, 1, 2, 3)
    load.close()


def test_losers_are_not_read_and_the_kept_come_in_the_new_order(tmp_path: Path) -> None:
    written = [some_kv(200, seed=seed) for seed in range(12)]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(written)]
    with Loader(DEVICE, LoaderSettings(threads=1, waves=3, staging_bytes=1 << 22, resident_bytes=1 << 24)) as loader:
        entered, gate = threading.Event(), threading.Event()
        read = loader.reader.read

        def slow(*arguments: object) -> None:
            entered.set()
            gate.wait(10)
            read(*arguments)  # type: ignore[arg-type]

        loader.reader.read = slow  # type: ignore[method-assign,assignment]
        load = loader.start(files)
        assert entered.wait(10)
        load.keep([7, 2])
        gate.set()
        assert same(whole(load)[0], written[7]) and same(whole(load)[1], written[2])
        assert loader.reader.bytes_read <= sum(files[index].payload for index in (0, 2, 7))
        load.close()


def test_what_is_left_alone_ends_up_resident_and_can_be_taken_back(tmp_path: Path) -> None:
    written = [some_kv(200, seed=seed) for seed in range(3)]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(written)]
    with Loader(DEVICE, LoaderSettings(threads=1, waves=3, staging_bytes=1 << 22, resident_bytes=1 << 24)) as loader:
        gate, read = threading.Event(), loader.reader.read

        def held(*arguments: object) -> None:
            gate.wait(10)
            read(*arguments)  # type: ignore[arg-type]

        loader.reader.read = held  # type: ignore[method-assign,assignment]
        ahead, given_up = loader.start(files[:2], urgent=False), loader.start(files[2:], urgent=False)
        ahead.leave()
        given_up.leave()
        given_up.close()
        assert ahead.take_back()
        ahead.keep([1, None, 0])
        gate.set()
        with pytest.raises(ChunksLost) as caught:
            ahead.wait_all()
        assert caught.value.indices == (1,)
        assert same(ahead.quantized(0), written[1]) and same(ahead.quantized(2), written[0])
        ahead.leave()
        assert not ahead.take_back(), "all has come and was given back"
        brought = loader.reader.bytes_read
        again = loader.start(files[:2])
        assert all(same(a, b) for a, b in zip(whole(again), written[:2], strict=True))
        assert loader.reader.bytes_read == brought
        again.close()


def test_nobody_waits_for_losers(tmp_path: Path) -> None:
    written = [some_kv(200, seed=seed) for seed in range(2)]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(written)]
    with Loader(DEVICE, LoaderSettings(threads=2, waves=3, staging_bytes=1 << 22, resident_bytes=1 << 24)) as loader:
        gate, read = threading.Event(), loader.reader.read

        def held(path: Path, *arguments: object) -> None:
            if path == files[0].path:
                gate.wait(10)
            read(path, *arguments)  # type: ignore[arg-type]

        loader.reader.read = held  # type: ignore[method-assign,assignment]
        load = loader.start(files)
        load.keep([1])
        assert same(whole(load)[0], written[1]), "while the other one's read hangs"
        assert load.waited() >= 0
        gate.set()
        load.close()


@pytest.mark.parametrize("run_bytes", [1, 1 << 20, 1 << 30])
@pytest.mark.parametrize("waves", [1, 4, 50])
def test_every_division_brings_the_same(tmp_path: Path, run_bytes: int, waves: int) -> None:
    written = [some_kv(700, seed=1), some_kv(700, seed=2, raw_layer=2)]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(written)]
    with Loader(DEVICE, LoaderSettings(threads=2, waves=waves, run_bytes=run_bytes, resident_bytes=1 << 24)) as loader:
        load = loader.start(files)
        assert load.wave_ends[-1] == 6 and list(load.wave_ends) == sorted(set(load.wave_ends))
        assert load.nbytes == sum(file.payload for file in files)
        assert all(same(a, b) for a, b in zip(whole(load), written, strict=True))
        load.close()


def test_closing_early_cancels_and_leaves_the_loader_usable(loader: Loader, tmp_path: Path) -> None:
    written = [some_kv(600, seed=seed) for seed in range(6)]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(written)]
    for _ in range(5):
        loader.start(files).close()
    load = loader.start(files)
    assert all(same(a, b) for a, b in zip(whole(load), written, strict=True))
    load.close()
    load.close()


def test_more_than_fits_the_memory_still_loads(tmp_path: Path) -> None:
    written = [some_kv(600, seed=seed) for seed in range(5)]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(written)]
    with Loader(DEVICE, LoaderSettings(threads=3, waves=2, staging_bytes=1 << 21, resident_bytes=1 << 20)) as loader:
        load = loader.start(files)
        assert all(same(a, b) for a, b in zip(whole(load), written, strict=True))
        load.close()


def test_urgent_loads_overtake_waiting_ones(tmp_path: Path) -> None:
    files = [write(tmp_path, number, some_kv(64, seed=number)) for number in range(9)]
    order: list[Path] = []
    with Loader(DEVICE, LoaderSettings(threads=1, staging_bytes=1 << 22, resident_bytes=1 << 24)) as loader:
        entered, gate = threading.Event(), threading.Event()
        read = loader.reader.read

        def noted(path: Path, *arguments: object) -> None:
            order.append(path)
            entered.set()
            gate.wait(10)
            read(path, *arguments)  # type: ignore[arg-type]

        loader.reader.read = noted  # type: ignore[method-assign,assignment]
        later = loader.start(files[:8], urgent=False)
        assert entered.wait(10)
        now = loader.start(files[8:])
        gate.set()
        now.wait_all()
        later.wait_all()
        assert order.index(files[8].path) == 1
        now.close()
        later.close()


def test_a_failing_thread_is_heard(tmp_path: Path) -> None:
    file = write(tmp_path, 1, some_kv(10))
    with Loader(DEVICE, SMALL) as loader:

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        loader.reader.read = broken  # type: ignore[method-assign,assignment]
        load = loader.start([file])
        with pytest.raises(RuntimeError, match="reader thread"):
            load.wait_all()
        load.close()


def test_book_keeping_that_fails_is_heard(tmp_path: Path) -> None:
    file = write(tmp_path, 1, some_kv(10))
    heard: list[str] = []

    def wait(load: Load) -> None:
        try:
            load.wait_all()
        except RuntimeError as error:
            heard.append(str(error.__cause__))

    with Loader(DEVICE, SMALL) as loader:
        with pytest.MonkeyPatch.context() as patch:

            def gone() -> None:
                raise RuntimeError("the device is gone")

            patch.setattr(loader, "mark", gone)
            load = loader.start([file])
            waiting = threading.Thread(target=wait, args=(load,), daemon=True)
            waiting.start()
            waiting.join(10)
        load.close()
        assert heard == ["the device is gone"]
        again = loader.start([file])
        assert same(whole(again)[0], some_kv(10)), "the threads go on"
        again.close()


def test_a_closed_loader_takes_no_more_work(tmp_path: Path) -> None:
    loader = Loader(DEVICE, SMALL)
    file = write(tmp_path, 1, some_kv(10))
    loader.close()
    loader.close()
    with pytest.raises(Cancelled):
        loader.start([file])


def test_idle_threads_hold_nothing_of_the_last_load(loader: Loader, tmp_path: Path) -> None:
    load = loader.start([write(tmp_path, 1, some_kv(10))])
    load.wait_all()
    load.close()
    known = weakref.ref(load)
    del load
    until = time.monotonic() + 5
    while known() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert known() is None


def test_more_files_than_are_known_at_once(loader: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_KNOWN_FILES", 1)
    written = [some_kv(10, seed=seed) for seed in range(3)]
    load = loader.start([write(tmp_path, number, kv) for number, kv in enumerate(written)])
    assert all(same(a, b) for a, b in zip(whole(load), written, strict=True))
    load.close()


def test_an_outdated_header_is_believed_once_only(loader: Loader, tmp_path: Path) -> None:
    outdated = write(tmp_path, 1, some_kv(10, seed=1))
    outdated.path.unlink()
    now = write(tmp_path, 1, some_kv(10, seed=2))
    load = loader.start([outdated])
    with pytest.raises(ChunksLost):
        load.wait_all()
    load.close()
    load = loader.start([now])
    assert same(whole(load)[0], some_kv(10, seed=2))
    load.close()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 100_000])
def test_reading_is_exact_at_every_length(tmp_path: Path, direct: bool, length: int) -> None:
    path = tmp_path / "file"
    content = os.urandom(4096 + length)
    path.write_bytes(content)
    reader, into = FileReader(direct=direct), arenas.aligned(arenas.round_up(length))
    reader.read(path, identity_of(path), 4096, length, into)
    assert into[:length].numpy().tobytes() == content[4096:]


# Placing while loading --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return on_device(build_model(next(family for family in FAMILIES if family.name == request.param)))


@pytest.mark.parametrize("broken", [False, True])
def test_the_forward_pass_over_a_load_equals_the_one_over_a_stitched_cache(
    loader: Loader, model: LanguageModel, tmp_path: Path, broken: bool
) -> None:
    prefix = prefill_prefix(model)
    ids = [model.prompt.chunk_ids(text) for text in TEXTS]
    scheme = QuantScheme((LayerScheme(), LayerScheme(raw=True), LayerScheme(group=16)))
    chunks = [quantize(prefill_chunk(model, prefix, chunk), scheme) for chunk in ids]
    files = [write(tmp_path, number, kv) for number, kv in enumerate(chunks)]
    question = torch.tensor(model.prompt.question_ids("When is rent due?"), device=DEVICE)
    where = plan(prefix.num_tokens, [len(chunk) for chunk in ids])
    size = where.num_slots + len(question)
    tables = build_tables(model, size)
    expected_cache, cache = SlabCache(model, size), SlabCache(model, size)
    stitch(model, where, prefix, chunks, tables, expected_cache)
    expected = model.forward_all(question, expected_cache, where.next_position)

    if broken:
        files[2].path.unlink()
    load = loader.start(files)
    if broken:
        with pytest.raises(ChunksLost) as caught, layerwise(model, load, where, prefix, CacheTarget.of(tables, cache)):
            model.forward_all(question, cache, where.next_position)
        assert caught.value.indices == (2,)
        load.replace(2, chunks[2])
    with layerwise(model, load, where, prefix, CacheTarget.of(tables, cache)):
        got = model.forward_all(question, cache, where.next_position)
    load.close()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert cache.get_seq_length() == size


def test_placing_without_a_forward_pass(loader: Loader, model: LanguageModel, tmp_path: Path) -> None:
    prefix = prefill_prefix(model)
    chunk = quantize(prefill_chunk(model, prefix, model.prompt.chunk_ids(TEXTS[0])), QuantScheme.uniform(3))
    where = plan(prefix.num_tokens, [chunk.num_tokens] * 2)
    tables = build_tables(model, where.num_slots)
    expected, cache = SlabCache(model, where.num_slots), SlabCache(model, where.num_slots)
    stitch(model, where, prefix, [chunk, chunk], tables, expected)
    load = loader.start([write(tmp_path, 1, chunk)] * 2)
    Placer(load, where, CacheTarget.of(tables, cache)).place_all()
    load.close()
    start = prefix.num_tokens
    for mine, reference in zip(cache.layers, expected.layers, strict=True):
        torch.testing.assert_close(mine.key_slab[:, :, start:], reference.key_slab[:, :, start:])
        torch.testing.assert_close(mine.value_slab[:, :, start:], reference.value_slab[:, :, start:])


def test_a_wave_without_anything_for_the_kernel(
    loader: Loader, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = prefill_prefix(model)
    scheme = QuantScheme((LayerScheme(raw=True),) * model.spec.num_layers)
    chunk = quantize(prefill_chunk(model, prefix, model.prompt.chunk_ids(TEXTS[0])), scheme)
    where = plan(prefix.num_tokens, [chunk.num_tokens])
    tables, cache = build_tables(model, where.num_slots), SlabCache(model, where.num_slots)
    monkeypatch.setattr(availability, "available", lambda _device, **_options: True)
    load = loader.start([None])
    load.replace(0, chunk)
    Placer(load, where, CacheTarget.of(tables, cache)).place_all()
    load.close()
    for index, layer in enumerate(cache.layers):
        coded = chunk.layers[index]
        assert isinstance(coded, RawLayer)
        placed = layer.value_slab[0, :, prefix.num_tokens :]
        torch.testing.assert_close(placed, coded.values.to(placed), rtol=0, atol=0)
