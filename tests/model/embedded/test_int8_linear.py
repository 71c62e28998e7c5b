"""Products of int8 matrices equal those of the same weights in fp64, whatever rows they are given."""

from __future__ import annotations

import time

import pytest
import torch

from desk_rag.config import Settings
from desk_rag.errors import ConfigError
from desk_rag.model.embedded import int8_linear
from desk_rag.model.embedded.int8_linear import Int8Linear, place_int8
from desk_rag.model.library.machine import measure
from desk_rag.model.on_cpu import placing
from desk_rag.model.packed_linear import PackedPart

served = pytest.mark.skipif(not int8_linear.available(), reason="this CPU does not multiply int8, or not fast")


def matrix(outer: int, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(-127, 128, (outer, inner), dtype=torch.int8), torch.rand(outer).half() / 100


@served
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 7, 5), (3, 64, 96), (25, 33, 17), (130, 512, 130)])
def test_the_product_is_that_of_the_weights(rows: int, inner: int, outer: int, bias: bool) -> None:
    torch.manual_seed(rows)
    codes, scales = matrix(outer, inner)
    added = torch.randn(outer) if bias else None
    module = Int8Linear(codes, scales, added)
    x = torch.randn(2, rows, inner) * torch.logspace(-3, 3, rows)[:, None]
    weight = codes.double() * scales.double()[:, None]
    expected = torch.nn.functional.linear(x.double(), weight, None if added is None else added.double())
    got = module(x)
    assert got.shape == (2, rows, outer)
    largest = x.abs().amax(-1, keepdim=True) * weight.abs().sum(1) + (0.0 if added is None else added.abs())
    error = (got - expected).abs() / largest
    assert error.max() < 2**-15
    torch.testing.assert_close(module.weight.double(), weight, rtol=1e-5, atol=1e-6)


@served
def test_a_row_has_the_same_product_alone_and_among_others() -> None:
    module = Int8Linear(*matrix(96, 64))
    rows = torch.randn(50, 64)
    whole = module(rows)
    assert all(torch.equal(module(row[None])[0], product) for row, product in zip(rows, whole, strict=True))


@served
def test_no_product_goes_the_way_of_onednns_reference(capfd: pytest.CaptureFixture[str]) -> None:
    """Which takes any numbers, one after the other, ten thousand times as long."""
    module, rows = Int8Linear(*matrix(96, 64)), torch.randn(5, 64)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        module(rows)
    products = [line for line in capfd.readouterr().out.splitlines() if ",exec,cpu,matmul," in line]
    assert products and not [line for line in products if ",matmul,ref" in line]


@served
def test_rows_of_zeros_give_zeros() -> None:
    assert torch.equal(Int8Linear(*matrix(8, 16))(torch.zeros(2, 16)), torch.zeros(2, 8))


@served
def test_matrices_of_one_input_lie_side_by_side_and_others_stay() -> None:
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "other")
    module = torch.nn.ModuleDict({name: torch.nn.Linear(16, 8, bias=False) for name in names})
    stored = {name: matrix(8, 16) for name in names[:4]}
    tensors = {f"{name}.weight": codes for name, (codes, _) in stored.items()}
    tensors |= {f"{name}.weight.scale": scales for name, (_, scales) in stored.items()}
    assert place_int8(module, tensors, ".scale") == 4
    kinds = [type(module[name]) for name in names]
    assert kinds == [PackedPart, PackedPart, PackedPart, Int8Linear, torch.nn.Linear]
    rows = torch.randn(3, 16)
    for name, (codes, scales) in stored.items():
        expected = rows @ (codes.float() * scales[:, None]).mT
        torch.testing.assert_close(module[name](rows), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif("avx512_vnni" not in torch.cpu.get_capabilities(), reason="torch does not multiply int8 at all")
def test_int8_is_not_offered_where_its_products_take_hundreds_of_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As oneDNN's plain loops do, which it takes on some virtual CPUs although the instructions are there."""
    multiply = Int8Linear.forward

    def slowly(linear: Int8Linear, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return multiply(linear, rows)

    monkeypatch.setattr(Int8Linear, "forward", slowly)
    int8_linear.available.cache_clear()
    try:
        assert not int8_linear.available()
        with pytest.raises(ConfigError, match="plain loops"):
            placing.check_cpu("int8")
        assert "int8" not in measure(Settings(), 0).coded_forms
    finally:
        int8_linear.available.cache_clear()


def test_a_cpu_without_int8_instructions_does_not_multiply_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    int8_linear.available.cache_clear()
    try:
        assert not int8_linear.available()
    finally:
        int8_linear.available.cache_clear()
