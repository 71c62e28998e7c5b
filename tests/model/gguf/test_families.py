"""Every architecture that is read from GGUF computes what the model it was written from computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from desk_rag.config import ModelSettings
from desk_rag.errors import ModelError, OutOfMemory, UnsupportedModel
from desk_rag.model.gguf import weights as gguf_weights
from desk_rag.model.gguf.config import architectures
from desk_rag.model.gguf.header import read_header
from desk_rag.model.loading import load_model
from tests.model.gguf.families import TINY, write_tiny
from tests.models import VOCABULARY

MORE = {"gptoss"}
"""An architecture of Ollama's, which is written in test_gpt_oss."""
IDS = torch.arange(200)[None] * 7 % VOCABULARY


@pytest.mark.parametrize("name", list(TINY))
def test_logits_are_those_of_the_model_itself(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.gguf"
    module = write_tiny(file, TINY[name], Kind.F32)
    loaded = load_model(ModelSettings(device="cpu", name=str(file)), pack=False).module
    expected = module.state_dict()
    assert all(torch.allclose(tensor, expected[key], atol=1e-6) for key, tensor in loaded.state_dict().items())
    with torch.inference_mode():
        own, read = module(IDS).logits, loaded(IDS).logits
    assert (own - read).abs().max() < 2e-4 * own.std()


def test_every_architecture_that_is_named_was_tried() -> None:
    assert {tiny.name for tiny in TINY.values()} | MORE == set(architectures())


def test_a_scaling_of_positions_that_is_left_out_would_be_seen(tmp_path: Path) -> None:
    """The negative control: without its tensor of divisors the same file computes something else."""
    module = write_tiny(tmp_path / "a.gguf", TINY["llama-llama3"], Kind.F32)
    config = type(module.config)(**{**module.config.to_dict(), "rope_parameters": {"rope_type": "default",
                                                                                  "rope_theta": 500000.0}})  # fmt: skip
    plain = type(module)(config)
    plain.load_state_dict(module.state_dict())
    with torch.inference_mode():
        assert (module(IDS).logits - plain.eval()(IDS).logits).abs().max() > 1e-3


def test_a_model_that_does_not_fit_is_refused_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    file = tmp_path / "a.gguf"
    write_tiny(file, TINY["qwen2"], Kind.F16)
    free = psutil.virtual_memory()._replace(available=100_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(gguf_weights, "load", lambda *_: pytest.fail("loaded all the same"))
    with pytest.raises(OutOfMemory, match="GB are free"):
        load_model(ModelSettings(device="cpu", name=str(file)))


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("qwen2.rope.dimension_sections", [2, 3, 3, 0], "M-RoPE"),
        ("qwen2.rope.scaling.type", "dynamic", "RoPE scaling 'dynamic'"),
        ("qwen2.attention.kv_lora_rank", 16, "latent"),
        ("qwen2.attention.shared_kv_layers", 2, "share the KV"),
        ("qwen2.ssm.state_size", 16, "recurrent"),
        ("qwen2.attention.value_length", 8, "another size"),
        ("qwen2.rope.dimension_count", 8, "dimensions of each head"),
        ("tokenizer.ggml.pre", "klingon", "cuts text by a rule"),
        ("tokenizer.ggml.model", "bert", "of the kind 'bert'"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_property(
    key: str, value: str | int, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.gguf"
    write_tiny(file, TINY["qwen2"], Kind.F32)
    header = read_header(file)
    header.metadata[key] = value
    monkeypatch.setattr("desk_rag.model.directory_check.read_header", lambda _: header)
    monkeypatch.setattr("desk_rag.model.prompt.read_header", lambda _: header)
    with pytest.raises(UnsupportedModel, match=match):
        load_model(ModelSettings(device="cpu", name=str(file)))


def test_a_form_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    write_tiny(file, TINY["qwen2"], Kind.F32)
    header = read_header(file)
    assert header.quantization == "F32" and header.num_parameters > 50_000
    with pytest.raises(ModelError, match="no GGUF file"):
        load_model(ModelSettings(device="cpu", name=str(_renamed(tmp_path))))


def _renamed(tmp_path: Path) -> Path:
    file = tmp_path / "text.gguf"
    file.write_text("not a model")
    return file
