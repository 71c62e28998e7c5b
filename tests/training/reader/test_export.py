"""What is exported is what the product loads: the same logits as the training forward pass with the coded weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from desk_rag.config import ModelSettings
from desk_rag.model.loading import load_model
from desk_rag.model.trained_frame import IM_END
from desk_rag.training.reader import export as exporting
from desk_rag.training.reader.architecture import Decoder, rotary_tables
from desk_rag.training.reader.data.frame import mark_id
from desk_rag.training.reader.export import coded, export, join
from tests.training.reader.conftest import VOCAB, decoder


def decoded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as the codes tell them, by their name in training."""
    weights = {}
    for name, tensor in tensors.items():
        if name.endswith(".scale"):
            continue
        scale = tensors.get(f"{name}.scale")
        weights[name.removeprefix("model.")] = tensor.float() * scale.float() if scale is not None else tensor
    return weights


def forward(model: Decoder, ids: Tensor) -> Tensor:
    cos, sin = (table[: ids.shape[1]] for table in rotary_tables(model.shape, "cpu"))
    with torch.no_grad():
        return model.logits(model.hidden(ids, cos, sin))


def test_codes_are_half_a_step_from_the_weights() -> None:
    weights = decoder(7).state_dict()
    tensors = coded(weights)
    for name, weight in weights.items():
        full = f"model.{name}"
        if weight.dim() != 2:
            assert torch.equal(tensors[full], weight) and f"{full}.scale" not in tensors
            continue
        assert tensors[full].dtype == torch.int8 and tensors[f"{full}.scale"].shape == (len(weight), 1)
        step = tensors[f"{full}.scale"].float()
        error = (tensors[full].float() * step - weight).abs()
        assert (error <= step * 0.5001).all() and error.max() > 0
        assert (tensors[full].abs().amax(1) == 127).all()


@pytest.mark.parametrize("parts", [False, True])
def test_the_product_loads_it_and_computes_the_same(
    tmp_path: Path, tokenizer: Tokenizer, tokenizer_path: Path, parts: bool
) -> None:
    model = decoder(8)
    export(model.state_dict(), model.shape, mark_id(tokenizer, IM_END), tmp_path, parts=parts)
    if parts:
        join(tmp_path, tmp_path / "model.safetensors")
        for part in tmp_path.glob("part-*"):
            part.unlink()
    shutil.copy(tokenizer_path, tmp_path / "tokenizer.json")
    settings = ModelSettings(name=str(tmp_path), device="cpu")
    loaded, packed = load_model(settings, pack=False), load_model(settings)
    untouched = forward(model, ids := torch.randint(5, VOCAB, (1, 48)))
    model.load_state_dict(decoded(load_file(tmp_path / "model.safetensors")))
    mine = forward(model, ids)
    with torch.no_grad():
        theirs, faster = loaded.module(ids).logits, packed.module(ids).logits
    assert type(loaded.module).__name__ == "Qwen3ForCausalLM"
    torch.testing.assert_close(theirs, mine, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(faster, mine, atol=2e-3, rtol=0)  # weights of 11 bits
    # The coding itself moves the logits, little beside their spread.
    assert 0 < (untouched - mine).abs().max() < 0.3 * mine.std()
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["eos_token_id"] == 2


def test_parts_are_small_and_joined_they_are_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_SHARD", 8_000)
    model = decoder(9)
    export(model.state_dict(), model.shape, 2, tmp_path, parts=True)
    parts = sorted(tmp_path.glob("part-*.safetensors"))
    largest = max(tensor.nbytes for tensor in coded(model.state_dict()).values())
    assert len(parts) > 3
    assert all(sum(t.nbytes for t in load_file(part).values()) <= max(8_000, largest) for part in parts)
    join(tmp_path, tmp_path / "model.safetensors")
    joined, whole = load_file(tmp_path / "model.safetensors"), coded(model.state_dict())
    assert joined.keys() == whole.keys() and all(torch.equal(joined[name], whole[name]) for name in whole)
