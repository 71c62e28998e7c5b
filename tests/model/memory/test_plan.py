"""A plan of memory names every part, takes an engine's own smaller steps, and agrees with weights that are loaded."""

from __future__ import annotations

import pytest
import torch

from desk_rag.bench.models import shapes
from desk_rag.bench.models.shapes import sizes_of
from desk_rag.cli.models import described
from desk_rag.cli.output import size
from desk_rag.config import ModelSettings
from desk_rag.model.library.fit import Machine
from desk_rag.model.library.installed import Shape
from desk_rag.model.loading import load_model
from desk_rag.model.memory.plan import Device, least_quantized, plan, weight_bytes

GIB = 1 << 30
ON_CPU = Device("memory", 16 * GIB, 4, on_gpu=False)


def gpu(gib: float) -> Device:
    return Device("GPU memory", int(gib * GIB), 2, on_gpu=True)


@pytest.mark.parametrize("name", ["qwen3-4b", "llama-3.2-3b", "gemma-3-4b", "qwen2.5-7b"])
def test_the_models_of_an_8_gb_card_fit_it_in_nf4(name: str) -> None:
    planned = plan(sizes_of(name), "nf4", gpu(7.5))
    assert planned.fits and planned.context_tokens == 8192
    assert {"weights", "passages", "chunks being loaded", "embedder and span scorer", "work space", "CUDA"} == set(
        planned.parts
    )
    assert 0 < planned.kept_chunks <= 7.5 * GIB - planned.total
    assert not plan(sizes_of(name), "none", gpu(5)).fits


def test_smaller_steps_come_in_the_order_in_which_an_engine_takes_them() -> None:
    model = sizes_of("qwen3-4b")
    whole = plan(model, "nf4", gpu(8))
    steps = [plan(model, "nf4", gpu(gib / 20)) for gib in range(160, 50, -1)]
    assert not whole.lazy and whole.whole_context
    taken = list(dict.fromkeys((each.lazy, each.context_tokens) for each in steps if each.fits))
    assert taken[:3] == [(False, 8192), (True, 8192), (False, 2048)] or taken[:3] == [
        (False, 8192), (True, 8192), (False, 4096),
    ]  # fmt: skip
    assert not steps[-1].fits
    assert all(earlier.fits or not later.fits for earlier, later in zip(steps, steps[1:], strict=False))


def test_sliding_windows_rule_lazy_attention_out() -> None:
    model = sizes_of("gemma-3-4b")
    device = next(gpu(gib / 10) for gib in range(80, 30, -1) if plan(model, "nf4", gpu(gib / 10)).lazy)
    fewer = plan(model, "nf4", device, lazy_possible=False)
    assert not fewer.lazy and fewer.fits and not fewer.whole_context


def test_the_least_quantisation_with_room_for_all_passages_is_taken() -> None:
    model = sizes_of("llama-3.2-3b")
    forms = [getattr(least_quantized(model, gpu(gib)), "quantization", None) for gib in (24, 7, 5, 1)]
    assert forms == ["none", "int8", "nf4", None]
    quantised_already = Shape("llama", 10**9, 10**8, 28, 8, 128, 32768, stored_bytes=2_300_000_000)
    chosen = least_quantized(quantised_already, gpu(8))
    assert chosen is not None and chosen.quantization == "none" and chosen.parts["weights"] == 2_300_000_000


def test_a_large_table_of_input_embeddings_stays_in_ram_where_gpu_memory_is_short() -> None:
    model = sizes_of("qwen2.5-7b")
    table = 2 * model.input_table_parameters
    assert table == 2 * 3584 * 152_064
    whole = weight_bytes(model, "nf4", gpu(24))
    assert plan(model, "nf4", gpu(24)).parts["weights"] == whole
    in_ram = plan(model, "nf4", gpu(7.5))
    assert in_ram.parts["weights"] == whole - table and in_ram.page_locked == table
    assert f"input embeddings in page-locked RAM {size(table)}" in described(in_ram)
    assert plan(model, "nf4", gpu(24)).page_locked == 0 and "page-locked" not in described(plan(model, "nf4", gpu(24)))
    assert plan(model, "nf4", gpu(6)).fits
    assert plan(model, "none", Device("memory", 16 * GIB, 2, on_gpu=False)).parts["weights"] == 2 * model.parameters
    tied = sizes_of("llama-3.2-3b")
    assert plan(tied, "nf4", gpu(4)).parts["weights"] == weight_bytes(tied, "nf4", gpu(4))


def test_a_cpu_takes_twice_the_memory_where_it_computes_in_fp32() -> None:
    machine = Machine(0, 0, 16 * GIB, 0, 0, computes_in_bf16=True)
    small, large = (machine.device_for(parameters).weight_bytes for parameters in (10**8, 3 * 10**9))
    assert (small, large) == (4, 2)
    assert Machine(0, 0, 16 * GIB, 0, 0, computes_in_bf16=False).device_for(3 * 10**9).weight_bytes == 4


def test_planned_weights_are_those_that_are_loaded() -> None:
    reader = load_model(ModelSettings(device="cpu"), pack=False)
    config = reader.module.config
    embeddings = config.vocab_size * config.hidden_size
    shape = Shape("qwen2", reader.spec.num_parameters, embeddings, 1, 1, 1, 4096)
    assert weight_bytes(shape, "none", Device("memory", 0, 4, on_gpu=False)) == sum(
        parameter.nbytes for parameter in reader.module.parameters()
    )


def test_planned_nf4_weights_are_those_that_are_made() -> None:
    pytest.importorskip("bitsandbytes")
    model = shapes.build("small", torch.device("cpu"), quantization="nf4")
    loaded = sum(value.nbytes for value in model.module.state_dict().values() if isinstance(value, torch.Tensor))
    width = model.module.get_input_embeddings().weight.element_size()
    embeddings = sizes_of("small").embedding_parameters
    planned = weight_bytes(sizes_of("small"), "nf4", gpu(8)) + (width - 2) * embeddings
    assert abs(planned - loaded) < 0.05 * loaded
