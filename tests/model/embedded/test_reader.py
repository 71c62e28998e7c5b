"""The reader without transformers computes what transformers computes, and is the same model to everything stored."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from desk_rag.assets import assets_dir
from desk_rag.config import ModelSettings
from desk_rag.errors import ModelError
from desk_rag.kv.cache import SlabCache
from desk_rag.model import packed_linear
from desk_rag.model.embedded import int8_linear
from desk_rag.model.embedded.reader import ReaderConfig, ReaderModule, load_reader
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model

FOLDER = assets_dir() / "reader"
PARTS = ((0, 300), (300, 340), (340, 420), (420, 421))
"""A whole prompt, few tokens over a cache, many, and one."""


@pytest.fixture(scope="module")
def library() -> LanguageModel:
    """The reader as transformers loads it, in fp32."""
    model = load_model(ModelSettings(device="cpu", name=str(FOLDER)), pack=False)
    assert type(model.module).__module__.startswith("transformers.")
    return model


def logits(model: LanguageModel) -> torch.Tensor:
    ids = torch.arange(421) * 37 % 9000 + 20
    cache = SlabCache(model, 421)
    return torch.cat([model.forward_all(ids[begin:end], cache, begin) for begin, end in PARTS])


def plain(reader: LanguageModel, library: LanguageModel) -> LanguageModel:
    """Our module with plain fp32 matrices."""
    module = ReaderModule(ReaderConfig.read(FOLDER / "config.json"))
    module.load_state_dict(library.module.state_dict())
    return LanguageModel(reader.spec, module.eval().requires_grad_(False), reader.prompt, reader.device)


def test_plain_matrices_give_the_logits_of_transformers_bit_for_bit(
    reader: LanguageModel, library: LanguageModel
) -> None:
    assert torch.equal(logits(plain(reader, library)), logits(library))


@pytest.mark.skipif(not int8_linear.keeps_int8(), reason="this CPU does not multiply int8")
def test_int8_matrices_are_closer_to_fp32_than_packed_ones(reader: LanguageModel, library: LanguageModel) -> None:
    exact = logits(library)
    packed = plain(reader, library)
    packed_linear.pack_linears(packed.module)
    errors = [float((logits(model) - exact).square().mean().sqrt() / exact.std()) for model in (reader, packed)]
    assert 0 < errors[0] < 5e-4
    assert errors[0] < errors[1], "and the other is not exact either"


def test_without_int8_products_the_matrices_are_packed_as_other_models_are(
    reader: LanguageModel, library: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_linear, "available", lambda: False)
    monkeypatch.setenv("DESK_RAG_KERNELS", "")
    model = load_model(ModelSettings(device="cpu"))
    assert any(isinstance(module, packed_linear.PackedLinear) for module in model.module.modules())
    assert type(model.module.lm_head) is packed_linear.PackedLinear
    assert model.spec == reader.spec
    assert (logits(model) - logits(library)).abs().max() < 0.1


def test_the_specification_is_that_of_transformers(reader: LanguageModel, library: LanguageModel) -> None:
    """Or chunk KV that was stored before would be computed again."""
    for field in fields(reader.spec):
        if field.name != "name":
            assert getattr(reader.spec, field.name) == getattr(library.spec, field.name), field.name


def test_a_configuration_of_another_kind_is_refused(tmp_path: Path) -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    with pytest.raises(ModelError, match="attention_bias"):
        load_reader(tmp_path, FOLDER / "model.safetensors")


def test_reader_and_embedder_load_and_run_without_transformers_and_sentence_transformers() -> None:
    code = """
import sys, torch
from desk_rag.config import ModelSettings
from desk_rag.kv.cache import SlabCache
from desk_rag.model.loading import load_model
from desk_rag.retrieval.embedding import load_embedder
from desk_rag.answering import opening
settings = ModelSettings(device="cpu")
model = load_model(settings)
model.forward(torch.arange(20, 40), SlabCache(model, 20), 0, logits=True)
load_embedder(settings).embed_question("When?")
print(sorted({"transformers", "sentence_transformers", "torch._dynamo", "scipy", "sympy"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
