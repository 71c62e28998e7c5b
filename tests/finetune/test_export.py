"""The result has the form of what it was made from, and is whole or not there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from desk_rag.config import ModelSettings
from desk_rag.finetune.export import write_row_int8
from desk_rag.finetune.run import Task, run
from desk_rag.finetune.settings import Method
from desk_rag.model.checkpoint.row_int8 import has_scales
from desk_rag.model.loading import load_model
from tests.finetune.conftest import TOY
from tests.finetune.test_train import QUICK


def settings(directory: Path) -> ModelSettings:
    return ModelSettings(name=str(directory), device="cpu", threads=1)


def test_codes_are_the_nearest_to_what_they_stand_for(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {"a.weight": torch.randn(40, 64) * torch.logspace(-4, 1, 40)[:, None], "n.weight": torch.randn(64)}
    state["a.weight"][7] = 0.0
    write_row_int8(state, tmp_path / "model.safetensors")
    tensors = load_file(tmp_path / "model.safetensors")
    scale = tensors["a.weight.scale"].float()
    assert tensors["a.weight"].dtype is torch.int8 and tensors["a.weight.scale"].dtype is torch.float16
    error = (tensors["a.weight"].float() * scale - state["a.weight"]).abs()
    assert (error <= 0.5001 * scale).all()
    assert int(tensors["a.weight"].abs().max()) == 127 and not tensors["a.weight"][7].any()
    assert torch.equal(tensors["n.weight"], state["n.weight"])
    again = {"a.weight": tensors["a.weight"].float() * scale}
    write_row_int8(again, tmp_path / "again.safetensors")
    second = load_file(tmp_path / "again.safetensors")
    full = tensors["a.weight"].abs().amax(1) == 127
    assert full.sum() > 20 and torch.equal(second["a.weight"][full], tensors["a.weight"][full])


@pytest.fixture
def int8_dir(tiny_dir: Path, tmp_path: Path) -> Path:
    """The tiny model in the embedded reader's form."""
    directory = tmp_path / "int8"
    shutil.copytree(tiny_dir, directory)
    write_row_int8(load_file(tiny_dir / "model.safetensors"), directory / "model.safetensors")
    return directory


def test_a_model_in_the_readers_form_stays_in_it(int8_dir: Path, tmp_path: Path) -> None:
    assert has_scales(int8_dir / "model.safetensors")
    out = tmp_path / "out"
    quick = replace(QUICK, method=Method.FULL, steps=3, learning_rate=1e-3)
    report = run(
        Task(settings(int8_dir), quick, TOY, out, held_out=0.0), evaluate=None, say=lambda _text: None,
        on_step=lambda _now: None, stop=lambda: False,
    )  # fmt: skip
    assert report.steps == 3 and has_scales(out / "model.safetensors")
    before, after = load_file(int8_dir / "model.safetensors"), load_file(out / "model.safetensors")
    assert {name: value.dtype for name, value in after.items()} == {name: value.dtype for name, value in before.items()}
    name = "model.layers.0.mlp.up_proj.weight"
    old, new = (state[name].float() * state[f"{name}.scale"].float() for state in (before, after))
    assert 0 < float((new - old).abs().mean()) < 1e-2
    assert (out / "tokenizer.json").read_bytes() == (int8_dir / "tokenizer.json").read_bytes()
    assert load_model(settings(out)).spec.weights_fingerprint != load_model(settings(int8_dir)).spec.weights_fingerprint


def test_a_model_in_bf16_stays_in_bf16(tiny_dir: Path, tmp_path: Path) -> None:
    base, out = tmp_path / "bf16", tmp_path / "out"
    module = load_model(settings(tiny_dir), pack=False).module.to(torch.bfloat16)
    shutil.copytree(tiny_dir, base)
    module.save_pretrained(base)
    judged: list[int] = []

    def judge(model: object, samples: object) -> dict[str, object]:
        judged.append(len(samples))  # type: ignore[arg-type]
        return {"f1": float(len(judged))}

    quick = replace(QUICK, method=Method.FULL, steps=1)
    report = run(
        Task(settings(base), quick, TOY * 20, out, held_out=0.5, eval_contexts=1), evaluate=judge,
        say=lambda _text: None, on_step=lambda _now: None, stop=lambda: False,
    )  # fmt: skip
    before, after = load_file(base / "model.safetensors"), load_file(out / "model.safetensors")
    assert {value.dtype for value in after.values()} == {torch.bfloat16}
    assert after.keys() == before.keys() and "lm_head.weight" not in after, "tied weights are written once"
    assert (out / "config.json").read_bytes() == (base / "config.json").read_bytes()
    assert report.answers_before == {"f1": 1.0} and report.answers_after == {"f1": 2.0}
    assert report.before is not None and report.before.independent and report.before.full
