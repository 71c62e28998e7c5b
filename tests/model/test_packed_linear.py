"""Packed matrices multiply as the plain ones do, to fp16 weights; and what cannot be packed stays as it is."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.prefill import tap_keys
from desk_rag.model import packed_linear
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.packed_linear import PackedLinear, PackedPart, pack_linears
from tests.models import FAMILIES, Family, build_model, each_family

needs_kernels = pytest.mark.skipif(not packed_linear.available(), reason="this torch has no packed kernels")


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 7, 5), (3, 64, 96), (25, 33, 17), (130, 512, 130)])
def test_the_product_is_that_of_the_weights_as_packed(rows: int, inner: int, outer: int, bias: bool) -> None:
    torch.manual_seed(rows)
    plain = torch.nn.Linear(inner, outer, bias=bias)
    module = PackedLinear(plain)
    x = torch.randn(1, rows, inner)
    assert torch.equal(module.weight, plain.weight.half().float())
    expected = torch.nn.functional.linear(x.double(), module.weight.double(), None if not bias else plain.bias.double())
    with torch.inference_mode():
        got = module(x)
    assert got.shape == (1, rows, outer)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    assert (module.weight - torch.randn_like(module.weight)).abs().max() > 0.1  # not any weights will do


@needs_kernels
@each_family
def test_every_family_computes_packed_what_it_computes_plain(family: Family) -> None:
    """Whole prompt, several tokens over a cache, one token; within what rounding weights to fp16 does by itself."""
    parts = ((0, 30), (30, 49), (49, 50))
    ids = torch.arange(20, 70)

    def logits(model: LanguageModel) -> torch.Tensor:
        cache = SlabCache(model, 50)
        return torch.cat([model.forward_all(ids[a:b], cache, a) for a, b in parts])

    rounded = build_model(family)
    for module in rounded.module.modules():
        if type(module) is torch.nn.Linear:  # a new matrix: embeddings tied to the old one are not rounded
            module.weight = torch.nn.Parameter(module.weight.detach().half().float())
    expected = logits(rounded)
    model = build_model(family)
    plain = logits(model)
    before = {name for name, module in model.module.named_modules() if type(module) is torch.nn.Linear}
    assert pack_linears(model.module) == len(before)
    assert {name for name, module in model.module.named_modules() if isinstance(module, PackedLinear)} == before
    got = logits(model)
    spread = plain.std().item()
    assert (got - expected).abs().max().item() < 1e-3 * max(spread, 1.0)
    assert not torch.equal(got, plain)  # they were packed indeed


@needs_kernels
def test_hooks_on_packed_projections_are_called() -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "llama"))
    pack_linears(model.module)
    cache = SlabCache(model, 9)
    with tap_keys(model) as tapped:
        model.forward(torch.arange(20, 29), cache, 0, logits=False)
    assert sorted(tapped) == list(range(model.spec.num_layers))
    assert all(keys.abs().max() > 0 for keys in tapped.values())


@needs_kernels
def test_what_fp16_cannot_hold_and_other_dtypes_stay_plain() -> None:
    far = torch.nn.Linear(4, 4)
    far.weight.data[0, 0] = 1e6
    module = torch.nn.Sequential(far, torch.nn.Linear(4, 4).bfloat16(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4))
    assert pack_linears(module) == 1
    assert [type(part) is PackedLinear for part in module] == [False, False, False, True]


def test_without_the_kernels_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "available", lambda: False)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4))
    assert pack_linears(module) == 0
    assert type(module[0]) is torch.nn.Linear


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
def test_matrices_of_one_input_lie_side_by_side(bias: bool) -> None:
    """Each part is its own product, in any order, asked for twice, and of another input half way through."""
    torch.manual_seed(2)
    widths = {"q_proj": 32, "k_proj": 8, "v_proj": 8}
    plain = {name: torch.nn.Linear(24, width, bias=bias) for name, width in widths.items()}
    parent = torch.nn.ModuleDict({**plain, "other": torch.nn.Linear(24, 8)})
    assert pack_linears(parent) == 4
    parts = {name: part for name, part in parent.items() if isinstance(part, PackedPart)}
    assert parts.keys() == plain.keys()
    beside = {id(part.beside): part.beside for part in parts.values()}
    assert len(beside) == 1
    one, other = torch.randn(1, 3, 24), torch.randn(1, 3, 24)
    order = [("v_proj", one), ("q_proj", one), ("q_proj", one), ("k_proj", other), ("v_proj", other), ("k_proj", one)]
    for name, rows in [*order, *((name, other) for name in plain)]:
        half = plain[name].weight.half().float()
        assert torch.equal(parts[name].weight, half)
        with torch.inference_mode():
            got = parts[name](rows)
        expected = torch.nn.functional.linear(rows, half, plain[name].bias)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert all(each._kept is None for each in beside.values())  # all had their share, so nothing is kept


@needs_kernels
def test_threads_get_products_of_their_own_inputs() -> None:
    """An embedder's passes do not take turns."""
    torch.manual_seed(3)
    plain = {name: torch.nn.Linear(24, 8) for name in ("q_proj", "k_proj", "v_proj")}
    parent = torch.nn.ModuleDict(plain)
    pack_linears(parent)
    inputs = [torch.randn(1, 2, 24) for _ in range(4)]
    halves = {name: linear.weight.half().float() for name, linear in plain.items()}

    def wrong(number: int) -> int:
        x, count = inputs[number], 0
        with torch.inference_mode():
            for _ in range(300):
                for name, linear in plain.items():
                    expected = torch.nn.functional.linear(x, halves[name], linear.bias)
                    count += not torch.allclose(parent[name](x), expected, rtol=1e-4, atol=1e-4)
        return count

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(wrong, range(4))) == [0, 0, 0, 0]
    finally:
        sys.setswitchinterval(usual)


@needs_kernels
def test_only_matrices_of_one_kind_lie_side_by_side() -> None:
    """With biases only for some, of other widths, or of another dtype, each is packed by itself or not at all."""
    gate = torch.nn.Linear(8, 4)
    for up, count in (
        (torch.nn.Linear(8, 4, bias=False), 2),
        (torch.nn.Linear(6, 4), 2),
        (torch.nn.Linear(8, 4).bfloat16(), 1),
    ):
        parent = torch.nn.ModuleDict({"gate_proj": gate, "up_proj": up})
        assert pack_linears(parent) == count
        assert not any(isinstance(module, PackedPart) for module in parent.modules())
    both = torch.nn.ModuleDict({"gate_proj": gate, "up_proj": torch.nn.Linear(8, 4)})
    assert pack_linears(both) == 2 and all(isinstance(both[name], PackedPart) for name in both)
