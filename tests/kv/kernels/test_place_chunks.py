"""Kernel A against the torch reference in Triton's interpreter: index arithmetic, masks and rounding, not speed.

Triton chooses the interpreter at its first import, so the variable is set before it. Where a GPU is there, the same
checks run compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.kernels import place_chunks
from desk_rag.kv.loading import layerwise
from desk_rag.kv.loading.file_io import Identity
from desk_rag.kv.loading.load import ChunksLost
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile, LayerGroup, as_quantized, layout
from desk_rag.kv.positions import Placement, plan
from desk_rag.kv.quant import LayerScheme, QuantScheme, keep_exact, quantize
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.stitch import place_layer
from desk_rag.kv.types import ChunkKV, Int8Layer, KVKey, Namespace, QuantizedKV, TokenHash
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv import header as kv_header

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
UNTOUCHED = 777.0


def a_cache(
    layers: int, heads: int, dim: int, capacity: int, dtype: torch.dtype, device: torch.device = DEVICE
) -> SlabCache:
    spec = SimpleNamespace(num_layers=layers, num_kv_heads=heads, head_dim=dim, dtype=dtype)
    cache = SlabCache(SimpleNamespace(spec=spec, device=device), capacity)  # type: ignore[arg-type]
    for layer in cache.layers:
        layer.key_slab.fill_(UNTOUCHED)
        layer.value_slab.fill_(UNTOUCHED)
    return cache


def some_tables(
    positions: int, half: int, table_of_layer: tuple[int, ...], device: torch.device = DEVICE
) -> RotaryTables:
    """As `rope.build_tables` makes them; table 1 has another base and an attention scaling, as YaRN and Gemma 3 do."""
    cos, sin = [], []
    for base, scaling in ((10_000.0, 1.0), (1_000_000.0, 1.1))[: max(table_of_layer) + 1]:
        rates = base ** -(torch.arange(half, dtype=torch.float32) / half)
        angle = torch.arange(positions, dtype=torch.float32)[:, None] * rates
        cos.append((angle.cos() * scaling).contiguous().to(device))
        sin.append((angle.sin() * scaling).contiguous().to(device))
    return RotaryTables(tuple(cos), tuple(sin), table_of_layer)


def some_chunk(
    layers: int, heads: int, tokens: int, dim: int, group: int | None = None, seed: int = 0,
    device: torch.device = DEVICE,
) -> QuantizedKV:  # fmt: skip
    """Random keys with channel offsets like those of a `k_proj` bias, coded as the product codes them."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(layers, heads, tokens, dim, generator=generator)
    keys += 20 * torch.randn(layers, heads, 1, dim, generator=generator)
    values = torch.randn(layers, heads, tokens, dim, generator=generator)
    return quantize(ChunkKV(keys.to(device), values.to(device)), QuantScheme.uniform(layers, LayerScheme(group=group)))


def check(
    lengths: list[int], *, layers: int = 2, heads: int = 2, dim: int = 64, half: int | None = None,
    dtype: torch.dtype = torch.float32, group: int | None = None, two_tables: bool = False, prefix: int = 3,
    chunks: list[QuantizedKV] | None = None, shifted: bool = False,
) -> None:  # fmt: skip
    """Place the same chunks by reference and by kernel; everything must agree, and nothing else may be written."""
    half = dim // 2 if half is None else half
    chunks = chunks or [some_chunk(layers, heads, n, dim, group, seed) for seed, n in enumerate(lengths)]
    where = plan(prefix, lengths)
    capacity = where.num_slots + 5
    tables = some_tables(capacity, half, tuple(i % 2 if two_tables else 0 for i in range(layers)))
    expected, got = (a_cache(layers, heads, dim, capacity, dtype) for _ in range(2))
    shifts = some_shifts(layers, len(chunks), heads, dim) if shifted else None
    for layer in range(layers):
        for index, (placement, chunk) in enumerate(zip(where.placements, chunks, strict=True)):
            place_layer(layer, placement, chunk, tables, expected, None if shifts is None else shifts[layer, index])
    place_chunks.place_group(range(layers), where.placements, chunks, tables, got, shifts)
    compare(got, expected, dtype)
    assert (got.layers[0].key_slab[0, :, :prefix] == UNTOUCHED).all()
    assert (got.layers[-1].value_slab[0, :, where.num_slots :] == UNTOUCHED).all()


