"""Compiled kernels at the sizes they are for, and the load path against the computing stream. Needs an NVIDIA GPU.

The checks of tests/kv/kernels/test_place_chunks.py, test_lazy.py and test_loader.py run compiled on a GPU as they are;
here is what only makes sense there: real shapes, real dtypes, races.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from desk_rag.bench.models import synthetic
from desk_rag.bench.models.synthetic import Slabs
from desk_rag.kv.kernels import availability
from desk_rag.kv.lazy.backend import attends
from desk_rag.kv.lazy.reference import LazyContext, attend
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import plan
from desk_rag.kv.stitch import place_layer
from desk_rag.kv.types import KVKey, Namespace, QuantizedKV, TokenHash
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv import header as kv_header

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def test_the_kernel_proves_itself_on_this_gpu(gpu: torch.device) -> None:
    assert availability.available(gpu)
    assert availability.place_group(gpu) is not None
    assert attends(gpu)
    assert not availability.available(torch.device("cpu"))


@pytest.mark.parametrize("name", ["qwen2-7b", "llama-3.2-1b", "llama-3.2-3b"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "shifted"])
def test_placing_published_shapes(gpu: torch.device, name: str, dtype: torch.dtype, shifted: bool) -> None:
    """Every layer of seven odd chunks in one launch; at most one step of the dtype apart, nearly everything equal."""
    from desk_rag.kv.kernels import place_chunks

    shape, sizes = synthetic.SHAPES[name], [512, 512, 1, 333, 512, 77, 512]
    where = plan(19, sizes)
    tables = synthetic.tables(shape, where.num_slots, gpu)
    got, expected = (Slabs.of(shape, where.num_slots, gpu, dtype) for _ in range(2))
    chunks = [synthetic.chunk(shape, size, gpu)[2] for size in sizes]
    layers = range(shape.num_layers)
    per_chunk = (shape.num_layers, len(chunks), 2, shape.num_kv_heads, shape.head_dim)
    shifts = torch.randn(per_chunk, device=gpu) if shifted else None
    place_chunks.place_group(layers, where.placements, chunks, tables, got, shifts)  # type: ignore[arg-type]
    for layer in layers:
        for index, (placement, chunk) in enumerate(zip(where.placements, chunks, strict=True)):
            shift = None if shifts is None else shifts[layer, index]
            place_layer(layer, placement, chunk, tables, expected, shift)  # type: ignore[arg-type]
    step = 2.0**-7 if dtype is torch.bfloat16 else 2.0**-10
    for mine, reference in zip(got.layers, expected.layers, strict=True):
        for left, right in ((mine.key_slab, reference.key_slab), (mine.value_slab, reference.value_slab)):
            torch.testing.assert_close(left, right, rtol=step, atol=1e-4)
            assert (left == right).float().mean() > 0.999


@pytest.mark.parametrize("name", ["qwen2-7b", "llama-3.2-1b"])
@pytest.mark.parametrize("queries", [1, 32])
@pytest.mark.parametrize("tokens", [777, 8192, 32_768])
def test_attending_published_shapes(gpu: torch.device, name: str, queries: int, tokens: int) -> None:
    from desk_rag.kv.lazy.launcher import LazyKernel

    shape = synthetic.SHAPES[name]
    one_layer = synthetic.Shape(1, shape.num_heads, shape.num_kv_heads, shape.head_dim)
    sizes = synthetic.lengths(tokens, 500)
    chunks = tuple(synthetic.chunk(one_layer, size, gpu)[2] for size in sizes)
    context = LazyContext(chunks, plan(40, sizes).placements, synthetic.tables(one_layer, tokens + 200, gpu))
    torch.manual_seed(0)
    query = torch.randn(1, shape.num_heads, queries, shape.head_dim, device=gpu, dtype=torch.bfloat16)
    keys, values = (torch.randn(1, shape.num_kv_heads, 90, shape.head_dim, device=gpu).bfloat16() for _ in range(2))
    scaling = shape.head_dim**-0.5
    expected = attend(0, query, keys, values, scaling, context).float()
    got = LazyKernel.of(context, shape.num_kv_heads, shape.head_dim)(0, query, keys, values, scaling).float()
    assert ((got - expected).norm() / expected.norm()).item() < 1e-2
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())


def test_one_graph_serves_growing_lengths(gpu: torch.device) -> None:
    """A graph of the lazy kernel, replayed while the slab fills; many times each, because the merge counts programs."""
    from desk_rag.kv.lazy.launcher import LazyKernel

    shape = synthetic.Shape(1, 28, 4, 128)
    sizes = synthetic.lengths(8192, 500)
    chunks = tuple(synthetic.chunk(shape, size, gpu)[2] for size in sizes)
    context = LazyContext(chunks, plan(40, sizes).placements, synthetic.tables(shape, 8500, gpu))
    kernel = LazyKernel.of(context, 4, 128)
    torch.manual_seed(0)
    query = torch.randn(1, 28, 1, 128, device=gpu).bfloat16()
    keys, values = (torch.randn(1, 4, 300, 128, device=gpu).bfloat16() for _ in range(2))
    length = torch.tensor([41], dtype=torch.int32, device=gpu)
    side = torch.cuda.Stream(gpu)
    side.wait_stream(torch.cuda.current_stream(gpu))
    with torch.cuda.stream(side):
        kernel(0, query, keys, values, 0.1, length=length)
    torch.cuda.current_stream(gpu).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(0, query, keys, values, 0.1, length=length)
    for used in (41, 42, 128, 129, 257, 300):
        length.fill_(used)
        expected = attend(0, query, keys[:, :, :used], values[:, :, :used], 0.1, context)
        graph.replay()
        first = out.clone()
        torch.testing.assert_close(first.float(), expected.float(), rtol=2e-2, atol=2e-2)
        for _ in range(50):
            graph.replay()
            assert torch.equal(out, first)


def written(folder: Path, number: int, kv: QuantizedKV) -> ChunkFile:
    path = folder / "kv" / f"{number}.safetensors"
    key = KVKey(Namespace("0" * 32), TokenHash(f"{number:032x}"))
    chunk_file.write(path, chunk_file.prepare(key, kv, ["c"], 0.1))
    return ChunkFile(path, kv_header.read_header(path))


@pytest.mark.parametrize("staging_mib", [8, 256])
def test_loads_are_right_while_the_gpu_is_busy(gpu: torch.device, tmp_path: Path, staging_mib: int) -> None:
    """Cold, staged and resident loads in turn, with little staging memory, reused buffers and a full compute queue."""
    shape = synthetic.SHAPES["llama-3.2-1b"]
    cpu = torch.device("cpu")
    kept = [synthetic.chunk(shape, size, cpu)[2] for size in (512, 300, 512, 33, 512, 511)]
    files = [written(tmp_path, number, kv) for number, kv in enumerate(kept)]
    busy = torch.randn(4096, 4096, device=gpu)
    settings = LoaderSettings(threads=4, waves=8, staging_bytes=staging_mib << 20, resident_bytes=30 << 20)
    with Loader(gpu, settings) as loader:
        for turn in range(12):
            order = [(index + turn) % len(files) for index in range(len(files))][: 3 + turn % 4]
            load = loader.start([files[index] for index in order])
            for _ in range(20):
                busy = (busy @ busy).tanh()
            load.wait_all()
            for place, index in enumerate(order):
                for mine, reference in zip(load.quantized(place).layers, kept[index].layers, strict=True):
                    assert torch.equal(mine.keys.cpu(), reference.keys)
                    assert torch.equal(mine.values.cpu(), reference.values)
            load.close()
            if turn % 4 == 3:
                loader.forget(staged=turn % 8 == 7)
    assert busy.isfinite().all()


def test_staging_is_page_locked(gpu: torch.device) -> None:
    with Loader(gpu, LoaderSettings(threads=1, staging_bytes=1 << 24)) as loader:
        staging = loader._staging
        assert staging is not None
        assert staging.arena.pinned
        assert staging.arena.memory.is_pinned()
