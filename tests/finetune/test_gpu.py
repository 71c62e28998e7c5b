"""On a GPU: adapters over nf4 and bf16 weights learn, are served, and rows in bf16 compute what stitching does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from desk_rag.config import ModelSettings
from desk_rag.finetune.masked import hidden_of, loss_of, to_batch
from desk_rag.finetune.rows import build_island, build_row
from desk_rag.finetune.run import Task, load_result, run
from desk_rag.finetune.settings import Method
from desk_rag.kv.cache import SlabCache
from desk_rag.model.loading import load_model
from tests.finetune.conftest import SHED, TOY
from tests.finetune.test_masked import context_of
from tests.finetune.test_train import QUICK, namespace

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_an_adapter_learns_and_is_served(tiny_dir: Path, tmp_path: Path, quantization: str) -> None:
    if quantization != "none":
        pytest.importorskip("bitsandbytes")
    settings = ModelSettings.model_validate({"name": str(tiny_dir), "device": "cuda", "quantization": quantization})
    quick = replace(QUICK, method=Method.LORA, learning_rate=1e-2, steps=25, checkpointing=True)
    work = Task(settings, quick, TOY, tmp_path / "out", held_out=0.0)
    report = run(work, evaluate=None, say=lambda _text: None, on_step=lambda _now: None, stop=lambda: False)
    assert report.losses[-1] < 0.8 * report.losses[0] and report.device_mib > 0
    base, served = load_model(settings), load_result(settings, work.out, Method.LORA)
    assert namespace(served) != namespace(base)
    ids = torch.tensor(base.prompt.chunk_ids(SHED), device=base.device)
    plain, taught = (model.forward_all(ids, SlabCache(model, len(ids)), 0) for model in (base, served))
    assert taught.isfinite().all() and float((plain - taught).abs().max()) > 0.05
    assert (base.prompt.prefix_ids, base.spec.weights_fingerprint) == (
        served.prompt.prefix_ids, served.spec.weights_fingerprint,
    )  # fmt: skip


def test_gradients_of_the_fused_kernels_are_those_of_plain_attention(tiny_dir: Path) -> None:
    model = load_model(ModelSettings(name=str(tiny_dir), device="cuda"))
    model.module.float()
    context = context_of(model, full=False)
    batch = to_batch([build_row([build_island(context)], 512)], model.device)
    weight = model.module.model.layers[0].self_attn.k_proj.weight.requires_grad_(True)
    (fused,) = torch.autograd.grad(loss_of(model.module, batch).total, weight)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        (plain,) = torch.autograd.grad(loss_of(model.module, batch).total, weight)
        reference = hidden_of(model.module, batch)
    assert torch.allclose(fused, plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))
    assert not reference.isnan().any()