def some_shifts(layers: int, chunks: int, heads: int, dim: int) -> torch.Tensor:
    """A shift of its own for every layer and chunk, as `PlaceShift.of_chunks` returns them."""
    generator = torch.Generator().manual_seed(5)
    return (9 * torch.randn(layers, chunks, 2, heads, dim, generator=generator)).to(DEVICE)


def compare(got: SlabCache, expected: SlabCache, dtype: torch.dtype) -> None:
    """fp32 to rounding of a product; fp16 to one step; bf16 to two, because the interpreter truncates."""
    relative = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}[dtype]
    for mine, reference in zip(got.layers, expected.layers, strict=True):
        for left, right in ((mine.key_slab, reference.key_slab), (mine.value_slab, reference.value_slab)):
            largest = right[right != UNTOUCHED].abs().max().item()
            torch.testing.assert_close(left.float(), right.float(), rtol=relative, atol=relative * largest / 4)


@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_head_sizes_and_dtypes(dim: int, dtype: torch.dtype) -> None:
    check([37, 64, 1], dim=dim, dtype=dtype)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 65, 127])
def test_odd_lengths(length: int) -> None:
    check([length], layers=1)


@pytest.mark.parametrize("heads", [1, 2, 3, 8])
def test_numbers_of_heads(heads: int) -> None:
    check([33, 20], heads=heads, layers=1)


@pytest.mark.parametrize("group", [16, 24, 64])
def test_several_scale_groups(group: int) -> None:
    check([100, 17, 64], group=group, layers=1)


def test_one_and_several_groups_in_one_launch() -> None:
    chunks = [some_chunk(1, 2, 50, 64, None, 1), some_chunk(1, 2, 50, 64, 16, 2)]
    check([50, 50], layers=1, chunks=chunks)


@pytest.mark.parametrize(("dim", "half"), [(128, 48), (64, 16), (96, 36), (32, 16)])
@pytest.mark.parametrize("group", [None, 16])
def test_partial_rotary_passes_the_rest_through(dim: int, half: int, group: int | None) -> None:
    check([35], dim=dim, half=half, layers=1, group=group)


@pytest.mark.parametrize(("dim", "half"), [(64, 32), (96, 36)])
@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("group", [None, 16])
def test_shifts_are_added_before_rotation(dim: int, half: int, heads: int, group: int | None) -> None:
    check([35, 12], dim=dim, half=half, heads=heads, group=group, shifted=True)


def test_a_shift_of_zero_changes_no_bit() -> None:
    where, chunks = plan(3, [33, 20]), [some_chunk(2, 2, count, 64, None, count) for count in (33, 20)]
    tables = some_tables(60, 32, (0, 0))
    plain, shifted = (a_cache(2, 2, 64, 60, torch.bfloat16) for _ in range(2))
    place_chunks.place_group(range(2), where.placements, chunks, tables, plain)
    nothing = torch.zeros(2, 2, 2, 2, 64, device=DEVICE)
    place_chunks.place_group(range(2), where.placements, chunks, tables, shifted, nothing)
    for left, right in zip(plain.layers, shifted.layers, strict=True):
        assert torch.equal(left.key_slab, right.key_slab) and torch.equal(left.value_slab, right.value_slab)


def test_two_tables_in_one_launch() -> None:
    check([40, 9], layers=4, two_tables=True)


def test_only_the_layers_asked_for_are_written() -> None:
    chunk, where = some_chunk(4, 2, 20, 64), plan(0, [20])
    cache, tables = a_cache(4, 2, 64, 20, torch.float32), some_tables(20, 32, (0,) * 4)
    place_chunks.place_group([1, 2], where.placements, [chunk], tables, cache)
    for index, layer in enumerate(cache.layers):
        assert bool((layer.key_slab == UNTOUCHED).all()) == (index in (0, 3))
        assert bool((layer.value_slab == UNTOUCHED).all()) == (index in (0, 3))


