"""nf4 products against weights written out: in Triton's interpreter, or compiled on a GPU."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")
pytest.importorskip("bitsandbytes")

from desk_rag.kv.nf4 import launcher
from desk_rag.kv.nf4.launcher import Nf4Tuning
from desk_rag.kv.nf4.matrix import Nf4Matrix, reference
from desk_rag.model.requantize import quantized_linear

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.bfloat16, torch.float16] if DEVICE.type == "cuda" else [torch.float16]  # it cannot multiply bf16
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


def quantized(rows_out: int, width: int, dtype: torch.dtype, *, bias: bool = False, seed: int = 0) -> Any:
    """A linear module in nf4 whose rows are of very different size, so that no block has its neighbour's scale."""
    generator = torch.Generator().manual_seed(seed)
    plain = torch.nn.Linear(width, rows_out, bias=bias)
    with torch.no_grad():
        size = torch.rand(rows_out, width // 64, 1, generator=generator) * 0.1
        weight = torch.randn(rows_out, width // 64, 64, generator=generator) * size
        plain.weight.copy_(weight.flatten(1))
        if bias:
            plain.bias.copy_(torch.randn(rows_out, generator=generator))
    return quantized_linear(plain.to(dtype), "nf4", DEVICE)


def some_rows(count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(1, count, width, generator=torch.Generator().manual_seed(count)).to(DEVICE, dtype)


def close(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.dtype is dtype and got.shape == wanted.shape
    assert (got.float() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()


def test_weights_are_those_that_bitsandbytes_multiplies_with() -> None:
    from bitsandbytes.functional import dequantize_4bit

    module = quantized(96, 192, torch.float16)
    wanted = dequantize_4bit(module.weight, module.weight.quant_state)
    matrix = Nf4Matrix.of([module])
    assert matrix is not None and matrix.shape == (96, 192)
    got, wanted = matrix.weight(torch.float16), wanted.view(96, 192)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=0)
    assert (got == wanted).float().mean() > 0.999


@pytest.mark.parametrize("bias", [False, True])
def test_matrices_side_by_side_are_the_matrices_one_after_the_other(bias: bool) -> None:
    modules = [quantized(rows, 256, torch.float16, bias=bias, seed=rows) for rows in (128, 64, 48)]
    rows = some_rows(3, 256, torch.float16)
    one_by_one = torch.cat([module(rows) for module in modules], -1)
    addresses = {module.weight.data_ptr() for module in modules}
    matrix = Nf4Matrix.of(modules)
    assert matrix is not None and matrix.shape == (240, 256)
    close(reference(rows, matrix).to(torch.float16), one_by_one.float(), torch.float16)
    assert addresses.isdisjoint(module.weight.data_ptr() for module in modules), "they are views of the whole"
    assert torch.equal(torch.cat([module(rows) for module in modules], -1), one_by_one)
    again = Nf4Matrix.of(modules)
    assert again is not None and again.codes.data_ptr() == matrix.codes.data_ptr(), "nothing is copied twice"


def test_what_cannot_lie_side_by_side_is_left_alone() -> None:
    odd = quantized(40, 192, torch.float16)  # 120 blocks: the next matrix's scales would begin within a group
    assert Nf4Matrix.of([odd, odd]) is None
    assert Nf4Matrix.of([torch.nn.Linear(64, 64)]) is None
    assert Nf4Matrix.of([quantized(64, 256, torch.float16), quantized(64, 256, torch.float16, bias=True)]) is None
    assert Nf4Matrix.of([quantized(64, 256, torch.float16), quantized(64, 512, torch.float16)]) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows_out", "width", "count", "bias", "tuning"),
    [
        (96, 256, 1, False, None),
        (200, 1344, 17, True, None),  # 21 blocks of 64: the last step has only one
        (64, 64, 5, False, None),
        (70, 320, 128, True, Nf4Tuning(32, 1, 4, 2, 1, permute=DEVICE.type == "cuda")),
        (200, 1344, 33, False, Nf4Tuning(32, 2, 4, 2, 4, permute=False)),
    ],
)
def test_kernel_equals_weights_written_out(
    rows_out: int, width: int, count: int, bias: bool, tuning: Nf4Tuning | None, dtype: torch.dtype
) -> None:
    module = quantized(rows_out, width, dtype, bias=bias)
    matrix = Nf4Matrix.of([module])
    assert matrix is not None
    rows = some_rows(count, width, dtype)
    wanted = reference(rows, matrix)
    for _ in range(3):  # counters are 0 again, and later launches take another path
        close(launcher.multiply(rows, matrix, tuning), wanted, dtype)
    plain = linear(rows, matrix.weight(dtype), matrix.bias)
    assert ((launcher.multiply(rows, matrix, tuning) - plain).float().norm() / plain.float().norm()) < 5e-3


def test_work_is_shared_until_every_multiprocessor_has_some() -> None:
    tuning = Nf4Tuning(64, 2, 4, 4, 3)
    assert launcher.shares_of(1, 1344, tuning, torch.device("cpu")) == 3, "11 steps, no program with fewer than 3"
    assert launcher.shares_of(100, 1344, tuning, torch.device("cpu")) == 1
