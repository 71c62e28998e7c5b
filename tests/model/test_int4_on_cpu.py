"""Matrices in 4 bits on a CPU multiply as their weights say, and serve chunk KV in every family that has them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from desk_rag.bench.exactness import logits_of, relative
from desk_rag.bench.models.tiny_models import peaked_module
from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.kv.calibration.self_test import check_keys
from desk_rag.model.embedded import int8_linear
from desk_rag.model.library.installed import describe
from desk_rag.model.loading import load_model
from desk_rag.model.memory.plan import Device, weight_bytes
from desk_rag.model.on_cpu import int4_linear
from desk_rag.model.on_cpu.int4_linear import GROUP, Int4Linear, coded_groups
from desk_rag.model.on_cpu.placing import coded_weights
from tests.model.gguf.families import TINY, write_tiny
from tests.model.test_int8_on_cpu import EXPERTS, family, loaded, logits, written
from tests.models import Family, byte_prompt, each_family

pytestmark = pytest.mark.skipif(not int4_linear.available(), reason="this CPU has no products with 4-bit weights")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 32, 5), (3, 64, 256), (48, 96, 300), (49, 96, 300)])
def test_the_product_is_that_of_the_weights(rows: int, inner: int, outer: int, bias: bool) -> None:
    torch.manual_seed(rows)
    plain, x = torch.nn.Linear(inner, outer, bias=bias), torch.randn(2, rows, inner)[:1]
    module = Int4Linear(*coded_groups(plain.weight), plain.bias.detach() if bias else None)
    assert 0.02 < relative(module.weight, plain.weight.detach()) < 0.1
    with torch.inference_mode():
        product = module(x)
        expected = torch.nn.functional.linear(x, module.weight, plain.bias if bias else None)
    assert product.shape == (1, rows, outer) and product.dtype is torch.float32
    assert relative(product, expected) < 0.01


def test_each_group_has_its_own_scale_and_keeps_its_ends() -> None:
    """A group in a GGUF file of 16 even steps stays what it is, whatever its neighbours are."""
    weight = torch.randn(64, 256) * torch.logspace(-3, 1, 64)[:, None]
    coded = gguf.quantize(weight.numpy(), Kind.Q4_1)
    steps = torch.from_numpy(gguf.dequantize(coded, Kind.Q4_1).reshape(64, 256).copy())
    again = Int4Linear(*coded_groups(steps)).weight
    groups, kept = steps.view(-1, GROUP), again.view(-1, GROUP)
    assert ((kept - groups).norm(dim=1) / groups.norm(dim=1)).max() < 0.02
    flat = Int4Linear(*coded_groups(torch.full((4, 64), 0.5)))  # a group without any spread
    torch.testing.assert_close(flat.weight, torch.full((4, 64), 0.5), rtol=0.01, atol=0)


@pytest.mark.slow
def test_older_processors_are_tried_too() -> None:
    """AVX2's layout is another one, and without it there is no kernel worth using."""
    code = "from desk_rag.model.on_cpu import int4_linear; print(int4_linear.available())"
    for kernel, expected in (("avx2", "True"), ("default", "False")):
        run = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "ATEN_CPU_CAPABILITY": kernel}, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert run.stdout.strip() == expected


@each_family
def test_caches_move_as_exactly_as_rounding_lets_them(family: Family, tmp_path: Path) -> None:
    place = written(tmp_path, family)
    if family.name in EXPERTS:
        with pytest.raises(UnsupportedModel, match="mixture of experts, which has no int4 form"):
            loaded(place, "int4")
        return
    model = dataclasses.replace(loaded(place, "int4"), prompt=byte_prompt())
    heads = [part for part in model.module.modules() if isinstance(part, int8_linear.Int8Linear)]
    assert len(heads) == int8_linear.available()  # the output matrix
    assert not any(type(part) is torch.nn.Linear for part in model.module.modules())
    tried = logits_of(model)
    assert relative(tried.stitched, tried.masked) < 0.08
    assert relative(tried.stitched, tried.masked) < 0.15 * relative(tried.unmoved, tried.masked)
    assert check_keys(model) < 1e-4


def test_a_deep_model_is_not_refused_for_the_rounding_of_its_products(tmp_path: Path) -> None:
    """Rows are rounded to bf16 before each matrix, which adds up to more than a model in fp32 is allowed."""
    llama = family("llama")
    size = {"num_hidden_layers": 12, "hidden_size": 256, "intermediate_size": 512, "head_dim": None}

    def build() -> tuple[Any, Any]:
        model_class, config = llama.build()
        return model_class, type(config)(**{**config.to_dict(), **size})

    model = loaded(written(tmp_path, Family("deep", build)), "int4")
    assert model.spec.num_layers == 12 and logits(model).isfinite().all()


def test_many_rows_are_packed_as_few_at_a_time_are(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, scales = coded_groups(torch.randn(900, 64))
    at_once = Int4Linear(codes, scales)
    monkeypatch.setattr(int4_linear, "_PACKED_AT_ONCE", 64 * 256)
    assert torch.equal(Int4Linear(codes, scales).weight, at_once.weight)


def test_the_planned_memory_is_that_of_what_is_held(tmp_path: Path) -> None:
    place = written(tmp_path, family("qwen2"))
    model = loaded(place, "int4")
    shape = describe("tiny", "folder", place).shape
    assert shape is not None
    planned = {form: weight_bytes(shape, form, Device("memory", 0, 2, on_gpu=False)) for form in ("int8", "int4")}
    counted = coded_weights(model.module) + sum(parameter.numel() for parameter in model.module.parameters())
    assert counted == peaked_module(family("qwen2")).num_parameters()
    parts = {id(part): part for part in _matrices(model.module)}.values()
    groups = sum(part.out_features * part.in_features for part in parts if isinstance(part, Int4Linear))
    rows = sum(part.out_features * part.in_features for part in parts if isinstance(part, int8_linear.Int8Linear))
    rest = sum(parameter.nbytes for parameter in model.module.parameters())
    held = groups // 2 + 4 * groups // GROUP + rows + rest  # small matrices are filled up besides
    assert abs(planned["int4"] - held) < 0.05 * held
    assert planned["int4"] < 0.85 * planned["int8"]


def _matrices(module: torch.nn.Module) -> list[torch.nn.Module]:
    from desk_rag.model.packed_linear import PackedPart

    beside = [part.beside.whole for part in module.modules() if isinstance(part, PackedPart)]
    return [*module.modules(), *beside]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_gguf_files_are_coded_matrix_by_matrix(name: str, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny(file, TINY[name], Kind.F16)
    model = loaded(file, "int4")
    assert any(isinstance(part, Int4Linear) for part in _matrices(model.module))
    assert logits(model).isfinite().all()
    assert 1e-3 < relative(logits(model), logits(loaded(file, "none"))) < 0.8  # peaked attention makes much of errors


def test_what_is_not_possible_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from desk_rag.config import ModelSettings
    from tests.model.hostile_models import plain_adapter, plain_model

    settings = ModelSettings(name=str(plain_model()), device="cpu", quantization="int4", adapter=str(plain_adapter()))
    with pytest.raises(ConfigError, match="int4 weights cannot carry an adapter"):
        load_model(settings)
    monkeypatch.setattr(int4_linear, "available", lambda: False)
    with pytest.raises(ConfigError, match="4-bit weights"):
        loaded(plain_model(), "int4")