def test_no_chunks_is_no_launch() -> None:
    cache, tables = a_cache(1, 2, 64, 8, torch.float32), some_tables(8, 32, (0,))
    place_chunks.place_group([0], (), [], tables, cache)
    assert (cache.layers[0].key_slab == UNTOUCHED).all()


@pytest.mark.parametrize("shift", [1, 2, 4, 8])
def test_codes_may_lie_at_any_address(shift: int) -> None:
    """Files pad nothing, so an odd number of tokens leaves the codes at odd places."""
    chunk = some_chunk(1, 2, 33, 64)
    layer = chunk.layers[0]
    assert isinstance(layer, Int8Layer)

    def moved(codes: torch.Tensor) -> torch.Tensor:
        room = torch.empty(codes.numel() + shift, dtype=torch.int8, device=codes.device)
        view = room[shift:].view(codes.shape)
        return view.copy_(codes)

    again = QuantizedKV(
        (Int8Layer(moved(layer.keys), layer.key_scale, layer.key_zero, moved(layer.values), layer.value_scale),)
    )
    check([33], layers=1, chunks=[again])


def test_a_wrong_position_would_be_seen() -> None:
    """Negative control: the comparison above fails when the keys are turned by one position too many."""
    chunk, tables = some_chunk(1, 2, 20, 64), some_tables(32, 32, (0,))
    right, wrong = (a_cache(1, 2, 64, 24, torch.float32) for _ in range(2))
    place_layer(0, Placement(slot=2, position=2, num_tokens=20), chunk, tables, right)
    place_chunks.place_group([0], [Placement(slot=2, position=3, num_tokens=20)], [chunk], tables, wrong)
    with pytest.raises(AssertionError):
        compare(wrong, right, torch.float32)


@pytest.mark.parametrize(
    ("position", "slot", "words"), [(20, 0, "past the tables"), (0, 20, "outside the slab"), (-1, 0, "past the tables")]
)
def test_a_place_that_does_not_exist_is_refused(position: int, slot: int, words: str) -> None:
    chunk, tables = some_chunk(1, 2, 20, 64), some_tables(32, 32, (0,))
    cache = a_cache(1, 2, 64, 32, torch.float32)
    with pytest.raises(AssertionError, match=words):
        place_chunks.place_group([0], [Placement(slot=slot, position=position, num_tokens=20)], [chunk], tables, cache)


def test_raw_layers_are_refused() -> None:
    raw = keep_exact(ChunkKV(torch.randn(1, 2, 8, 64), torch.randn(1, 2, 8, 64)))
    cache, tables = a_cache(1, 2, 64, 8, torch.float32), some_tables(8, 32, (0,))
    with pytest.raises(AssertionError, match="reference"):
        place_chunks.place_group([0], plan(0, [8]).placements, [raw], tables, cache)


# Payloads as loaded -------------------------------------------------------------------------------------------------


