"""The kernel multiplies where it was chosen, bitsandbytes elsewhere; a decoder's logits stay the same."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")
pytest.importorskip("bitsandbytes")

from desk_rag.bench.models import shapes
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.nf4 import launcher
from desk_rag.kv.nf4.choice import Nf4Product, Nf4Products, kernel_is_better, some_matrix
from desk_rag.kv.nf4.matrix import Nf4Matrix
from desk_rag.kv.rope import build_tables
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.requantize import quantize_linears
from tests.kv.nf4.test_multiply import DEVICE, quantized, some_rows

CAPACITY = 24


def always(_products: Sequence[Nf4Product], _count: int) -> bool:
    return True


def never(_products: Sequence[Nf4Product], _count: int) -> bool:
    return False


def rows_of_launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The list to which every launch of the kernel from now on adds its number of rows."""
    counts: list[int] = []
    whole = launcher.multiply

    def counted(rows: torch.Tensor, matrix: Nf4Matrix) -> torch.Tensor:
        counts.append(rows.shape[1])
        return whole(rows, matrix)

    monkeypatch.setattr(launcher, "multiply", counted)
    return counts


def test_only_prepared_numbers_of_rows_go_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = rows_of_launches(monkeypatch)
    products = Nf4Products(torch.float16, choose=always)
    product = products.product([quantized(64, 256, torch.float16), quantized(128, 256, torch.float16)])
    products.prepare(3)
    products.prepare(200)
    for count in (3, 5, 200):
        rows = some_rows(count, 256, torch.float16)
        got, expected = product(rows), product.library(rows)
        assert got.shape == (1, count, 192)
        assert (got - expected).abs().max() <= 4e-3 * expected.abs().max()
    assert counts == [3], "other numbers of rows, and those bound by arithmetic, are left to bitsandbytes"


def test_products_of_one_shape_are_chosen_for_together() -> None:
    asked: list[tuple[int, int]] = []

    def choose(products: Sequence[Nf4Product], count: int) -> bool:
        asked.append((len(products), count))
        return count == 1

    products = Nf4Products(torch.float16, choose)
    alike = [products.product([quantized(64, 256, torch.float16, seed=seed)]) for seed in range(3)]
    products.product([quantized(64, 512, torch.float16)])
    odd = products.product([quantized(40, 192, torch.float16), quantized(40, 192, torch.float16)])
    for count in (1, 16, 1):
        products.prepare(count)
    assert asked == [(3, 1), (1, 1), (3, 16), (1, 16)]
    assert all(product.by_kernel == {1: True, 16: False} for product in alike)
    assert odd.matrix is None and odd(some_rows(1, 192, torch.float16)).shape == (1, 1, 80)


def test_another_compute_type_is_left_to_bitsandbytes() -> None:
    assert Nf4Products(torch.bfloat16).product([quantized(64, 256, torch.float16)]).matrix is None


def test_a_choice_that_fails_falls_back_and_is_tried_again_when_memory_was_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[Exception] = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no capture on this stream")]

    def fails(_products: Sequence[Nf4Product], _count: int) -> bool:
        raise errors.pop(0)

    products = Nf4Products(torch.float16, fails)
    product = products.product([quantized(64, 256, torch.float16)])
    products.prepare(1)
    assert product.by_kernel == {} and "out of memory" in caplog.text
    for _ in range(2):
        products.prepare(1)
        assert product.by_kernel == {1: False} and not errors


def test_without_a_gpu_bitsandbytes_multiplies() -> None:
    products = Nf4Products(torch.float16)
    product = products.product([quantized(64, 256, torch.float16)])
    if DEVICE.type == "cpu":
        assert not kernel_is_better([product], 1)


def a_decoder(model: LanguageModel, nf4: Nf4Products | None) -> FusedDecoder:
    cache = SlabCache(model, CAPACITY)
    return FusedDecoder(model, cache.layers, build_tables(model, CAPACITY), nf4=nf4)


@pytest.mark.parametrize(
    ("name", "launches"), [pytest.param("small", (2, 4), marks=pytest.mark.slow), ("tiny", (3, 2))]
)
def test_a_decoder_in_4_bits_has_the_same_logits_by_the_kernel(
    name: str, launches: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`launches`: layers, and products per layer; matrices of the second model are too small to lie side by side."""
    built = shapes.build(name, torch.device("cpu"), positions=64)
    quantize_linears(built.module.to(torch.float16), "nf4", DEVICE)
    spec = dataclasses.replace(built.spec, dtype=torch.float16, weight_quantization="nf4")
    model = dataclasses.replace(built, spec=spec, device=DEVICE)
    ids = torch.arange(5, 14)[None]
    counts, logits = rows_of_launches(monkeypatch), []
    for choose in (never, always):
        products = Nf4Products(torch.float16, choose)
        decoder = a_decoder(model, products)
        if DEVICE.type == "cpu":
            products.prepare(9)
            products.prepare(1)
        decoder.run(ids, 0)
        logits.append(decoder.run(ids[:, :1], 9)[0].float().clone())
    assert (logits[0] - logits[1]).abs().max() <= 2e-2 * logits[0].std()
    if DEVICE.type == "cpu":  # elsewhere graphs are recorded, of more rows
        layers, per_layer = launches
        last_row = min(per_layer, 3)  # behind the last attention only one row goes on
        assert counts.count(9) == layers * per_layer - last_row and counts.count(1) == layers * per_layer + last_row


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("count", [1, 16, 32, 48, 64, 96, 128])
def test_the_kernel_proves_itself_on_this_gpu(count: int, dtype: torch.dtype) -> None:
    from desk_rag.kv.nf4.choice import _agrees

    assert _agrees(DEVICE, dtype, count, False) and _agrees(DEVICE, dtype, count, True)


@pytest.mark.gpu
def test_one_graph_gives_the_same_product_every_time() -> None:
    """Shares are counted: many replays, as the counters must be 0 after each."""
    matrix = some_matrix(2560, 9728, torch.bfloat16, DEVICE)
    rows = some_rows(1, 9728, torch.bfloat16)
    first = launcher.multiply(rows, matrix)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launcher.multiply(rows, matrix)
    for _ in range(200):
        graph.replay()
        assert torch.equal(out, first)


@pytest.mark.gpu
def test_the_choice_runs_and_keeps_the_faster_way() -> None:
    modules = [quantized(2560, 4096, torch.bfloat16, seed=seed) for seed in range(2)]
    products = Nf4Products(torch.bfloat16)
    product = [products.product([module]) for module in modules][0]
    products.prepare(1)
    products.prepare(64)
    assert product.by_kernel.keys() == {1, 64}
    print(product.by_kernel)