def test_rows_of_payloads_are_those_of_their_layers(tmp_path: Path) -> None:
    """Found from offsets alone, for all chunks at once, they are what one row per layer and chunk would say."""
    files, payloads = written(tmp_path, raw_layer=2)
    tables, cache = some_tables(200, 64, (0, 1, 0, 0)), a_cache(4, 2, 128, 160, torch.float32)
    target = place_chunks.Target.of(tables, cache.layers)
    where = plan(5, [file.header.num_tokens for file in files]).placements
    chunks = [
        place_chunks.Loaded(layout(file.header), data, place.position, place.slot)
        for file, data, place in zip(files, payloads, where, strict=True)
    ]
    rows = place_chunks.rows_of_payloads(chunks, target)
    for index, (file, data, place) in enumerate(zip(files, payloads, where, strict=True)):
        for layer, coded in enumerate(as_quantized(file.header, data).layers):
            if isinstance(coded, Int8Layer):
                expected = place_chunks.row_of(coded, target, layer, place.position, place.slot)
                assert (rows[layer, index] == expected).all()
            else:
                assert rows[layer, index, 0] == 0, "the raw layer of one chunk is skipped"
    assert rows.shape == (4, 3, place_chunks.NUM_FIELDS)
    assert (rows[:, :, 0] == 0).sum() == 1
    batch = place_chunks.batch_of_payloads(chunks, target)
    careful = place_chunks.batch_of_rows(rows, target)
    assert (batch.rows == careful.rows).all() and batch.most_tokens == careful.most_tokens == 64
    assert batch.one_group == careful.one_group
    assert careful.codes_by % batch.codes_by == careful.scales_by % batch.scales_by == 0, "what is promised is true"
    assert careful.angles_by % batch.angles_by == 0


@pytest.mark.parametrize(("position", "slot", "words"), [(101, 0, "past the tables"), (0, 97, "outside the slab")])
def test_a_payload_whose_place_does_not_exist_is_refused(position: int, slot: int, words: str, tmp_path: Path) -> None:
    """Tables of 165 positions and slabs of 160 slots for chunks of up to 64 tokens."""
    files, payloads = written(tmp_path, raw_layer=2)
    tables, cache = some_tables(164, 64, (0, 0, 0, 0)), a_cache(4, 2, 128, 160, torch.float32)
    target = place_chunks.Target.of(tables, cache.layers)
    one = place_chunks.Loaded(layout(files[1].header), payloads[1], position, slot)
    with pytest.raises(AssertionError, match=words):
        place_chunks.batch_of_payloads([one], target)
    cut = place_chunks.Loaded(layout(files[1].header), payloads[1][:-4096], 0, 0)
    with pytest.raises(AssertionError, match="past the payload"):
        place_chunks.batch_of_payloads([cut], target)


@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize("given", [False, True], ids=["as loaded", "two prefilled live"])
@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "shifted"])
def test_the_placer_fills_the_slabs_by_the_kernel_as_by_the_reference(
    given: bool, waves: int, shifted: bool, tmp_path: Path
) -> None:
    """Wave by wave: as many layers as it brings, no more; with a shift for every chunk but the first."""
    files, payloads = written(tmp_path, raw_layer=2)
    tables = some_tables(200, 64, (0, 1, 0, 0))
    where = plan(5, [file.header.num_tokens for file in files])
    caches = [a_cache(4, 2, 128, 160, torch.float32) for _ in range(2)]
    chunks = [as_quantized(file.header, data) for file, data in zip(files, payloads, strict=True)]
    shift, shifts = None, None
    if shifted:
        table = some_shifts(4, 2, 2, 128)
        shift = PlaceShift((30, 60), *(table[:, :, part].transpose(0, 1).contiguous() for part in range(2)))
        shifts = shift.of_chunks(where)
        assert shifts is not None and not shifts[:, 0].any() and shifts[:, 1:].abs().amin() > 0
    slots = layerwise.CacheTarget(tables, caches[0], place_chunks.Target.of(tables, caches[0].layers), shift)
    settings = LoaderSettings(threads=2, waves=waves, staging_bytes=1 << 22, resident_bytes=1 << 22)
    with Loader(DEVICE, settings) as loader:
        load = loader.start(files)
        for index in (1, 2) if given else ():
            load.replace(index, chunks[index])
        placer = layerwise.Placer(load, where, slots)
        for layer in range(4):
            placer.place_through(layer)
            untouched = (caches[0].layers[2].key_slab == UNTOUCHED).all()
            assert bool(untouched) == (waves == 2 and layer < 2), "the second wave is placed when it is wanted"
            for index, (other, place) in enumerate(zip(chunks, where.placements, strict=True)):
                place_layer(layer, place, other, tables, caches[1], None if shifts is None else shifts[layer, index])
            got, wanted = caches[0].layers[layer], caches[1].layers[layer]
            torch.testing.assert_close(got.key_slab, wanted.key_slab, rtol=1e-5, atol=1e-3)
            torch.testing.assert_close(got.value_slab, wanted.value_slab, rtol=1e-6, atol=1e-6)
        load.close()


def test_a_placer_goes_on_with_what_stands_in_for_a_lost_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost in the second wave, when rows of all layers, its own among them, had been worked out from its buffer."""
    files, payloads = written(tmp_path, raw_layer=2)
    damaged = bytearray(files[2].path.read_bytes())
    damaged[-1] ^= 1
    files[2].path.chmod(0o600)
    files[2].path.write_bytes(damaged)
    tables, where = some_tables(200, 64, (0, 0, 0, 0)), plan(5, [file.header.num_tokens for file in files])
    got, wanted = (a_cache(4, 2, 128, 160, torch.float32) for _ in range(2))
    slots = layerwise.CacheTarget(tables, got, place_chunks.Target.of(tables, got.layers))
    chunks = [as_quantized(file.header, data) for file, data in zip(files, payloads, strict=True)]
    for layer in range(4):
        for chunk, place in zip(chunks, where.placements, strict=True):
            place_layer(layer, place, chunk, tables, wanted)
    settings = LoaderSettings(threads=2, waves=2, run_bytes=1, staging_bytes=1 << 22, resident_bytes=1 << 22)
    with Loader(DEVICE, settings) as loader:
        verify, placed = loader.reader.verify, threading.Event()

        def late(path: Path, identity: Identity, groups: Sequence[tuple[int, LayerGroup]], run: torch.Tensor) -> None:
            if groups[0][1].first_layer >= 2:
                assert placed.wait(10)
            verify(path, identity, groups, run)

        monkeypatch.setattr(loader.reader, "verify", late)
        load = loader.start(files)
        placer = layerwise.Placer(load, where, slots)
        placer.place_through(1)
        placed.set()
        with pytest.raises(ChunksLost) as caught:
            placer.place_all()
        assert caught.value.indices == (2,)
        assert load.items[2].buffer is not None
        load.items[2].buffer.data.fill_(77)  # what happens to lie where the lost bytes should have come
        load.replace(2, chunks[2])
        placer.place_all()
        load.close()
    compare(got, wanted, torch.float32)


def test_layers_of_different_shapes_have_no_layout(tmp_path: Path) -> None:
    """The kernel follows one shape for all of them."""
    files, _ = written(tmp_path, raw_layer=2)
    header = kv_header.read_header(files[2].path)
    first, *others = header.groups
    assert others, "a raw layer is a group of its own"
    slots = tuple(
        replace(one, shape=(one.shape[0], 1, *one.shape[2:])) if one.part == "keys" else one for one in first.slots
    )
    with pytest.raises(AssertionError, match="different shapes"):
        layout(replace(header, groups=(replace(first, slots=slots), *others)))


def written(folder: Path, raw_layer: int) -> tuple[list[ChunkFile], list[torch.Tensor]]:
    """Three chunks on disk, of which the last keeps one layer unquantised, and their payloads in memory."""
    files, payloads = [], []
    for number, tokens in enumerate((37, 64, 5)):
        scheme = QuantScheme(tuple(LayerScheme(raw=number == 2 and layer == raw_layer) for layer in range(4)))
        generator = torch.Generator().manual_seed(number)
        kv = ChunkKV(*(torch.randn(4, 2, tokens, 128, generator=generator) for _ in range(2)))
        key = KVKey(Namespace(f"{1:032x}"), TokenHash(f"{number:032x}"))
        path = folder / f"{number}.safetensors"
        chunk_file.write(path, chunk_file.prepare(key, quantize(kv, scheme), ["c"], 0.1))
        files.append(ChunkFile(path, kv_header.read_header(path)))
        content = path.read_bytes()[files[-1].header.data_start :]
        payloads.append(torch.frombuffer(bytearray(content), dtype=torch.uint8).to(DEVICE))
    return files, payloads
